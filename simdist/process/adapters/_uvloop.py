"""uvloop on a rank: its loops are asyncio's.

uvloop waits in C for real time and real sockets. asyncio's loop has the same interface and waits in virtual time.
"""

from __future__ import annotations

import asyncio
import sys

from simdist.process._runtime import Patches, class_on_ranks

__all__ = ["adapt"]


def adapt(patches: Patches) -> None:
    """Let ranks have asyncio's loops; all of uvloop makes loops by its class, and checks them by it."""
    module = sys.modules["uvloop"]
    loop = getattr(module, "Loop", None)
    if isinstance(loop, type):
        patches.replace(module, "Loop", class_on_ranks(loop, asyncio.SelectorEventLoop, asyncio.SelectorEventLoop))
