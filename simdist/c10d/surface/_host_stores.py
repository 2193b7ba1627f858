"""Torch's own stores that are used by a rank: made outside the simulation, they wait in real time.

A rank that waited inside such a store would keep the baton, and the rank for which it waits would never run. So a rank
that waits for keys checks for them from time to time, in virtual time. Calls that never wait (`set`, `add`, `check`)
work, as on an object that the ranks share. Other waits (`queue_pop`, `barrier`) are refused, with an alternative.

A rank's client of a real server in this process is also real (`client_of_host`): a test class or a parent process may
hold the server and hand out its port. After a request that a TCPStore sends without waiting for an answer (`set`), the
rank makes a request with an answer, so that the server's thread, which runs in real time, has served the first one
before the next rank looks.

In doubt: the error of a view for a key that never arrives lacks the view's prefix, which torch's `PrefixStore` does not
provide.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from simdist.c10d.surface._store_server import gave_up, time_limit_ns
from simdist.errors import SimdistError
from simdist.inside.system import listens_at
from simdist.inside.torch import FileStore, HashStore, PrefixStore, TCPStore
from simdist.process import Patches, SimProcess, current_process

if TYPE_CHECKING:
    from simdist.inside.python import Make
    from simdist.inside.torch import Store

__all__ = ["client_of_host", "install", "is_hosts", "refusal"]

_REAL = (TCPStore, HashStore, FileStore)
_REFUSED = ("queue_pop", "barrier")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LOOK_NS = 10_000_000  # the interval at which a FileStore reads its file


def is_hosts(store: object) -> bool:
    """True for a store of torch's own, or a view of one."""
    return isinstance(_innermost(store), _REAL)


def client_of_host(host: str, port: int, **settings: Any) -> TCPStore | None:
    """Return a client of a real TCPStore that this process serves at a loopback port; None if it serves none."""
    return TCPStore(host, port, **settings) if host in _LOOPBACK and listens_at(port) else None


_WAY_OUT = "make the store inside the rank's function, or use init_method='env://'"


def refusal(store: object) -> SimdistError:
    """Return the error for a rank that passes such a store on."""
    kind = type(store).__name__
    return SimdistError(f"a real {kind}, made outside the simulation, was passed to a simulated rank; {_WAY_OUT}")


def install(patches: Patches) -> None:
    """Let ranks wait for keys in such stores, and refuse other waits."""
    makers: dict[str, Make] = {
        **dict.fromkeys(_REFUSED, _refusing),
        "wait": _wait,
        "get": _get,
        "multi_get": _multi_get,
        **dict.fromkeys(("set", "append", "multi_set"), _arriving),
    }
    # Not in the common base class: if a program's own store lacks a method, C++ would call ours.
    for owner, (name, make) in itertools.product((*_REAL, PrefixStore), makers.items()):
        if hasattr(owner, name):
            patches.wrap(owner, name, make)


def _wait(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def wait(store: Store, keys: Iterable[str], timeout: timedelta | None = None) -> None:
        process = current_process()
        if process is not None and is_hosts(store):
            keys = list(keys)
            _look_for(process, store, keys, timeout, "Wait timeout")
        return original(store, keys) if timeout is None else original(store, keys, timeout)

    return wait


def _get(original: Callable[[Store, str], bytes]) -> Callable[[Store, str], bytes]:
    @functools.wraps(original)
    def get(store: Store, key: str) -> bytes:
        process = current_process()
        if process is not None and is_hosts(store):
            _look_for(process, store, [key], None, f"Timeout waiting for key: {key}")
        return original(store, key)

    return get


def _multi_get(original: Callable[[Store, list[str]], list[bytes]]) -> Callable[[Store, Iterable[str]], list[bytes]]:
    @functools.wraps(original)
    def multi_get(store: Store, keys: Iterable[str]) -> list[bytes]:
        process = current_process()
        keys = list(keys)
        if process is not None and is_hosts(store):
            for key in keys:  # one after the other, as in torch's stores
                _look_for(process, store, [key], None, f"Timeout waiting for key: {key}")
        return original(store, keys)

    return multi_get


def _arriving(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def send(store: Store, keys: str | Iterable[str], *values: object) -> object:
        done = original(store, keys, *values)
        if current_process() is not None and isinstance(_innermost(store), TCPStore):
            store.check([keys] if isinstance(keys, str) else list(keys))
        return done

    return send


def _look_for(process: SimProcess, store: Any, keys: list[str], timeout: timedelta | None, what: str) -> None:
    """Let virtual time pass until the keys are there.

    Raises:
        DistStoreError, RuntimeError: the keys do not arrive in time; with the store's own text.
    """
    limit = store.timeout if timeout is None else timeout
    kind = {HashStore: "hash", FileStore: "file"}.get(type(_innermost(store)), "tcp")
    simulation = process.simulation
    due_ns = simulation.now_ns + time_limit_ns(kind, limit)
    while keys and not store.check(keys):
        if simulation.now_ns >= due_ns:
            raise gave_up(kind, keys, limit, what)
        simulation.sleep(min(_LOOK_NS, due_ns - simulation.now_ns))
        process.drain()


def _innermost(store: object) -> object:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _refusing(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def waiting(store: Store, *args: object, **kwargs: object) -> object:
        process = current_process()
        if process is not None and is_hosts(store):
            raise SimdistError(
                f"rank {process.rank}: {original.__name__} of a real {type(store).__name__}, made outside the "
                f"simulation, would wait in real time, and no other rank could run; {_WAY_OUT}"
            )
        return original(store, *args, **kwargs)

    return waiting
