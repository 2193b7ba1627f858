"""Races between a non-blocking copy and the host: pinned memory that the host changes or reads before the copy is over.

A stream that copies from or to pinned memory works on it until the host has waited for the stream. The storage
remembers such copies; from the first of them on, a function mode of torch at the very bottom of the thread's stack sees
the program's calls with tensors of the host, and refuses those that touch a tensor that a copy may still use.

In doubt: accesses around torch, such as by a numpy array over the same memory, are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from simdist.errors import StrictError
from simdist.frames import user_frame, user_line
from simdist.inside.torch import count_function_modes, pop_function_mode, push_function_mode

__all__ = ["copied"]

Tensor = torch.Tensor
_Copy = tuple[tuple[int, int], int, str, str, bool]  # on which stream, its count then, what, where, and if it writes
_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__")
# Calls that need facts about a tensor, and not its values.
_QUESTIONS = frozenset(
    (
        *("__get__", "size", "stride", "dim", "numel", "nelement", "element_size", "is_pinned", "is_contiguous"),
        *("data_ptr", "storage_offset", "untyped_storage", "view", "view_as", "reshape", "__len__", "detach", "unbind"),
        *("expand", "t", "transpose", "permute", "squeeze", "unsqueeze", "flatten", "narrow", "chunk", "split"),
        *("is_floating_point", "is_complex", "get_device", "type", "pin_memory", "__hash__", "record_stream", "select"),
        *("__getitem__",),  # a part is a view
    )
)


class _HostWatch(TorchFunctionMode):
    """Checks a rank's calls with tensors of the host."""

    def __init__(self, known: Callable[[], dict[tuple[int, int], int]]) -> None:
        super().__init__()
        self._known = known  # the streams' positions for which the host has waited

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in _QUESTIONS:
            changes = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
            # A non-blocking copy to a device is work of a stream, and runs after the stream's earlier work.
            queued = _queued(name, args, kwargs)
            if not queued:
                self._look(name, args[:1] if changes else (), (*(args[1:] if changes else args), *kwargs.values()))
                self._look(name, (kwargs.get("out"),), ())
        return func(*args, **kwargs)

    def _look(self, what: str, changed: Iterable[object], read: Iterable[object]) -> None:
        for values, writing in ((changed, True), (read, False)):
            for tensor in _host_tensors(values):
                copies: list[_Copy] | None = getattr(tensor.untyped_storage(), "copies", None)
                if copies:
                    self._judge(what, tensor, copies, writing=writing)

    def _judge(self, what: str, tensor: Tensor, copies: list[_Copy], *, writing: bool) -> None:
        known = self._known()
        copies[:] = [copy for copy in copies if known.get(copy[0], 0) < copy[1]]
        for key, _, by, site, writes in copies:
            if writing or writes:
                stream = f"stream {key[1]}" if key[1] else "the default stream"
                raise StrictError(
                    f"{what}{user_line(user_frame(sys._getframe(3)))} {'changes' if writing else 'reads'} a tensor of "
                    f"shape {list(tensor.shape)} in pinned memory, while {by}{site}, which does not block and "
                    f"{'writes' if writes else 'reads'} it on {stream} of cuda:{key[0]}, may not be over; synchronize "
                    "first (an event, the stream, the device), or copy without non_blocking"
                )


def copied(
    tensor: Tensor,
    key: tuple[int, int],
    count: int,
    what: str,
    site: str,
    *,
    writes: bool,
    known: Callable[[], dict[tuple[int, int], int]],
) -> None:
    """Record that a stream was given a copy, as its `count`-th kernel, that reads a pinned tensor, or writes it."""
    storage: Any = tensor.untyped_storage()
    if not hasattr(storage, "copies"):
        storage.copies = []
    storage.copies.append((key, count, what, site, writes))
    _watch_this_thread(known)


def _watch_this_thread(known: Callable[[], dict[tuple[int, int], int]]) -> None:
    """Put the mode below all modes of the program, once per thread."""
    above = []
    while count_function_modes():
        above.append(pop_function_mode())
    if not (above and type(above[-1]) is _HostWatch):
        push_function_mode(_HostWatch(known))
    for mode in reversed(above):
        push_function_mode(mode)


def _queued(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    if name not in ("copy_", "to", "cuda", "_to_copy", "cpu"):
        return False
    place = 2 if name == "copy_" else 1
    blocking = not (kwargs.get("non_blocking") or any(value is True for value in args[place:]))
    tensors = [each for each in args[:2] if isinstance(each, Tensor)]
    if blocking:
        return False
    return len(tensors) < 2 or any(each.is_cuda for each in tensors)


def _host_tensors(values: Iterable[object]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if type(value) in (Tensor, torch.nn.Parameter) and value.device.type == "cpu":
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _host_tensors(value)
