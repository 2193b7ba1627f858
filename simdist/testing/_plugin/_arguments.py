"""The arguments of a test's body on a rank.

A fixture is set up once, in the host process. Its value is one object for all ranks, except for tensors, modules and
others, of which each rank has copies: see `simdist.world`.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any, Never

import pytest

from simdist.errors import SimdistError
from simdist.world import OwnArguments

__all__ = ["Arguments", "rank_placeholder"]


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
        self._attributes = {} if self._owner is None else dict(getattr(owner, "__dict__", {}))
        fixtures = {f"the fixture {name!r}": value for name, value in arguments.items()}
        self._own = OwnArguments(fixtures | {f"self.{name}": value for name, value in self._attributes.items()})

    def on(self, rank: int) -> tuple[Callable[..., object], dict[str, object]]:
        """Return the function and its arguments for one rank.

        Raises:
            SimdistError: a fixture returned a tensor that can't be copied.
        """
        mine = [*self._own.on_rank().values()]
        arguments = {
            name: rank if isinstance(value, _RankPlaceholder) else value
            for name, value in zip(self._arguments, mine, strict=False)
        }
        if self._owner is None:
            return self._function, arguments
        instance = copy.copy(self._owner)
        for name, value in zip(self._attributes, mine[len(arguments) :], strict=True):
            if value is not self._attributes[name]:
                setattr(instance, name, value)
        return types.MethodType(self._function.__func__, instance), arguments
