"""Support for a person who debugs a rank: `breakpoint()`, `pdb.set_trace()`."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from simdist.process import Extra, Runtime, current_runtime

__all__ = ["debugging", "remember_streams"]

_STREAMS: Extra[tuple[TextIO, TextIO]] = Extra("streams of ranks")


def remember_streams(runtime: Runtime) -> None:
    """Remember the streams that the ranks write to; called on the host's thread once the world has started."""
    runtime.extras[_STREAMS] = sys.stdout, sys.stderr


def debugging(begins: bool, debugger: Any) -> None:
    """Called when the calling rank stops for a person, or continues."""
    runtime = current_runtime()
    if runtime is None:
        return
    runtime.simulation.watched = not begins
    if begins:
        debugger.nosigint = True  # a handler for Ctrl-C can be set in a process's main thread only
    else:
        # pytest resumes its capture by installing the host's streams.
        streams = runtime.extras[_STREAMS]
        sys.stdout, sys.stderr = streams
