"""The modules of torch's C++ bindings, whole: for those that patch them or ask for names that may not be there.

The stubs of torch leave most of what is in them out, so that both are untyped.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import torch
from torch._C import _distributed_c10d

__all__ = ["c10d_bindings", "core_bindings", "missing"]

core_bindings: ModuleType = torch._C
"""`torch._C`."""

c10d_bindings: ModuleType = _distributed_c10d
"""`torch._C._distributed_c10d`: process groups, stores, works, the reducer, options, registries of groups and works."""


def missing(owner: object, names: Iterable[str]) -> str:
    """What a probe reports of names that are not there; empty if all are."""
    found = [name for name in names if not hasattr(owner, name)]
    return f"{getattr(owner, '__name__', owner)} has no {', '.join(found)}" if found else ""
