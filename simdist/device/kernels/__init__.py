"""Kernels of virtual devices: down to the CPU's and up again, and what exists on GPUs alone.

`_kernels.py` registers all of them; each other file is a family of operators. `_deferred.py` keeps those whose inputs
are not there yet, `_compiled.py` takes those in C++ (`native/kernels.cpp`) where they are built.
"""
