"""Kernels that are not just the CPU's: memory, copies, random numbers, and operators that only GPUs have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simdist.device._aliases import NotYet, account_holding, exchange, host, in_its_storage, lowered, raised
from simdist.device._generators import DeviceGenerator, Numbers, device_generator
from simdist.device._memory import Account
from simdist.device._state import account_of, present, present_or_none
from simdist.device.kernels import _attention, _batch_norm, _layer_norm
from simdist.device.kernels._deferred import copy_later, defer, launching
from simdist.errors import UnsupportedError
from simdist.inside.torch import CPU, redispatching

__all__ = ["KERNELS", "NO_HOST_MEMORY", "account_on", "drawn_from", "grow", "memory_error", "numbers_of"]
__all__ += ["synchronize_current", "wait_on_host"]

Tensor = torch.Tensor
_aten = torch.ops.aten
NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"


# -- what several kernels do -----------------------------------------------------------------------------------------


def account_on(seen: Tensor | None, index: int) -> Account:
    """Return the account for an operator's results: that of a tensor that it reads, if there is any."""
    known = None if seen is None else account_holding(seen)
    return account_of(index) if known is None else known


def drawn_from(generator: torch.Generator | Numbers | None, index: int) -> torch.Generator:
    """Return a CPU generator for one operation on a device, from the given generator or the device's own.

    Raises:
        RuntimeError: the generator is the CPU's, in torch's words.
    """
    return generator.generator() if isinstance(generator, Numbers) else _source(generator, index).draw()


def numbers_of(generator: torch.Generator | None, index: int) -> Numbers:
    """Draw the numbers of one operation on a device that may run later; generator and errors as with `drawn_from`."""
    return _source(generator, index).draw_later()


def _source(generator: torch.Generator | None, index: int) -> DeviceGenerator:
    if generator is None:
        account_of(index)  # begins CUDA
        return present().generators[index]
    known = device_generator(generator)
    if known is None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    return known


def grow(tensor: Tensor, made: Tensor) -> None:
    """Give a tensor of a device the values and the shape of the CPU kernel's result, as `resize_` and a copy do.

    All tensors of its storage see them.
    """
    place = tensor.storage_offset()
    if place == _numel_of_storage(tensor) == 0:
        _give(tensor, made)
        _restride(tensor, made, made.storage_offset())
        return
    _resize_(tensor, made.shape)
    _restride(tensor, made, place)
    host(tensor).copy_(made)


def _give(tensor: Tensor, made: Tensor) -> None:
    """Give the storage of a device's tensor the memory of a CPU tensor."""
    there = raised(made, account_on(tensor, tensor.get_device()))
    exchange(tensor.untyped_storage(), there.untyped_storage())


def _restride(tensor: Tensor, like: Tensor, place: int | torch.SymInt) -> None:
    redispatching(_aten.as_strided_.default)(CPU, tensor, like.shape, like.stride(), place)


def memory_error(error: RuntimeError, account: Account) -> RuntimeError:
    """Return the same error; or, if the host itself has no more memory, that of a device without memory."""
    if NO_HOST_MEMORY not in str(error):
        return error
    full = account.out_of_memory(0)
    full.add_note("the memory of the machine that simulates ran out, not that of the virtual device")
    return full


def synchronize_current(index: int) -> None:
    """Park until a device's current stream is done, because a value is wanted on the host."""
    devices = present_or_none()
    if devices is not None:
        devices.streams.synchronize_current(index)


def wait_on_host(index: int) -> None:
    """As `synchronize_current`, where c10 waits for a device and `torch.cuda.set_sync_debug_mode` reports it.

    Raises:
        RuntimeError: the mode is "error".
    """
    devices = present_or_none()
    if devices is not None:
        if devices.streams.sync_debug_mode:
            devices.streams.report_wait()
        devices.streams.synchronize_current(index)


# -- memory and copies -----------------------------------------------------------------------------------------------


_deterministic: Callable[[], bool] = torch.are_deterministic_algorithms_enabled
_filling: Any = torch.utils.deterministic
# Larger pieces come from the system as they are asked for, full of zeros: malloc's threshold for that is no higher.
_CLEARED_BYTES = 64 << 20


