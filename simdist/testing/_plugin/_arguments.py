"""The arguments of a test's body on a rank.

A fixture is set up once, in the host process. Its value is one object for all ranks, except for values that ranks would
spoil for each other: tensors, modules and optimizers are copied for each rank, as processes would have their own. One
copy operation covers all of them, so that an optimizer refers to its model's copy.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any, Never

import pytest
import torch

from simdist.errors import SimdistError

__all__ = ["Arguments", "rank_placeholder"]

_COPIED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_DEPTH = 4  # of containers that are searched for tensors


class _RankPlaceholder:
    """The fixture `rank` while fixtures are set up, when there is no rank yet."""

    def _unknown(self, *_: object) -> Never:
        raise SimdistError(
            "the fixture 'rank' has a value only in the body of a test marked with simdist; "
            "fixtures are set up once, before there are ranks"
        )

    __index__ = __int__ = __float__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __mul__ = __mod__ = __bool__ = __format__ = __str__ = _unknown
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "<rank: known in the test's body only>"


def rank_placeholder(item: pytest.Function) -> _RankPlaceholder:
    """Return the value of the fixture `rank` in the host process.

    Fails the test if it has no ranks.
    """
    if item.get_closest_marker("simdist") is None:
        pytest.fail("the fixture 'rank' needs @pytest.mark.simdist on the test", pytrace=False)
    if "sim" in item.fixturenames:
        pytest.fail("a test that drives worlds with 'sim' has no rank of its own", pytrace=False)
    return _RankPlaceholder()


class Arguments:
    """Function and arguments of a test, for each rank."""

    def __init__(self, function: Callable[..., object], arguments: Mapping[str, object]) -> None:
        self._arguments = dict(arguments)
        owner = getattr(function, "__self__", None)
        self._function: Any = function
        self._owner = None if owner is None or isinstance(owner, type) else owner
        self._copied = {name: value for name, value in arguments.items() if _has_state(value, _DEPTH)}
        self._attributes = (
            {}
            if self._owner is None
            else {name: value for name, value in getattr(owner, "__dict__", {}).items() if _has_state(value, _DEPTH)}
        )

    def on(self, rank: int) -> tuple[Callable[..., object], dict[str, object]]:
        """Return the function and its arguments for one rank.

        Raises:
            SimdistError: a fixture returned a tensor that can't be copied.
        """
        memo: dict[int, Any] = {}
        arguments = {
            name: rank if isinstance(value, _RankPlaceholder) else value for name, value in self._arguments.items()
        }
        arguments |= {name: _copy(f"the fixture {name!r}", value, memo) for name, value in self._copied.items()}
        if self._owner is None:
            return self._function, arguments
        instance = copy.copy(self._owner)
        for name, value in self._attributes.items():
            setattr(instance, name, _copy(f"self.{name}", value, memo))
        return types.MethodType(self._function.__func__, instance), arguments


def _has_state(value: object, depth: int) -> bool:
    if isinstance(value, _COPIED):
        return True
    if depth and isinstance(value, _CONTAINERS):
        inside = value.values() if isinstance(value, dict) else value
        return any(_has_state(each, depth - 1) for each in inside)
    return False


def _copy(what: str, value: object, memo: dict[int, Any]) -> object:
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise SimdistError(
            f"{what} holds tensors, and each rank needs its own copy, which can't be made: {error}"
        ) from error
