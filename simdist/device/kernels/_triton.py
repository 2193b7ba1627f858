"""Kernels that programs write in Triton: run by Triton's own interpreter, over the memory of virtual devices.

Triton compiles for GPUs; with TRITON_INTERPRET set before a kernel's module is imported it runs them in Python instead.
On ranks that have devices every kernel and every function that it calls runs that way, whatever the variable says. Of
several configurations the first is taken, without timing.

The interpreter has no arithmetic for bfloat16: it keeps these numbers as integers, and adds up their bits. Here they
are computed in single precision and rounded to the nearest, as on a GPU.

In doubt: launches take no time, whatever the device model, and strict worlds do not see what a kernel reads and writes.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from simdist.device._aliases import host
from simdist.device._state import present_or_none
from simdist.process import Patches, current_process

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ADAPTERS"]

_KERNELS = "triton.runtime.jit"
_TUNER = "triton.runtime.autotuner"
_INTERPRETER = "triton.runtime.interpreter"
_DRIVER = "triton.backends.nvidia.driver"
# Of the interpreter, what computes numbers of its operands' type: the last of them shows in which the result is.
_ARITHMETIC = ("binary_op", "unary_op", "ternary_op", "create_dot", "create_fma", "create_rsqrt", "create_erf")
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


class _Function(Protocol):
    fn: object


def _has_devices() -> bool:
    return current_process() is not None and present_or_none() is not None


_known: dict[object, Any] = {}  # the objects that Triton makes of functions for its interpreter


def _interpreted(function: object) -> Any:
    found = _known.get(function)
    if found is None:
        interpreter = importlib.import_module(_INTERPRETER)
        found = _known[function] = interpreter.InterpretedFunction(function)
    return found


def _forget() -> None:
    """At the end of a world, forget the functions that its ranks have imported."""
    for function, found in _known.items():
        found.rewritten_fn.pop(function, None)
    _known.clear()


def _lowered(value: object) -> object:
    return host(value.detach()) if isinstance(value, torch.Tensor) and value.is_cuda else value


def _launching(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def run(self: _Function, *args: object, grid: object, warmup: bool, **kwargs: object) -> object:
        if not _has_devices():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if warmup:
            return None
        for hook in getattr(self, "pre_run_hooks", ()):
            hook(*args, **kwargs)
        named = {name: _lowered(value) for name, value in kwargs.items()}
        return _interpreted(self.fn).run(*map(_lowered, args), grid=grid, warmup=False, **named)

    return run


def _calling(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(self: _Function, *args: object, **kwargs: object) -> object:
        return _interpreted(self.fn)(*args, **kwargs) if _has_devices() else original(self, *args, **kwargs)

    return call


def _timing(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def bench(self: object, *args: object, config: object, **kwargs: object) -> object:
        return [0.0, 0.0, 0.0] if _has_devices() else original(self, *args, config=config, **kwargs)

    return bench


# -- bfloat16 --------------------------------------------------------------------------------------------------------


def _widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).float().numpy()


def _rounded(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    return torch.from_numpy(numbers.copy()).to(torch.bfloat16).view(torch.uint16).numpy()


class _Singles:
    """Converts the interpreter's handles of bfloat16 to handles of single precision, and back."""

    def __init__(self, interpreter: Any) -> None:
        self._handle = interpreter.TensorHandle
        self._language = interpreter.tl
        self._comparisons = [getattr(interpreter.np, name) for name in _COMPARISONS]

    def holds(self, value: object) -> bool:
        return isinstance(value, self._handle) and value.dtype.scalar == self._language.bfloat16

    def widen(self, value: Any) -> Any:
        return self._handle(_widened(value.data), self._language.float32) if self.holds(value) else value

    def narrow(self, value: Any) -> Any:
        return self._handle(_rounded(value.data), self._language.bfloat16)

    def computing(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def compute(builder: object, *args: object, **kwargs: object) -> object:
            handles = [each for each in args if isinstance(each, self._handle)]
            if not any(map(self.holds, handles)):
                return original(builder, *args, **kwargs)
            result = original(builder, *map(self.widen, args), **kwargs)
            is_number = not any(args[-1] is each for each in self._comparisons)
            return self.narrow(result) if is_number and self.holds(handles[-1]) else result

        return compute

    def casting(self, original: Callable[..., object]) -> Callable[..., object]:
        single, half = self._language.float32, self._language.bfloat16

        @functools.wraps(original)
        def cast(builder: object, source: object, target: Any) -> object:
            wide = self.widen(source)
            if target.scalar != half:
                return original(builder, wide, target) if wide.dtype.scalar != target.scalar else wide
            return self.narrow(wide if wide.dtype.scalar == single else original(builder, wide, single))

        return cast

    def folding(self, original: Callable[..., Iterable[Any]]) -> Callable[..., object]:
        tensor, single, half = self._language.core.tensor, self._language.float32, self._language.bfloat16

        def typed(value: Any, handle: object, dtype: object) -> Any:
            shape = [int(each) for each in value.shape]
            return tensor(handle, self._language.block_type(dtype, shape) if shape else dtype)

        @functools.wraps(original)
        def fold(operation: object, given: Any) -> Any:
            if not isinstance(given, tuple):
                return fold(operation, (given,))[0]
            wide = tuple(typed(each, self.widen(each.handle), single) if each.dtype == half else each for each in given)
            found = original(operation, wide)
            return tuple(
                typed(each, self.narrow(each.handle), half) if was.dtype == half and each.dtype == single else each
                for was, each in zip(given, found, strict=True)
            )

        return fold


def _of_interpreter(patches: Patches) -> None:
    interpreter = sys.modules[_INTERPRETER]
    singles = _Singles(interpreter)
    builder = interpreter.InterpreterBuilder
    for name in _ARITHMETIC:
        if hasattr(builder, name):  # not in all versions
            patches.wrap(builder, name, singles.computing)
    patches.wrap(builder, "cast_impl", singles.casting)
    patches.wrap(interpreter.ReduceScanOpInterface, "apply", singles.folding)


def _of_kernels(patches: Patches) -> None:
    kernel = sys.modules[_KERNELS].JITFunction
    patches.wrap(kernel, "run", _launching)
    patches.wrap(kernel, "__call__", _calling)
    patches.on_undo(_forget)


def _of_tuner(patches: Patches) -> None:
    patches.wrap(sys.modules[_TUNER].Autotuner, "_bench", _timing)


def _active(original: Callable[[], bool]) -> object:
    def is_active() -> bool:
        # Torch has devices here, and the machine may have no driver for them: Triton would believe torch, and ask for
        # libcuda.so. Inductor does without a driver where Triton says that there is none.
        return False if _has_devices() else original()

    return staticmethod(is_active)


def _of_driver(patches: Patches) -> None:
    patches.wrap(sys.modules[_DRIVER].CudaDriver, "is_active", _active)


# Each is called when its module of Triton's is imported.
ADAPTERS: dict[str, Callable[[Patches], None]] = {
    _KERNELS: _of_kernels,
    _INTERPRETER: _of_interpreter,
    _TUNER: _of_tuner,
    _DRIVER: _of_driver,
}
