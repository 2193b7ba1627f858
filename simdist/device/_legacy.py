"""Names that older programs use: `torch.cuda.FloatTensor` and its like, `set_default_tensor_type`; and `torch.Stream`.

`torch.Stream` and `torch.Event` are those of any accelerator. In torch all these are static C types, of which a CPU
build refuses to make objects. Ranks find classes in their place that make objects of devices; for `isinstance`, and in
all other respects, they are torch's.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from simdist.device._state import present
from simdist.process import Patches, class_on_ranks, current_process

__all__ = ["install"]

_NAMES = (
    *("BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor"),
    *("IntTensor", "LongTensor", "ShortTensor"),
)
_NOT_RECOMMENDED = (  # torch/csrc/tensor/python_tensor.cpp (2.13)
    "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as "
    "torch.tensor(data, dtype=*, device='cuda') to create tensors."
)
_tensors: Any = torch  # its legacy types are made when it is imported


@functools.cache
def _tensor_class(name: str, real: type) -> type:
    on_the_host = getattr(_tensors, name)
    dtype: torch.dtype = on_the_host.dtype

    def make(*args: Any, device: torch.device | str | int | None = None) -> torch.Tensor:
        state = present()
        if not state.has_warned_of_types or torch.is_warn_always_enabled():
            state.has_warned_of_types = True
            warnings.warn(_NOT_RECOMMENDED, UserWarning, stacklevel=3)
        device = torch.device("cuda" if device is None else device)
        if device.type != "cuda":
            raise RuntimeError(
                f"legacy constructor expects device type: cuda but device type: {device.type} was passed"
            )
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].is_cuda and args[0].dtype == dtype:
            return args[0].detach()
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        if all(isinstance(size, int) for size in sizes):
            return torch.empty(sizes or (0,), dtype=dtype, device=device)
        made: torch.Tensor = on_the_host(*args)
        return made.to(device)

    # The whole name, for that is what C++ reads of a type: `tensor.type(torch.cuda.FloatTensor)`.
    return class_on_ranks(real, make, name=f"torch.cuda.{name}", module="torch.cuda")


@functools.cache
def _stream_class(real: type) -> Any:
    def make(*args: Any, **kwargs: Any) -> object:
        named = args[0] if args else kwargs.get("device")
        if "stream_id" in kwargs or (named is not None and torch.device(named).type != "cuda"):
            return real(*args, **kwargs)
        priority = args[1] if len(args) > 1 else kwargs.get("priority", 0)
        return torch.cuda.Stream(named, priority=priority)  # type: ignore[no-untyped-call]

    stream: Any = class_on_ranks(real, make)
    stream.__new__ = real.__new__
    return stream


@functools.cache
def _event_class(real: type) -> Any:
    def make(device: Any = None, enable_timing: bool = False, **others: bool) -> object:
        if device is not None and torch.device(device).type != "cuda":
            return real(device, enable_timing=enable_timing, **others)
        return torch.cuda.Event(enable_timing=enable_timing, **others)  # type: ignore[no-untyped-call]

    event: Any = class_on_ranks(real, make)
    event.__new__ = real.__new__
    return event


def _of_default_type(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def set_default_tensor_type(t: type | str) -> None:
        name = t if isinstance(t, str) else getattr(t, "__name__", "")
        on_devices = name.startswith("torch.cuda.")
        if current_process() is None:
            original(t)
            return
        original(f"torch.{name.rpartition('.')[2]}" if on_devices else t)
        torch.set_default_device("cuda" if on_devices else None)

    return set_default_tensor_type


def install(patches: Patches) -> None:
    """Put the classes where ranks find them."""
    for name in _NAMES:
        patches.replace(torch.cuda, name, _tensor_class(name, getattr(torch.cuda, name)))
    patches.replace(torch, "Stream", _stream_class(torch.Stream))
    patches.replace(torch, "Event", _event_class(torch.Event))
    patches.wrap(torch, "set_default_tensor_type", _of_default_type)
