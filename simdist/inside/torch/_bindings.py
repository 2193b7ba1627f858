"""The whole modules of torch's C++ bindings, for code that patches them or asks for names that may be missing.

torch's stubs leave out most of their content, so both are untyped.
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
    """What a probe reports of missing names; empty if none is missing."""
    found = [name for name in names if not hasattr(owner, name)]
    return f"{getattr(owner, '__name__', owner)} has no {', '.join(found)}" if found else ""
