"""Virtual durations in real time: every timeout and every sleep of the workload is multiplied by the scale.

It wraps `time.sleep`, the `timeout` of the functions of torch.distributed that make groups or take one, and that of
stores. Times that a program measures with a clock are real time and stay as they are, and so do timeouts inside options
objects.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType

__all__ = ["scale_time", "scaled"]

_GROUPS = ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
_DEFAULT = timedelta(minutes=30)  # torch.distributed.constants.default_pg_timeout
_STORE_DEFAULT = timedelta(minutes=5)  # c10d::Store::kDefaultTimeout

_NONE = timedelta(0)

_scale = 1.0


def scaled(timeout: timedelta) -> timedelta:
    """Return the timeout in this run's time; never zero, which would mean "no timeout"."""
    return max(timeout * _scale, timedelta(milliseconds=1)) if timeout > timedelta(0) else timeout


def scale_time(scale: float) -> None:
    """Wrap time and torch.distributed with the scale, once, before the workload is imported."""
    global _scale
    if scale == 1.0:
        return
    _scale = scale
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    from simdist.inside.torch import FileStore, HashStore, PrefixStore, Store, TCPStore

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(float(seconds) * scale)
    for name in _GROUPS:
        _wrap(c10d, dist, name, _DEFAULT)
    _wrap(c10d, dist, "monitored_barrier", None)
    _wrap_store(TCPStore, "__init__", _STORE_DEFAULT)
    for store in (Store, TCPStore, FileStore, HashStore, PrefixStore):
        for name in ("set_timeout", "wait"):
            _wrap_store(store, name, None)


def _called_by_torch() -> bool:
    """True if the calling function was called from inside torch, or from simdist's replacement of torch's code."""
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and _module(caller).startswith("simdist."):
        caller = caller.f_back
    return caller is not None and _module(caller).startswith("torch.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _wrap(module: object, package: object, name: str, default: timedelta | None) -> None:
    function = getattr(module, name, None)
    if function is None:
        return
    signature = inspect.signature(function)

    @functools.wraps(function)
    def with_scaled_timeout(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments.get("timeout")
        # Torch passes on timeouts that are scaled already.
        timeout = given if given is not None and _called_by_torch() else scaled(given or default or _NONE)
        if timeout:
            bound.arguments["timeout"] = timeout
        return function(*bound.args, **bound.kwargs)

    for place in (module, package):
        if getattr(place, name, None) is function:
            setattr(place, name, with_scaled_timeout)


def _wrap_store(store: type, name: str, default: timedelta | None) -> None:
    method: Callable[..., object] | None = store.__dict__.get(name)
    if method is None:
        return

    @functools.wraps(method)
    def with_scaled_timeout(self: object, *args: object, **kwargs: object) -> object:
        if _called_by_torch():
            return method(self, *args, **kwargs)
        args = tuple(scaled(value) if isinstance(value, timedelta) else value for value in args)
        given = {key: scaled(value) if isinstance(value, timedelta) else value for key, value in kwargs.items()}
        if default is not None and "timeout" not in given and not any(isinstance(v, timedelta) for v in args):
            given["timeout"] = scaled(default)
        return method(self, *args, **given)

    setattr(store, name, with_scaled_timeout)
