"""Kernels of virtual devices: the CPU's kernels between a step down and a step up, and those that only GPUs have.

`_kernels.py` registers all of them; each other file is a family of operators. `_deferred.py` keeps kernels whose inputs
are not there yet, `_compiled.py` loads the kernels in C++ (`native/kernels.cpp`) where they are built.
"""
