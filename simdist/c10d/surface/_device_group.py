"""A group in a world with devices: tensors of a device go through the host's memory, as in Gloo.

ProcessGroupGloo (torch 2.13) copies a tensor of a device to pinned memory on the current stream, works on the copy, and
copies back when it is done. It has two operations for CPU tensors only; one of them passes the device's address to a
socket. Here a rank waits for its stream before the operation begins. So a call with `async_op=True` parks where Gloo's
own thread would, which only shows if the stream has work that takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from simdist.c10d.calls import MESSAGES, METHODS
from simdist.c10d.calls._unseen import dispatch_modes, function_modes
from simdist.c10d.surface._group import SimProcessGroup
from simdist.c10d.surface._identity import GroupBackend
from simdist.c10d.surface._layout import then
from simdist.c10d.surface._memory import is_plain_or_sparse
from simdist.c10d.surface._modes import visible
from simdist.device import HostCopies
from simdist.errors import UnsupportedError

if TYPE_CHECKING:
    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.surface._identity import DeviceLike

__all__ = ["DeviceProcessGroup"]

_REFUSED = ("allreduce_coalesced",)  # with torch's text
_CRASHING = (*MESSAGES, "recv_anysource", "allgather_coalesced")


class DeviceProcessGroup(SimProcessGroup):
    """A group that also takes tensors of devices."""

    def _get_backend(self, device: DeviceLike) -> GroupBackend:
        return self if torch.device(device).type == "cuda" else super()._get_backend(device)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    _bound: torch.device | None = None

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the program passed to `init_process_group`."""
        return self._bound

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound = device


def _has_devices(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    return isinstance(value, (list, tuple)) and any(_has_devices(each) for each in value)


def _through_host(name: str, method: Callable[..., SimWork]) -> Callable[..., SimWork]:
    looks_itself = name == "allreduce"

    def call(self: DeviceProcessGroup, *args: object, **kwargs: object) -> SimWork:
        if looks_itself and (dispatch_modes() or function_modes() or not is_plain_or_sparse(args)):
            return self.allreduce_in_modes(*args, **kwargs)
        given = *args, *kwargs.values()
        if not any(_has_devices(each) for each in given):
            return method(self, *args, **kwargs)
        copies = HostCopies()
        lowered = [copies.lower(each) for each in args]
        try:
            work = method(self, *lowered, **{name: copies.lower(each) for name, each in kwargs.items()})
        except RuntimeError as error:
            raise _naming_device(error, given) from None
        work.outputs = copies.originals(work.outputs)

        def deliver() -> None:
            if work.error is None:
                copies.copy_back()

        # Not `then`, whose action runs before those of the operation itself: this one must be the last. Sparse tensors
        # are made anew, on their own rank, after all these actions.
        if work.done:
            deliver()
        elif copies.sparse:
            then(work, lambda: work.process.deliver(copies.copy_back))
        else:
            work.after = [*(work.after or ()), deliver]
        return work

    return call


def _naming_device(error: RuntimeError, args: tuple[object, ...]) -> RuntimeError:
    """Return the error of a call on copies, with the device of the original tensors."""
    text = str(error)
    if type(error) is not RuntimeError or "device=cpu" not in text:
        return error
    return RuntimeError(text.replace("device=cpu", f"device={_first_device(args)}"))


def _first_device(value: object) -> torch.device | None:
    if isinstance(value, torch.Tensor):
        return value.device if value.is_cuda else None
    if not isinstance(value, (list, tuple)):
        return None
    return next((found for each in value if (found := _first_device(each)) is not None), None)


def _refusing(name: str, method: Callable[..., SimWork]) -> Callable[..., SimWork]:
    def call(self: DeviceProcessGroup, *args: object, **kwargs: object) -> SimWork:
        if any(_has_devices(each) for each in (*args, *kwargs.values())):
            if name in _REFUSED:
                raise RuntimeError(f"ProcessGroupGloo::{name}: unsupported device type cuda")
            raise UnsupportedError(
                f"Gloo's {name} takes CPU tensors only; given the address of a device, a real process fails in its "
                "socket. Send tensor.cpu(), or use another collective"
            )
        return method(self, *args, **kwargs)

    return call


for _name in (name for name, row in METHODS.items() if row.tensors):
    _method = getattr(SimProcessGroup, _name)
    _made = (_refusing if _name in _REFUSED or _name in _CRASHING else _through_host)(_name, _method)
    _made.__name__, _made.__doc__ = _name, _method.__doc__
    setattr(DeviceProcessGroup, _name, _made)
visible(DeviceProcessGroup)
