"""Modes and tensor subclasses of a program see torch's `c10d.*` operators, as with a real backend, and nothing else.

A rank calls our groups in Python, without torch's dispatcher. If a dispatch mode is active, or a tensor is not plain
memory, the call makes a detour. Torch's own method of `ProcessGroup` packs the arguments and calls the operator. The
mode or the tensor's class sees the operator and calls it again, perhaps several times with other tensors. At the key
`BackendSelect`, before the backends' kernels, which need a C++ backend, our kernel takes the call from the dispatcher
and runs our method. Tensors without memory that our backends can use (meta, quantized, most sparse tensors) go on to
torch's own kernels, which ignore or refuse them. Our kernels exist from the first such call of a world until its end;
calls of threads that are not ranks pass through them.

The movement of data is invisible to modes: see `calls/_unseen.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from simdist.c10d.calls import METHODS, RENAMED, Method
from simdist.c10d.calls._unseen import dispatch_modes, function_modes
from simdist.c10d.surface import _memory
from simdist.c10d.surface._compat import ProcessGroup, Work
from simdist.c10d.surface._layout import joint
from simdist.c10d.surface._options import real_options
from simdist.inside.torch import (
    DispatchKey,
    calls_override,
    keys_of,
    unwarned,
    without_functions,
    without_modes,
)
from simdist.process import Patches, current_process, current_runtime

if TYPE_CHECKING:
    import torch.distributed as dist

    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.surface._identity import GroupBackend
    from simdist.inside.torch import KeySet

__all__ = ["visible"]

_G = TypeVar("_G", bound="GroupBackend")
_HERE = DispatchKey.BackendSelect
_DENSE = DispatchKey.CPU, DispatchKey.CUDA


def _has_classes(given: object) -> bool:
    """True if there is a tensor whose class overrides operators."""
    if isinstance(given, torch.Tensor):
        return bool(keys_of(given).has(DispatchKey.Python))
    return isinstance(given, list | tuple) and any(_has_classes(each) for each in given)


def _odd_one(given: object) -> torch.Tensor | None:
    """Return the first tensor that is not plain, or None."""
    if isinstance(given, torch.Tensor):
        return None if _memory.is_plain(given) else given
    if not isinstance(given, list | tuple):
        return None
    return next((found for each in given if (found := _odd_one(each)) is not None), None)


class _Call:
    """A call of a method on its way through the dispatcher.

    `args` and `kwargs` are its arguments without the tensors, which come through the operator.
    """

    __slots__ = ("args", "kwargs", "method", "results")

    def __init__(
        self, method: Callable[..., SimWork | None], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        # One for each time that the operator arrived; a subclass may call it several times.
        self.results: list[SimWork | None] = []

    def result(self, said: object) -> object:
        """Return the method's result; `said` is the result of torch's own method."""
        works = [work for work in self.results if work is not None]
        if len(works) > 1 and works[-1].joins:
            return joint(works, [work.outputs for work in works])
        if works:
            return works[-1]
        return None if self.results else said


def visible(group_class: type[_G]) -> type[_G]:
    """Let modes and tensor subclasses see the operators of a group class; a class decorator.

    Methods in its `asks_for_modes` check for modes and odd tensors themselves, and then call `..._in_modes`, which this
    adds: a wrapper around them would cost more than the check.
    """
    for name, method in list(_methods(group_class)):
        around = _with_a_way_around(name, method)
        setattr(group_class, f"{name}_in_modes" if name in group_class.asks_for_modes else name, around)
    return group_class


def _methods(group_class: type) -> Iterator[tuple[str, Callable[..., SimWork | None]]]:
    for name, row in METHODS.items():
        method = getattr(group_class, name, None) or _lacking(name)
        yield name, method
        if row.old:
            yield row.old, method


def _lacking(name: str) -> Callable[..., SimWork | None]:
    def call(self: GroupBackend, *_: object, **__: object) -> SimWork | None:
        raise RuntimeError(f"Backend {self.name()} does not support {name}")

    return call


def _with_a_way_around(name: str, method: Callable[..., SimWork | None]) -> Callable[..., object]:
    row = METHODS[RENAMED.get(name, name)]
    through = _THROUGH.get(row.name) or getattr(ProcessGroup, name, None)
    in_order = _memory.is_plain_or_sparse if name == "allreduce" else _memory.is_plain
    count, signature = row.tensors, inspect.signature(method)
    names = list(signature.parameters)[1 : 1 + count]
    renamed = _renaming(signature)
    alone = count == 1

    def call(self: GroupBackend, *args: object, **by_torch: object) -> object:
        kwargs = renamed(by_torch) if by_torch else by_torch
        tensors = args[0] if alone and args else args[:count]  # hot
        plain = in_order(tensors) and (not kwargs or in_order(tuple(kwargs.values())))
        if plain and not (dispatch_modes() or function_modes()):
            return method(self, *args, **kwargs)
        if through is None or (plain and not dispatch_modes()):
            with without_functions():
                return method(self, *args, **kwargs)
        if self.is_bare and not _has_classes((*args, *kwargs.values())):  # no dispatcher
            with _memory.odd_tensors():
                return method(self, *args, **kwargs)
        runtime = current_runtime()
        assert runtime is not None
        if _Operators not in runtime.extras:
            runtime.extras[_Operators] = _Operators(runtime.patches)
        args = tuple(map(real_options, args))  # the options pass through C++
        under_way = self._calls_under_way
        beside = {key: value for key, value in kwargs.items() if key not in names}
        entry = _Call(method, args[count:], beside)
        under_way.append(entry)
        try:
            said = through(self, *args, **(kwargs if row.name in _THROUGH else by_torch))
        finally:
            under_way.remove(entry)
        return entry.result(said)

    call.__doc__ = method.__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]  # of any function
    call.__name__, call.__qualname__ = name, f"SimProcessGroup.{name}"
    # By this name pybind11 recognizes a call of `super()`. For a method with two names it uses the old one; since torch
    # 2.14, the new one for methods that it calls in Python.
    known = METHODS[name].old or name if name in METHODS else name
    if name in ("all_gather_single", "reduce_scatter_single") and calls_override(name):
        known = name
    call.__code__ = call.__code__.replace(co_name=known)
    return call


# Torch's overloads have different names for a parameter that has one name here.
_SAME = {
    "dstRank": ("dst",),
    "input": ("tensor", "input_tensors"),
    "inputTensor": ("tensor",),
    "input_list": ("tensors",),
    "input_tensor": ("tensor", "input_tensors"),
    "inputs": ("tensors",),
    "output": ("output_tensors",),
    "outputTensor": ("output",),
    "output_tensor": ("output", "output_tensors"),
    "srcRank": ("src",),
    "tensor": ("tensors",),
}


def _renaming(signature: inspect.Signature) -> Callable[[dict[str, object]], dict[str, object]]:
    """Return a function that renames keyword arguments to the names of the signature."""
    parameters = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return lambda kwargs: kwargs

    def own(name: str) -> str:
        return name if name in parameters else next((each for each in _SAME.get(name, ()) if each in parameters), name)

    return lambda kwargs: {own(name): value for name, value in kwargs.items()}


def _call_exchange(
    group: GroupBackend,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    opts: dist.AllToAllOptions | timedelta | None = None,
    timeout: timedelta | None = None,
) -> object:
    options = None if isinstance(opts, timedelta) else opts
    asynchronous = True if options is None else options.asyncOp
    operator = torch.ops.c10d.alltoall_base_
    return operator(output, tensor, group.boxed(), output_split_sizes or [], input_split_sizes or [], asynchronous)


def _call_gather(
    group: GroupBackend,
    outputs: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    opts: Any = None,
) -> object:
    asynchronous = True if opts is None else opts.asyncOp
    return torch.ops.c10d.allgather_into_tensor_coalesced_(outputs, tensors, group.boxed(), asynchronous)


# Torch's methods for these would call ours again, under any function name (torch 2.13).
_THROUGH: dict[str, Callable[..., object]] = {
    "all_to_all_single": _call_exchange,
    "all_gather_single_coalesced": _call_gather,
}


class _Operators:
    """Our kernels of torch's operators, which last until the world ends."""

    def __init__(self, patches: Patches) -> None:
        library: Any = torch.library.Library  # not typed
        self._library = library("c10d", "IMPL")
        patches.on_undo(self._library._destroy)
        with unwarned():
            for row in METHODS.values():
                operator = getattr(torch.ops.c10d, row.operator).default
                self._library.impl(row.operator, _kernel(operator, row), _HERE.name, with_keyset=True)


