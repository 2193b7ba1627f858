"""Repeated installations of the same replacements use a recorded plan, as long as they find the same originals."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.process import Patches
from tests.c10d.worlds import values

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


def test_where_something_else_stands_functions_are_called_and_put_back() -> None:
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


# -- replacements take arguments by the names of the originals ---------------------------------------------------------


def _replaced() -> list[tuple[str, Any, Any]]:
    """Return all present replacements: name, owner or original function, and the replacement."""
    found: list[tuple[str, Any, Any]] = []
    for patches in Patches.living:
        for owner, name, how, replacement, _ in patches.rows():
            function = getattr(owner, name, None)
            if how == "function" and callable(function):
                found.append((name, function, replacement))
            elif how in ("name", "method"):
                found.append((name, owner, replacement))
    return found


def _names(function: Any) -> list[str] | None:
    """Return the parameters that can be given by name; None if they are unknown, or any name is accepted."""
    function = getattr(function, "__func__", function)
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


def test_replacements_take_arguments_by_name_as_the_originals_do() -> None:
    replaced = values(_replaced, 1, backend="nccl", cluster=build(1, devices_per_host=1))[0]

    lost, looked_at = {}, 0
    for name, place, replacement in replaced:
        if name[:1] == "_" or isinstance(place, type):
            continue
        redirected = callable(place) and not isinstance(place, types.ModuleType)
        original = place if redirected else getattr(place, name)
        known = _names(original)
        taken = _names(replacement(original) if redirected else replacement)
        if known is not None and taken is not None and isinstance(replacement, types.FunctionType):
            looked_at += 1
            if not set(known) <= set(taken):
                lost[name] = known, taken
    assert lost == {}
    assert looked_at > 15


def test_functions_of_the_library_are_called_by_keywords(tmp_path: Path) -> None:
    logger = logging.getLogger("called by keywords")

    def body() -> list[Any]:
        os.symlink(src="a", dst=tmp_path / "b", target_is_directory=False)  # noqa: PTH211  # tests keywords
        before = signal.signal(signalnum=signal.SIGUSR1, handler=signal.SIG_IGN)
        logger.setLevel(level=10)
        logger.addHandler(hdlr=logging.NullHandler())
        logger.addFilter(filter=logging.Filter())
        found = [before, signal.getsignal(signalnum=signal.SIGUSR1), logger.isEnabledFor(level=10)]
        return [*found, len(logger.handlers), (tmp_path / "b").readlink().name]

    result = simdist.run(body, world_size=1, isolate=True)

    result.raise_for_failure()
    assert result.values == [[signal.SIG_DFL, signal.SIG_IGN, True, 1, "a"]]
    assert (logger.level, logger.handlers) == (0, [])


def test_names_of_torchs_classes_say_of_themselves_what_torch_says() -> None:
    names: list[tuple[object, str]] = [
        (dist, "TCPStore"),
        (dist, "ProcessGroupGloo"),
        (torch, "Generator"),
        (torch, "Stream"),
    ]
    names += [(torch.cuda, "FloatTensor"), (dist.ProcessGroupGloo, "_Options")]

    def said() -> list[tuple[str, str, str, str | None]]:
        found = [getattr(owner, name) for owner, name in names]
        return [(repr(each), each.__qualname__, each.__module__, each.__doc__) for each in found]

    on_host = said()
    assert simdist.run(said, world_size=1, cluster=build(1, devices_per_host=1)).values == [on_host]
