"""A person debugs a rank: `breakpoint()`, `pdb.set_trace()`."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from simdist.process import Extra, Runtime, current_runtime

__all__ = ["debugging", "remember_streams"]

_STREAMS: Extra[tuple[TextIO, TextIO]] = Extra("streams of ranks")


def remember_streams(runtime: Runtime) -> None:
    """Called on the host's thread once the world is there: the streams that its ranks write to."""
    runtime.extras[_STREAMS] = sys.stdout, sys.stderr


def debugging(begins: bool, debugger: Any) -> None:
    """The calling rank stops for a person, or goes on."""
    runtime = current_runtime()
    if runtime is None:
        return
    runtime.simulation.watched = not begins
    if begins:
        debugger.nosigint = True  # a handler for Ctrl-C can be set in a process's main thread only
    else:
        # pytest captures again, by putting the host's streams in place.
        streams = runtime.extras[_STREAMS]
        sys.stdout, sys.stderr = streams
