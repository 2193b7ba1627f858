"""The few places inside torch's C++ that decide whether there are CUDA devices: switched on and off.

A CPU build of torch has all that CUDA tensors need but three objects, and accepts them at any time; in a CUDA build
they replace its own. `simdist.inside` knows their layout:

- The *device guard* knows the current device and the current streams of each thread. It is the one that torch has for
  its own tests (for eight devices; a host of a cluster may have no more).
- The *hooks* say whether there is an accelerator, how many devices, and where pinned memory comes from.
- A flag remembers that `torch.cuda._lazy_init` was called. It is taken back when a world ends.

Hooks and flag are switched on when a world with devices starts and off when it ends. The guard of a CPU build stays
where it is from the first such world on: tensors that outlive theirs are read with it, and nothing asks it how many
devices there are but autograd's engine, when it starts, for which it comes too late. In a CUDA build it stays as long
as there are such tensors.

In doubt: places in tables and the layout of a `DataPtr` are torch's own (2.13, 2.14). Each is tested when it is first
installed, and a world is refused where the test fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

from simdist.device._cuda_build import require_unused
from simdist.errors import UnsupportedError
from simdist.inside.torch import CxxDevice, device_guard, device_hooks

__all__ = ["Core", "core", "current_device", "current_stream", "select_stream", "why_no_devices"]


class Core:
    """The devices as C++ sees them. "Current" always means: of the calling thread."""

    def __init__(self) -> None:
        guard, hooks = device_guard(), device_hooks()
        self._hooks = hooks
        self.device: Callable[[], CxxDevice] = guard.device
        """The current device."""
        self.select: Callable[[int], None] = guard.select
        """Make a device the current one."""
        self.stream: Callable[[int], int] = guard.stream
        """The number of a device's current stream."""
        self.select_stream: Callable[[int, int], None] = guard.select_stream
        """Make a stream the current one of its device."""
        self.give_back_guard: Callable[[], None] = guard.give_back
        """Put the guard of a CUDA build in its place again; where there was none, ours stays."""
        self.begun: Callable[[], AbstractContextManager[None]] = hooks.begun
        """Inside, torch takes it that CUDA has begun, and does not begin it."""

    def count_by(self, count: Callable[[], int]) -> None:
        """Let `count` decide how many devices there are, on all threads."""
        self._hooks.count = count

    def switch(self, *, on: bool) -> None:
        """Let C++ find devices, or restore what it found before."""
        self._hooks.switch(on=on)


@functools.cache
def core() -> Core:
    """Return the `Core` of this interpreter, made on first use.

    Raises:
        UnsupportedError: this torch keeps one of these objects in another way.
    """
    return Core()


def why_no_devices() -> str:
    """Why virtual devices do not work with this torch, empty if they do. Called outside worlds."""
    try:
        require_unused()
        core()
    except UnsupportedError as error:
        return str(error)
    return ""


def current_device() -> int:
    """Return the number of the calling thread's current device."""
    return core().device().index


def current_stream(index: int) -> int:
    """Return the number of the calling thread's current stream of a device."""
    return core().stream(index)


def select_stream(index: int, number: int) -> None:
    """Make a stream the current one of its device, for the calling thread."""
    core().select_stream(index, number)
