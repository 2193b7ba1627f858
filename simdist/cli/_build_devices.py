"""`simdist build-devices`: the kernels of virtual devices in C++."""

from __future__ import annotations

import time

from simdist.cli._console import say
from simdist.cli._progress import LiveLine

__all__ = ["build"]


def build(*, again: bool) -> int:
    """Build the kernels if they are missing, and return the exit code.

    Raises:
        UnsupportedError: there is no g++, or it rejects the source.
    """
    from simdist.device import build_kernels, built_kernels

    path = built_kernels()
    if path.exists() and not again:
        say(f"built already: {path}")
        _tidy()
        return 0
    begin = time.perf_counter()
    with LiveLine() as line:
        line.say("building the kernels of virtual devices with g++, which takes some 15 s")

        def waiting() -> None:
            line.say(f"building the kernels of virtual devices with g++: {time.perf_counter() - begin:.0f} s")

        build_kernels(waiting)
    say(f"built: {path}")
    say("worlds with devices take them from now on; SIMDIST_DEVICE_KERNELS=python turns them off")
    _tidy()
    return 0


def _tidy() -> None:
    from simdist.device import remove_old_builds

    for path in remove_old_builds():
        say(f"removed what an older torch or another simdist has built: {path}")