def _cleared(made: Tensor) -> Tensor:
    """Clear memory, so that it is the same in each run, as a GPU gives it to a process; malloc's has old contents."""
    if made.nbytes > _CLEARED_BYTES or (_deterministic() and _filling.fill_uninitialized_memory):
        return made
    return made.zero_()


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    _refuse_pinned(pin_memory)
    account = account_of(device.index)
    dtype = dtype or torch.get_default_dtype()
    account.require(math.prod(size) * dtype.itemsize)
    try:
        made = _aten.empty.memory_format(size, dtype=dtype, layout=layout, device="cpu", memory_format=memory_format)
    except RuntimeError as error:
        raise memory_error(error, account) from None
    return raised(_cleared(made), account)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device,
    pin_memory: bool | None = None,
) -> Tensor:
    _refuse_pinned(pin_memory)
    account = account_of(device.index)
    dtype = dtype or torch.get_default_dtype()
    if 0 not in size:
        extent = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        account.require(extent * dtype.itemsize)
    try:
        made = _aten.empty_strided(size, stride, dtype=dtype, layout=layout, device="cpu")
    except RuntimeError as error:
        raise memory_error(error, account) from None
    return raised(_cleared(made), account)


def _zeros(size: Sequence[int], **kwargs: Any) -> Tensor:
    """For a tensor of zeros without memory, as derivatives make it: here it has memory. A capsule can't be without."""
    return torch.zeros(size, **kwargs)


def _no_nested(*_: object, **__: object) -> Tensor:
    raise UnsupportedError(
        "a virtual device has no nested tensors of strided layout; make them with layout=torch.jagged, or keep them on "
        "the CPU"
    )


def _set_to_nothing(self: Tensor) -> Tensor:
    nothing = raised(torch.empty(0, dtype=self.dtype, device="cpu"), account_on(self, self.get_device()))
    redispatching(_aten.set_.source_Tensor)(CPU, self, nothing)
    return self


def _refuse_pinned(pin_memory: bool | None) -> None:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


def _to_copy(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> object:
    index = self.get_device()
    to_host = device is not None and device.type != "cuda"
    if not non_blocking and (to_host or index < 0):  # a blocking copy from or to the host (native/cuda/Copy.cu, 2.13)
        wait_on_host(index if index >= 0 else account_of(device.index).index)
    same_device = device is None or (not to_host and device.index == index)
    try:
        there = lowered(self)
    except NotYet as later:
        if same_device:
            kinds: dict[str, object] = {"dtype": dtype, "layout": layout, "memory_format": memory_format}
            again = functools.partial(_to_copy, device=device, pin_memory=pin_memory, non_blocking=non_blocking)
            return defer(_aten._to_copy.default, _aten._to_copy, (self,), kinds, later, again)
        if non_blocking and device.type == "cpu":
            empty = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype).zero_()
            target: Tensor = _aten._to_copy(empty, dtype=dtype, layout=layout, memory_format=memory_format).pin_memory()
            copy_later(target, self, later)
            return target
        there = host(self)
    made = _aten._to_copy(
        there,
        dtype=dtype,
        layout=layout,
        device="cpu",
        pin_memory=pin_memory,
        # Torch uses pinned memory for results of non-blocking copies.
        non_blocking=non_blocking,
        memory_format=memory_format,
    )
    if to_host:
        made = made.pin_memory() if non_blocking else made
        return made if device.type == "cpu" else made.to(device)
    return raised(made, account_on(self, index) if same_device else account_of(device.index))


def _copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    target, source = self.get_device(), src.get_device()
    if target < 0:
        if not (non_blocking and self.is_pinned()):
            wait_on_host(source)
            _aten.copy_(self, host(src))
            return self
        try:
            _aten.copy_(self, lowered(src))
        except NotYet as later:
            copy_later(self, src, later)
    elif source < 0:
        if not non_blocking:
            wait_on_host(target)
        _aten.copy_(host(self), src)
    else:
        try:
            _aten.copy_(in_its_storage(self), in_its_storage(src))
        except NotYet as later:
            defer(_aten.copy_.default, _aten.copy_, (self, src), {}, later, _copy_)
    return self


