"""Devices that break: calls raise CUDA's errors from then on, in the words of torch's check around it.

An error that corrupts a context is sticky: every call of the process that launches, copies or waits returns it from
then on, until the process ends. So all kernels are wrapped by a check from the first failure of a world on; waits find
the error in `Streams.error`; calls that only ask for a size, or make a view, go on. All devices of a process break at
once, because a process rarely uses two.

Running out of memory is an error of one call: the next kernel that makes a tensor fails as if another process held all
free memory, and the one after it does not.

(NCCL is not asked: torch looks whether a stream is being captured before it calls NCCL, and that fails first.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from simdist.device._idle import is_idle
from simdist.device._memory import Account
from simdist.device._state import account_of, cuda_error, devices_of, present_or_none
from simdist.device.kernels._kernels import also_wrap
from simdist.inside.torch import Operator, schema_of
from simdist.process import SimProcess

__all__ = ["break_devices"]

Tensor = torch.Tensor
Kernel = Callable[..., object]


def break_devices(process: SimProcess, kind: str) -> BaseException | None:
    """Break the devices of a process: "ecc" and "lost" for good, "oom" for its next allocation.

    Returns the error that calls raise from now on; None for "oom", for devices that are broken already, and without
    any.
    """
    devices = devices_of(process)
    if devices is None or devices.streams.failure is not None:
        return None
    also_wrap(_looking)
    if kind == "oom":
        devices.streams.shortages += 1
        return None
    devices.fail(functools.partial(cuda_error, kind))
    return devices.streams.error


def _looking(op: Operator, kernel: Kernel) -> Kernel:
    """Return a wrapper for `_kernels.also_wrap`: a kernel raises the failure of its process's devices."""
    idle = is_idle(op)
    makes = any(each.alias_info is None for each in schema_of(op).returns)

    def call(*args: object, **kwargs: object) -> object:
        devices = present_or_none()
        if devices is None:
            return kernel(*args, **kwargs)
        streams = devices.streams
        if streams.failure is not None and not idle:
            raise streams.failure()
        made = kernel(*args, **kwargs)
        if streams.shortages and makes:
            new = _largest(made)
            if new is not None:
                streams.shortages -= 1
                raise _held_by_another(account_of(new.get_device()), new.nbytes)
        return made

    return call


def _largest(made: object) -> Tensor | None:
    """Return the largest tensor of a device among results."""
    values = made if isinstance(made, (list, tuple)) else (made,)
    found = [each for each in values if isinstance(each, Tensor) and each.is_cuda and each.numel()]
    return max(found, key=lambda each: each.nbytes, default=None)


def _held_by_another(account: Account, size: int) -> torch.OutOfMemoryError:
    """Return the error of an allocation while a process that is no rank holds all free memory."""
    other = type(account)(account.device, account.index, account.pid + _FAR)
    try:
        other.reserved = account.device.free
        return account.out_of_memory(size)
    finally:
        other.close()


_FAR = 1_000_000  # distance from the process ids of a world
