"""Code inside the process of a real rank, and around it: the program, its faults, its recorder."""
