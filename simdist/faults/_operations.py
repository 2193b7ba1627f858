"""The names by which a fault's `op` can mean an operation: those of events, and those that programs call.

An event has the name of what the backend does: `dist.all_gather_object` is two `all_gather` there, `dist.isend` a
`send`. A fault may use either name; any other name would never strike, and is refused. (Names of torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simdist.c10d.calls import TABLE, names_where

__all__ = ["ALIASES", "EFFECTS", "OPERATIONS", "STORAGE", "STORE", "effects_of", "operations_of"]

OPERATIONS = tuple(sorted(names_where(lambda row: True)))


def _aliases() -> dict[str, tuple[str, ...]]:
    known = {name: (name,) for name in OPERATIONS}
    found: dict[str, tuple[str, ...]] = {}
    for row in TABLE:
        for name in (*row.functions, *row.aliases):
            found[name] = (*found.get(name, known.get(name, ())), row.name)
    return dict(sorted(found.items()))


# The functions that programs call, and their operations in the backend. Functions of torch.distributed that send an
# object or a list send sizes first: each message counts. `gather_object` and `scatter_object_list` send the sizes by
# another operation, which does not count.
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(_aliases())

# The effects that change a simulated disk, as events name them; and a name for all of them.
EFFECTS = (
    "create",
    "fdatasync",
    "fsync",
    "fsync_dir",
    "link",
    "mkdir",
    "rename",
    "rmdir",
    "symlink",
    "sync",
    "truncate",
    "unlink",
    "write",
)
STORAGE = "storage"
STORE = "store"
"""Any request of a rank to a store."""


def effects_of(op: str | None) -> tuple[str, ...]:
    """Return the effects on a disk that `op` means, as events name them; none if it is an operation of torch."""
    if op == STORAGE:
        return EFFECTS
    return (op,) if op in EFFECTS else ()


def operations_of(op: str) -> tuple[str, ...]:
    """Return the operations that `op` means, as events name them."""
    return ALIASES.get(op, (op,))
