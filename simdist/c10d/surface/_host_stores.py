"""Torch's own stores in the hands of a rank: made outside the simulation, they wait in real time.

A rank that waits in one keeps the baton, so that the rank for which it waits never runs. What may wait is therefore
refused, with the way out; what never does (`set`, `add`, `check`) works, as on an object that the ranks share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d as _c

from simdist.errors import SimdistError
from simdist.process import Patches, current_process

__all__ = ["install", "is_hosts", "refusal"]

_registry: Any = _c  # has what the stubs leave out
_REAL = (_c.TCPStore, _c.HashStore, _c.FileStore)
_WAITING = ("get", "multi_get", "wait", "queue_pop", "barrier")


def is_hosts(store: Any) -> bool:
    """True for a store of torch's own, or a view of one."""
    while isinstance(store, _c.PrefixStore):
        store = store.underlying_store
    return isinstance(store, _REAL)


_WAY_OUT = "make the store inside the rank's function, or use init_method='env://'"


def refusal(store: Any) -> SimdistError:
    """What a rank is told that passes such a store on."""
    kind = type(store).__name__
    return SimdistError(f"a real {kind}, made outside the simulation, was passed to a simulated rank; {_WAY_OUT}")


def install(patches: Patches) -> None:
    """Refuse to wait in one."""
    for name in _WAITING:
        if hasattr(_registry.Store, name):
            patches.wrap(_registry.Store, name, _refusing)


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def waiting(store: Any, *args: Any, **kwargs: Any) -> Any:
        process = current_process()
        if process is not None and is_hosts(store):
            raise SimdistError(
                f"rank {process.rank}: {original.__name__} of a real {type(store).__name__}, made outside the "
                f"simulation, would wait in real time, and no other rank could run; {_WAY_OUT}"
            )
        return original(store, *args, **kwargs)

    return waiting
