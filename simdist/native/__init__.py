"""The folds of collectives in C++: `simdist._native`, one extension for every torch and every Python from 3.11 on.

It is optional. `pip install simdist` builds it if there is a C++ compiler (`tools/native.py` is the hook), and a wheel
contains it. Without it, or with `SIMDIST_NATIVE=0`, the folds in Python do the same more slowly, with the same bits and
so the same digests. `tests/native` compares the two.

`folds.cpp` processes the memory of all ranks at once, and `tiles.inc` has the arithmetic for each type. `_folds.py`
calls them with addresses and an order of additions, which the backend defines. `memory.inc` copies, compares and
searches memory for judges, and compares and writes the memory of random generators; `_memory.py` calls it. `_build.py`
compiles.

Open `_folds.py` first, then `folds.cpp`.
"""

from simdist.native._build import compile_library, compiler, source_number, why_not_buildable
from simdist.native._folds import VARIABLE, addresses, copy_each, partial_ring, ring, tree, why_off
from simdist.native._memory import NOT_LOOKED, ROWS, content, copied, exchanging, holds, place_not_finite, row, uniform

__all__ = [
    "NOT_LOOKED",
    "ROWS",
    "VARIABLE",
    "addresses",
    "compile_library",
    "compiler",
    "content",
    "copied",
    "copy_each",
    "exchanging",
    "holds",
    "partial_ring",
    "place_not_finite",
    "ring",
    "row",
    "source_number",
    "tree",
    "uniform",
    "why_not_buildable",
    "why_off",
]
