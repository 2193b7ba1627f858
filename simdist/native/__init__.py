"""The folds of collectives in C++: `simdist._native`, one extension for every torch and every Python from 3.11 on.

It is optional. `pip install simdist` builds it where a C++ compiler is (`tools/native.py` is the hook), and a wheel
holds it. Where it is not there, or under `SIMDIST_NATIVE=0`, the folds in Python do the same, slower: with the same
bits, and so with the same digests. They are what it is compared with (`tests/native`).

`folds.cpp` goes through the memory of all ranks at once, `tiles.inc` has the arithmetic for each type, `_folds.py` asks
for it. It is given addresses and an order of additions; which order that is, backends know. `memory.inc` copies,
compares and searches memory for judges, compares and writes that of random generators, and `_memory.py` asks for that.
`_build.py` compiles.

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