def _resize_(self: Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> Tensor:
    if tuple(size) == tuple(self.shape):
        return self
    plan = torch.empty(size, dtype=self.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    offset = self.storage_offset()
    there, needed = _numel_of_storage(self), offset + plan.numel()
    if needed > there and plan.numel():
        memory = torch.empty(needed, dtype=self.dtype, device="cpu")
        if there:
            memory[:there] = host(redispatching(_aten.as_strided.default)(CPU, self, (there,), (1,), 0))
        _give(self, memory)
    _restride(self, plan, offset)
    return self


def _numel_of_storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _local_scalar_dense(self: Tensor) -> object:
    wait_on_host(self.get_device())
    return _aten._local_scalar_dense(host(self))


# -- what draws numbers without saying so ----------------------------------------------------------------------------


def _native_dropout(input: Tensor, p: float, train: bool | None) -> object:
    """As the CPU's kernel, with numbers of the device's generator: the CPU's generator must not advance."""
    draws = train is not False and bool(input.numel())
    numbers = numbers_of(None, input.get_device()) if draws else None
    return _drop(input, p, train, numbers=numbers)


def _dropped(input: Tensor, p: float, train: bool | None, *, numbers: Numbers | None) -> tuple[Tensor, Tensor]:
    if numbers is None:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    kept = torch.empty_like(input, dtype=torch.bool)
    kept.bernoulli_(1 - p, generator=numbers.generator())
    return input.mul(kept).mul_(0.0 if p == 1 else 1 / (1 - p)), kept


_drop = launching(_aten.native_dropout.default, _dropped)


# -- what exists on GPUs only ----------------------------------------------------------------------------------------


def _softmax(name: str) -> tuple[Callable[..., object], Callable[..., object]]:
    """Return kernels for `x.softmax(dtype=float32)` of a half: one kernel on a GPU, which the CPU's refuses."""
    op = getattr(_aten, name).default
    backward_op = getattr(_aten, name + "_backward_data").default

    def forward(self: Tensor, dim: int, half_to_float: bool) -> object:
        return op(self.float() if half_to_float else self, dim, False)

    def backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> object:
        return backward_op(grad, output.to(grad.dtype), dim, grad.dtype).to(input_dtype)

    return launching(op, forward), launching(backward_op, backward)


def _lstm_cell(igates: Tensor, hgates: Tensor, cx: Tensor, ib: Tensor | None = None, hb: Any = None) -> object:
    gates = igates + hgates if ib is None else igates + hgates + ib + hb
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> object:
    i, f, g, o = workspace.chunk(4, 1)
    t = cy.tanh()
    of_cell = torch.zeros_like(cy) if grad_cy is None else grad_cy
    of_hidden = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_cell = of_cell + of_hidden * o * (1 - t * t)
    parts = [
        of_cell * g * i * (1 - i),
        of_cell * cx * f * (1 - f),
        of_cell * i * (1 - g * g),
        of_hidden * t * o * (1 - o),
    ]
    gates = torch.cat(parts, 1)
    return gates, of_cell * f, gates.sum(0) if has_bias else gates.new_empty(0)


def _gru_cell(igates: Tensor, hgates: Tensor, hx: Tensor, ib: Tensor | None = None, hb: Any = None) -> object:
    inputs = igates if ib is None else igates + ib
    hidden = hgates if hb is None else hgates + hb
    (ir, iz, new), (hr, hz, old) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * old).tanh()
    return (hx - n) * z + n, torch.cat([r, z, n, hx, old], 1)


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> object:
    r, z, n, hx, old = workspace.chunk(5, 1)
    of_new = grad_hy * (1 - z) * (1 - n * n)
    of_reset = of_new * old * (1 - r) * r
    of_update = grad_hy * (hx - n) * (1 - z) * z
    inputs, hidden = torch.cat([of_reset, of_update, of_new], 1), torch.cat([of_reset, of_update, of_new * r], 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (inputs.new_empty(0), hidden.new_empty(0))
    return inputs, hidden, grad_hy * z, *biases


# -- the table ------------------------------------------------------------------------------------------------------

_LIBRARIES, _OVERLOADS = ("cudnn", "miopen"), ("", ".Tensor")  # of GPUs, with a check whether they support the call
KERNELS: dict[str, Callable[..., object]] = {
    "aten::empty.memory_format": _empty,
    "aten::empty_strided": _empty_strided,
    "aten::_efficientzerotensor": _zeros,
    "aten::set_": _set_to_nothing,
    # `TransformerEncoder` takes the way without nested tensors: its padding is computed, where a GPU gives zeros.
    "aten::_nested_tensor_from_mask_left_aligned": lambda *_: False,
    "aten::_nested_tensor_from_mask": _no_nested,
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy_,
    "aten::resize_": _resize_,
    "aten::_local_scalar_dense": _local_scalar_dense,
    "aten::native_dropout": _native_dropout,
    "aten::_softmax": _softmax("_softmax")[0],
    "aten::_softmax_backward_data": _softmax("_softmax")[1],
    "aten::_log_softmax": _softmax("_log_softmax")[0],
    "aten::_log_softmax_backward_data": _softmax("_log_softmax")[1],
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "aten::record_stream": lambda self, stream: None,
    **{
        f"aten::_use_{library}_ctc_loss{overload}": lambda *_: False
        for library in _LIBRARIES
        for overload in _OVERLOADS
    },
    **_attention.KERNELS,
    **_batch_norm.KERNELS,
    **_layer_norm.KERNELS,
}
