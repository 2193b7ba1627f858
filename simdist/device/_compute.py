"""The time that kernels take on their streams, by the model of a device: arithmetic as torch counts it, and bytes.

Matrix products, convolutions and attention have the floating-point operations that `torch.utils.flop_counter` counts;
every kernel reads its tensors once and writes its results once. Views, allocations and questions take no time.

In doubt: kernels that torch fuses on a GPU are computed one by one here, and cost more; nothing overlaps on one stream;
the host's time to launch kernels is not modelled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from simdist.cluster import DeviceModel
from simdist.device._events import KernelQueued
from simdist.device._idle import is_idle
from simdist.device._marks import after
from simdist.device._state import present_or_none
from simdist.device._torch_core import core
from simdist.inside.torch import Operator, schema_of

__all__ = ["timed"]

Tensor = torch.Tensor
Kernel = Callable[..., object]
_COPIES = ("aten._to_copy.default", "aten.copy_.default", "aten._local_scalar_dense.default")


def timed(model: DeviceModel, varies: float = 0.0) -> Callable[[Operator, Kernel], Kernel]:
    """Return a wrapper for `_kernels.wrap_kernels`: kernels take time, and up to `varies` of it more."""
    from torch.utils.flop_counter import flop_registry  # needed only here

    def wrap(op: Operator, kernel: Kernel) -> Kernel:
        if is_idle(op):
            return kernel
        if str(op) in _COPIES:
            return _copy(kernel, model, varies, reads_value=str(op) == _COPIES[-1])
        count = flop_registry.get(op.overloadpacket)
        schema = schema_of(op)
        makes = not all(each.alias_info is not None for each in schema.returns)
        name = op.overloadpacket.__name__
        changed = [
            place
            for place, each in enumerate(schema.arguments)
            if each.alias_info is not None and each.alias_info.is_write and not each.kwarg_only
        ]

        def call(*args: object, **kwargs: object) -> object:
            result = kernel(*args, **kwargs)
            read = list(_on_device((*args, *kwargs.values())))  # or written, if the caller has given it for that
            written = [*_on_device(args[place] for place in changed), *(_on_device((result,)) if makes else ())]
            if read or written:
                first = (*read, *written)[0]
                flops = 0 if count is None else count(*args, **kwargs, out_val=result)
                size = _bytes_of(read) + _bytes_of(written)
                duration_ns = model.kernel_ns(flops, size, element_bytes=first.element_size())
                _take(first.get_device(), name, duration_ns, varies)
            return result

        return call

    return wrap


def _copy(kernel: Kernel, model: DeviceModel, varies: float, *, reads_value: bool) -> Kernel:
    """Wrap a copy. Its time passes before the values are there, so a wait for them waits for the copy."""

    def call(*args: object, **kwargs: Any) -> object:
        (source, *more) = reversed([each for each in args[:2] if isinstance(each, Tensor)])
        target = more[0].device if more else kwargs.get("device") or source.device
        if reads_value:
            target = torch.device("cpu")
        size = source.numel() * source.element_size()
        devices = [place.index for place in (source.device, target) if place.type == "cuda"]
        devices = [core().device().index if index is None else index for index in devices]
        if len(devices) == 1:
            _take(devices[0], "copy", model.copy_ns(size), varies)
        elif devices:
            _take(devices[0], "copy", model.kernel_ns(0, 2 * size), varies, and_then=devices[1])
        return kernel(*args, **kwargs)

    return call


def _take(index: int, name: str, duration_ns: int, varies: float, and_then: int | None = None) -> None:
    """Keep a device's current stream busy for this long, or longer if it varies; that of `and_then` waits for it."""
    devices = present_or_none()
    if devices is None or not duration_ns:
        return
    number = core().stream(index)
    streams = devices.streams
    streams.run_backward_on(index, number)
    if varies:
        duration_ns += streams.process.simulation.policy.jitter_ns(round(duration_ns * varies))
    bus = streams.process.simulation.bus
    if bus.heard and bus.hears(KernelQueued):
        begin = streams.mark(index, number)
        end = after(begin, duration_ns)
        streams.end_with(index, number, end)
        bus.report(KernelQueued(streams.process.rank, index, number, name, begin, end))
    else:
        streams.enqueue(index, number, duration_ns)
    if and_then is not None and and_then != index:
        streams.wait(and_then, core().stream(and_then), streams.mark(index, number))


def _on_device(values: Iterable[object]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.is_cuda:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _on_device(value)


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; of an expanded one, the bytes that lie in memory."""
    return sum(_extent(tensor) * tensor.element_size() for tensor in tensors)


def _extent(tensor: Tensor) -> int:
    lengths = itertools.compress(tensor.shape, tensor.stride())  # without dimensions of stride 0
    extent = 1
    for length in lengths:
        extent *= length
    return extent if tensor.numel() else 0
