"""The time zone that a rank has set: `os.environ["TZ"] = ...`, then `time.tzset()`.

C keeps one zone for the whole process and reads it from an environment to which ranks do not write. From the first
`time.tzset` of a rank on, the zone is exchanged at each hand-over; a process begins with that of its TZ.

In doubt: if no rank of a world calls `time.tzset`, a rank that begins with another TZ than the host has the host's.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable

from simdist.inside.python import original
from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Patches, Replacement, current_process, current_runtime
from simdist.process._slots import Slot
from simdist.process.stdlib._environ import encoded_name, host_environ, variable_of

__all__ = ["install"]

_SET: Extra[tuple[_Zone, Slot[str | None]]] = Extra("time zone in place")


def _of_host() -> str | None:
    value = host_environ().get(encoded_name("TZ"))
    return None if value is None else os.fsdecode(value)


class _Zone:
    """The time zone that is in place."""

    def __init__(self) -> None:
        self.name = _of_host()

    def load(self, name: str | None) -> None:
        if name == self.name:
            return
        self.name = name
        if name is None:
            original(os.unsetenv)("TZ")
        else:
            original(os.putenv)("TZ", name)
        original(time.tzset)()


def _begin(process: SimProcess, of_host: str | None) -> str | None:
    return variable_of(process, "TZ")


def _tzset(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def tzset() -> None:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            original()
            return
        known = runtime.extras.get(_SET)
        if known is None:
            zone = _Zone()
            known = runtime.extras[_SET] = zone, Slot("time zone", lambda: zone.name, zone.load, _begin)
        runtime.separate(known[1])
        known[0].load(variable_of(process, "TZ"))

    return tzset


_REPLACEMENTS = (Replacement(time, "tzset", _tzset),) if hasattr(time, "tzset") else ()


def install(patches: Patches) -> None:
    """Let ranks set their time zone."""
    patches.redirect(_REPLACEMENTS)
