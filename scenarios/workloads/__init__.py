"""The programs that the scenarios run: written as for torchrun, and runnable there."""
