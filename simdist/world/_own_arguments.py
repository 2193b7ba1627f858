"""Arguments that the host hands to ranks: each rank has its own tensors, arrays, modules, optimizers and generators.

Processes would have their own; one object for all would be changed by each rank, and still be changed in the next run.
One copy operation covers all arguments of a rank, so that an optimizer refers to its model's copy. All other objects
stay one for all ranks: lists in which they collect results, locks, queues, the dataset of a DataLoader, long lists.

`torch.multiprocessing.spawn` moves tensors to shared memory: there, each rank has tensors and modules of its own over
the same memory, with gradients of its own.

Invariant: what is copied is decided before the first rank begins. A list of results may hold tensors soon after.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Sampler

from simdist.errors import SimdistError
from simdist.process import own

__all__ = ["OwnArguments", "on_each_rank"]

_OF_TORCH = (
    torch.Tensor,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.Generator,
)
_COPIED = (*_OF_TORCH, np.ndarray, np.random.Generator, np.random.RandomState, random.Random, DataLoader, Sampler)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_DEPTH = 4  # of containers that are searched
_MOST = 1_000  # elements of a container that is searched; a larger one holds data, which ranks read


def on_each_rank(
    fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> Callable[[], object]:
    """Return a function that calls `fn(*args, **kwargs)` on a rank, with the rank's own function and arguments.

    Arguments that a `functools.partial` binds are arguments, too. On the rank it raises a SimdistError if an argument
    can't be copied.
    """
    bound = functools.partial(fn, *args, **kwargs)  # takes a partial apart
    given = {f"args[{place}]": value for place, value in enumerate(bound.args)}
    given |= {f"kwargs[{name!r}]": value for name, value in bound.keywords.items()}
    arguments = OwnArguments(given)
    if not arguments.differ:
        return lambda: own(bound)()

    def call() -> object:
        mine = [*arguments.on_rank().values()]
        place = len(bound.args)
        named = dict(zip(bound.keywords, mine[place:], strict=True))
        return own(functools.partial(bound.func, *mine[:place], **named))()

    return call


class OwnArguments:
    """Named values of the host, of which each rank gets its own. Made before the first rank begins.

    Example:
        >>> results, model = [], torch.nn.Linear(2, 1)
        >>> arguments = OwnArguments({"the list": results, "the model": model})
        >>> mine = arguments.on_rank()
        >>> mine["the list"] is results, mine["the model"] is model
        (True, False)
    """

    __slots__ = ("_holders", "_values", "differ")

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)
        self._holders: set[int] = set()  # ids of containers with what is copied
        found = [self._differs(value, _DEPTH) for value in self._values.values()]
        self.differ = any(found)  # whether a rank's values are not the host's

    def on_rank(self, *, in_shared_memory: bool = False) -> dict[str, object]:
        """Return the values for one rank.

        Raises:
            SimdistError: one can't be copied.
        """
        memo: dict[int, Any] = {}
        if in_shared_memory:
            for tensor in _tensors_in([*self._values.values()], _DEPTH + 1):
                if not is_lazy(tensor) and (tensor.is_leaf or not tensor.requires_grad):
                    memo[id(tensor)] = _alias(tensor)
        return {what: self._copy(what, value, memo) for what, value in self._values.items()}

    def _differs(self, value: object, depth: int) -> bool:
        """Return whether a rank has its own version; note the containers that hold one."""
        if _is_copied(value):
            return True
        if not depth or not isinstance(value, _CONTAINERS) or len(value) > _MOST:
            return False
        inside = value.values() if isinstance(value, dict) else value
        found = [self._differs(each, depth - 1) for each in inside]
        if any(found):
            self._holders.add(id(value))
        return any(found)

    def _copy(self, what: str, value: object, memo: dict[int, Any]) -> object:
        try:
            return self._own(value, memo)
        except Exception as error:
            raise SimdistError(f"each rank needs its own copy of {what}, which can't be made: {error}") from error

    def _own(self, value: Any, memo: dict[int, Any]) -> Any:
        if _is_copied(value):
            if isinstance(value, DataLoader):
                memo[id(value.dataset)] = value.dataset  # it may be large, and is read only
            return copy.deepcopy(value, memo)
        if id(value) not in self._holders:
            return value
        if id(value) in memo:
            return memo[id(value)]
        mine: Any
        if isinstance(value, dict):
            mine = copy.copy(value)
            for key, each in value.items():
                mine[key] = self._own(each, memo)
        elif isinstance(value, list):
            mine = copy.copy(value)
            mine[:] = [self._own(each, memo) for each in value]
        else:
            parts = [self._own(each, memo) for each in value]
            mine = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # of a named tuple
        memo[id(value)] = mine
        return mine


def _is_copied(value: object) -> bool:
    """True for an object of which each rank has its own. A mock of one is none: the test looks at it afterwards."""
    return issubclass(type(value), _COPIED) and type(value) is not random.SystemRandom  # which has no state


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
        yield from _tensors_in([group["params"] for group in value.param_groups], _DEPTH)
        yield from _tensors_in([*value.state.values()], _DEPTH)
    elif depth and isinstance(value, _CONTAINERS) and len(value) <= _MOST:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each, depth - 1)