def _kernel(operator: Any, row: Method) -> Callable[..., object]:
    in_order = _memory.is_plain_or_sparse if row.name == "allreduce" else _memory.is_plain
    tensors = row.tensors

    def kernel(keyset: KeySet, *args: object) -> object:
        group = _group_among(args) if current_process() is not None else None
        if group is None:
            return operator.redispatch(keyset.remove(_HERE), *args)
        if not in_order(args[:tensors]):
            odd = _odd_one(args[:tensors])
            if odd is not None and any(keyset.has(key) for key in _DENSE):
                raise _memory.without_memory(odd)  # with plain ones: torch's kernel would pass it to the backend
            return operator.redispatch(keyset.remove(_HERE), *args)
        entry = group._calls_under_way[-1]

        with without_modes(), without_functions():
            work = entry.method(group, *args[:tensors], *entry.args, **entry.kwargs)
        entry.results.append(work)
        if row.name == "monitored_barrier":
            return None
        boxed = Work().boxed() if work is None else work.boxed()  # NCCL's work is None if the stream gives the order
        return (args[0], boxed) if row.returns_tensors else boxed

    return kernel


def _group_among(args: tuple[object, ...]) -> GroupBackend | None:
    """Return our group for which an operator is called; None if the group is not ours."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            group: GroupBackend = ProcessGroup.unbox(arg)
            return group if getattr(group, "_calls_under_way", None) else None
    return None
