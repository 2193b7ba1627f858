"""What torch calls on a rank: the group, the faces of the stores, torch's own state.

`_group.py` is the group, made of `_reductions.py` and `_copies.py` on `_calls.py` and `_identity.py`. A call checks its
arguments with the backend's, lays the bytes out (`_layout.py`), makes an `Operation` of it and hands it to the engine.
What stands in for torch's process-wide state has a file each in `state`: `_rank_world.py` (the groups),
`_backend_tables.py`, `_meshes.py`, `_compiled.py` and others. `_modes.py` lets dispatch modes see our operators;
`_compat.py` knows what moved between torch versions; `_coverage.py` lists every call of torch.distributed and what
becomes of it.

Nothing here knows how a backend moves bytes, or adds them up.
"""

from simdist.c10d.surface._arguments import Arguments
from simdist.c10d.surface._callsite import call_site, issued_by_torch

__all__ = [
    "Arguments",
    "call_site",
    "issued_by_torch",
]
