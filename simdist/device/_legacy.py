"""Names that older programs use: `torch.cuda.FloatTensor` and its like, `set_default_tensor_type`, `torch.Stream`.

In torch these are static C types, which a CPU build refuses to make objects of. Ranks find classes in their place that
make tensors of devices; for `isinstance`, and all else that is asked of them, they are torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from simdist.process import Patches, current_process

__all__ = ["install"]

_NAMES = (
    *("BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor"),
    *("IntTensor", "LongTensor", "ShortTensor"),
)
_tensors: Any = torch  # its legacy types are made when it is imported


class _Standing(type):
    """Metaclass of a name that stands for a class of torch's."""

    real: type
    make: Callable[..., object]

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if current_process() is None:
            return cls.real(*args, **kwargs)
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.real)

    def __getattr__(cls, name: str) -> object:
        return getattr(cls.real, name)

    def __repr__(cls) -> str:
        return repr(cls.real)


@functools.cache
def _tensor_class(name: str, real: type) -> type:
    on_the_host = getattr(_tensors, name)
    dtype: torch.dtype = on_the_host.dtype

    def make(*args: Any, device: torch.device | str | int | None = None) -> torch.Tensor:
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
    return _Standing(f"torch.cuda.{name}", (), {"real": real, "make": staticmethod(make), "__module__": "torch.cuda"})


@functools.cache
def _stream_class(real: type) -> type:
    def make(*args: Any, **kwargs: Any) -> object:
        named = args[0] if args else kwargs.get("device")
        if "stream_id" in kwargs or (named is not None and torch.device(named).type != "cuda"):
            return real(*args, **kwargs)
        priority = args[1] if len(args) > 1 else kwargs.get("priority", 0)
        return torch.cuda.Stream(named, priority=priority)  # type: ignore[no-untyped-call]

    kept = {"real": real, "make": staticmethod(make), "__new__": real.__new__, "__module__": real.__module__}
    return _Standing("Stream", (), kept)


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
    """Put them where ranks find them."""
    for name in _NAMES:
        patches.replace(torch.cuda, name, _tensor_class(name, getattr(torch.cuda, name)))
    patches.replace(torch, "Stream", _stream_class(torch.Stream))
    patches.wrap(torch, "set_default_tensor_type", _of_default_type)
