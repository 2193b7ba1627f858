"""Writes of ranks to state that they share here, but would not share as processes: `simdist.shared_writes`.

`_writes.py` compares the contents of the interpreter's modules before and after a world, `_insides.py` describes how
two contents differ, and `_harmless.py` lists writes that make no difference, with reasons.
"""

from simdist.shared._writes import SharedWrites, shared_writes

__all__ = ["SharedWrites", "shared_writes"]
