"""NCCL's results and costs: algorithms and their choice, folds, channels, and kernels that do not match."""
