"""What NCCL does with bytes and time: algorithms and their choice, folds, channels, kernels in each other's way."""
