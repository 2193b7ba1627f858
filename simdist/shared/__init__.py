"""What ranks write that they share here and would not share as processes: `simdist.shared_writes`.

`_writes.py` compares what the modules of the interpreter hold before and after a rank had its turn, `_insides.py` says
how two contents differ, and `_harmless.py` lists what makes no difference, with reasons.
"""

from simdist.shared._writes import SharedWrites, shared_writes

__all__ = ["SharedWrites", "shared_writes"]
