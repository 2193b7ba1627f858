"""UUIDs made of a clock and of the machine's address.

Module `uuid` keeps the last time that it used, and asks the network interfaces for an address. A rank has its own last
time, in virtual time, and an address of its host. The functions stay Python's, but run over the process's own copy of
the module's variables. (Random UUIDs come from `os.urandom`, as usual.)
"""

from __future__ import annotations

import functools
import hashlib
import types
import uuid
from collections.abc import Callable
from typing import Any

from simdist.inside.python import original
from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Patches, Replacement, current_process, current_runtime

__all__ = ["install"]

_MULTICAST = 1 << 40  # marks an address that no interface has, as RFC 4122 requires
_VARIABLES: Extra[dict[SimProcess, dict[str, Any]]] = Extra("uuid")
_OF_TIME = ("uuid1", "uuid6", "uuid7", "getnode")


def _variables_of(process: SimProcess) -> dict[str, Any]:
    """The variables that the module's functions read and write, of one process."""
    runtime = current_runtime()
    assert runtime is not None
    of_all = runtime.extras.setdefault(_VARIABLES, {})
    if process not in of_all:
        words = f"{runtime.seed} host {process.host.name}"
        node = int.from_bytes(hashlib.shake_128(words.encode()).digest(6)) | _MULTICAST
        own = of_all[process] = dict(vars(uuid))
        own |= {name: None for name in own if name.startswith(("_last_", "_generate_time", "_UuidCreate"))}
        own["_node"] = node
        for replacement in _REPLACEMENTS:
            real = original(replacement.function)
            own[replacement.name] = types.FunctionType(real.__code__, own, replacement.name, real.__defaults__)
    return of_all[process]


def _of_process(real: Callable[..., uuid.UUID | int]) -> Callable[..., uuid.UUID | int]:
    name = real.__name__

    @functools.wraps(real)
    def make(*args: object, **kwargs: object) -> uuid.UUID | int:
        process = current_process()
        if process is None:
            return real(*args, **kwargs)
        if name in ("uuid1", "uuid6") and len(args) < 2 and kwargs.get("clock_seq") is None:
            # Python would draw one from the global generator, which ranks may have seeded alike.
            kwargs["clock_seq"] = process.pid & 0x3FFF
        made: uuid.UUID | int = _variables_of(process)[name](*args, **kwargs)
        return made

    return make


_REPLACEMENTS = tuple(
    Replacement(uuid, name, _of_process)
    for name in _OF_TIME
    if isinstance(getattr(uuid, name, None), types.FunctionType)
)


def install(patches: Patches) -> None:
    """Replace the functions that make UUIDs of time."""
    patches.redirect(_REPLACEMENTS)
