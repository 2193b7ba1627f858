"""Arguments that the host hands to ranks: each rank has its own tensors, modules, optimizers and schedulers.

Processes would have their own; one object for all would be changed by each rank, and still be changed in the next run.
One copy operation covers all arguments of a rank, so that an optimizer refers to its model's copy. All other objects
stay one for all ranks: lists in which they collect results, locks, queues.

`torch.multiprocessing.spawn` moves tensors to shared memory: there, each rank has tensors and modules of its own over
the same memory, with gradients of its own.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from simdist.errors import SimdistError
from simdist.process import own

__all__ = ["copies_in_shared_memory", "copy_for_rank", "holds_tensors", "on_each_rank"]

_COPIED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_DEPTH = 4  # of containers that are searched for tensors


def on_each_rank(
    fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> Callable[[], object]:
    """Return a function that calls `fn(*args, **kwargs)` on a rank, with the rank's own function and arguments.

    On the rank it raises a SimdistError if an argument can't be copied.
    """
    given = {f"args[{place}]": value for place, value in enumerate(args)}
    given |= {f"kwargs[{name!r}]": value for name, value in kwargs.items()}
    if not any(map(holds_tensors, given.values())):
        bound = functools.partial(fn, *args, **kwargs)
        return lambda: own(bound)()

    def call() -> object:
        memo: dict[int, Any] = {}
        mine = [copy_for_rank(what, value, memo) for what, value in given.items()]
        named = dict(zip(kwargs, mine[len(args) :], strict=True))
        return own(functools.partial(fn, *mine[: len(args)], **named))()

    return call


def holds_tensors(value: object, depth: int = _DEPTH) -> bool:
    """True for what each rank has a copy of, and for containers of that."""
    if isinstance(value, _COPIED):
        return True
    if depth and isinstance(value, _CONTAINERS):
        inside = value.values() if isinstance(value, dict) else value
        return any(holds_tensors(each, depth - 1) for each in inside)
    return False


def copy_for_rank(what: str, value: object, memo: dict[int, Any]) -> object:
    """Return a rank's copy of a value, or the value itself if it holds no tensors; `memo` is that of `copy.deepcopy`.

    Raises:
        SimdistError: it can't be copied.
    """
    if not holds_tensors(value):
        return value
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise SimdistError(
            f"{what} holds tensors, and each rank needs its own copy, which can't be made: {error}"
        ) from error


def copies_in_shared_memory(args: Sequence[object]) -> list[object]:
    """Return a spawned process's arguments: its own tensors, modules and optimizers over the memory of the host's.

    Raises:
        SimdistError: one can't be copied.
    """
    memo: dict[int, Any] = {}
    for value in args:
        for tensor in _tensors_in(value, _DEPTH):
            if tensor.is_leaf or not tensor.requires_grad:
                memo[id(tensor)] = _alias(tensor)
    return [copy_for_rank(f"args[{place}]", value, memo) for place, value in enumerate(args)]


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor with the same memory, and without a gradient."""
    alias = tensor.detach()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(alias, requires_grad=tensor.requires_grad)
    return alias.requires_grad_(tensor.requires_grad)


def _tensors_in(value: object, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, torch.optim.Optimizer):
        yield from _tensors_in([group["params"] for group in value.param_groups], depth)
        yield from _tensors_in([*value.state.values()], depth)
    elif depth and isinstance(value, _CONTAINERS):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each, depth - 1)
