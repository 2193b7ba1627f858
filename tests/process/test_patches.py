"""What the same functions install time and again is done from memory, while the same things stand there."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from simdist.process import Patches

calls: list[str] = []
module: Any = types.ModuleType("sample")


class Owner:
    def method(self) -> str:
        return "own"


def _shouting(original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: original(*args).upper()


def _install(patches: Patches) -> None:
    calls.append("called")
    patches.wrap(module, "function", _shouting)
    patches.wrap(Owner, "method", _shouting)
    patches.replace(module, "added", 1)
    patches.on_undo(lambda: calls.append("undone"))


INSTALLERS = (_install,)


def _world() -> tuple[str, str, int]:
    patches = Patches()
    patches.install(INSTALLERS)
    seen = module.function(), Owner().method(), module.added
    patches.undo()
    return seen


def test_the_steps_are_remembered_taken_again_and_undone() -> None:
    calls.clear()
    module.function = own = lambda: "function"
    method = Owner.method

    assert [_world() for _ in range(3)] == [("FUNCTION", "OWN", 1)] * 3

    assert calls == ["called", "undone", "undone", "undone"]
    assert module.function is own
    assert Owner.method is method
    assert not hasattr(module, "added")


def test_where_something_else_stands_the_functions_are_called_anew_and_it_is_put_back() -> None:
    module.function = lambda: "function"
    _world()
    calls.clear()
    method, mock = Owner.method, lambda self: "mock"

    Owner.method = mock  # type: ignore[method-assign]  # as a mock does
    assert _world() == ("FUNCTION", "MOCK", 1)
    assert Owner.method is mock
    Owner.method = method  # type: ignore[method-assign]
    module.function = lambda: "other"
    assert _world() == ("OTHER", "OWN", 1)

    assert calls == ["called", "undone", "called", "undone"]
    assert Owner.method is method
