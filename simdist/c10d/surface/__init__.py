"""The objects that torch calls on a rank: the group, the clients of the stores, torch's own state.

`_group.py` is the group, made of `_reductions.py` and `_copies.py` on `_calls.py` and `_identity.py`. A call checks its
arguments with the backend's checks, lays the bytes out (`_layout.py`), makes an `Operation` and passes it to the
engine. The replacements of torch's process-wide state are in `state`, a file each: `_rank_world.py` (the groups),
`_backend_tables.py`, `_meshes.py`, `_compiled.py` and others. `_modes.py` lets dispatch modes see our operators,
`_compat.py` handles differences between torch versions, and `_coverage.py` lists every call of torch.distributed with
its status.

Nothing here knows how a backend moves bytes, or adds them up.
"""

from simdist.c10d.surface._arguments import Arguments
from simdist.c10d.surface._callsite import call_site, issued_by_torch

__all__ = [
    "Arguments",
    "call_site",
    "issued_by_torch",
]
