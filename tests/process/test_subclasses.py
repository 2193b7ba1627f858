"""`__subclasses__()` of a class that ranks share lists what the process itself has defined, as in a real process."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import simdist

NAME = "program_with_kinds"
PROGRAM = """
    import functools, multiprocessing
    import torch
    import torch.distributed as dist

    class Method(torch.nn.Module):
        def forward(self):
            pass

    class Plain(torch.nn.Module):
        pass

    class Decorated(torch.nn.Module):
        forward = torch.no_grad()(lambda self: None)

    class Static(torch.nn.Module):
        @staticmethod
        def make():
            pass

    class Outer:
        class Inner(torch.nn.Module):
            pass

    def mine():
        return [each for each in torch.nn.Module.__subclasses__() if each.__module__ == __name__]

    def kinds():
        dist.init_process_group("gloo")
        dist.barrier()

        class Local(torch.nn.Module):
            def forward(self):
                pass

        dist.barrier()
        found = mine()
        dist.barrier()
        return [each.__name__ for each in found], found == [Method, Plain, Decorated, Static, Outer.Inner, Local]

    def changed():
        dist.init_process_group("gloo")
        for each in mine():
            each.times = getattr(each, "times", 0) + 1
        dist.barrier()
        return Method.times, Plain.times

    def in_child(queue):
        queue.put(([each.__name__ for each in mine()], mine()[0] is Method))

    def with_children(method):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        for _ in range(2):
            child = context.Process(target=in_child, args=(queue,))
            child.start()
            child.join()
        return [queue.get(), queue.get(), [each.__name__ for each in mine()]]

    def shared():
        return len(torch.nn.Module.__subclasses__()), len(type.__subclasses__(torch.nn.Linear)), bool.__subclasses__()
"""
NAMES = ["Method", "Plain", "Decorated", "Static", "Inner"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module, imported by the host."""
    (tmp_path / f"{NAME}.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__(NAME)
    del sys.modules[NAME]


def run(function: Callable[..., Any], *args: object, world_size: int = 2) -> list[Any]:
    result = simdist.run(function, world_size=world_size, isolate=True, args=args)

    result.raise_for_failure()
    return list(result.values)


def test_a_rank_finds_its_own_classes_once(program: ModuleType) -> None:
    assert run(program.kinds, world_size=3) == [([*NAMES, "Local"], True)] * 3


def test_a_later_run_does_not_find_those_of_an_earlier_one(program: ModuleType) -> None:
    kept = [run(program.kinds)]

    kept.append(run(program.kinds))

    assert kept[0] == kept[1]


def test_what_a_rank_changes_on_what_it_finds_stays_its_own(program: ModuleType) -> None:
    assert run(program.changed) == [(1, 1), (1, 1)]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_and_their_parent_find_their_own_classes(method: str, program: ModuleType) -> None:
    assert run(program.with_children, method, world_size=1) == [[(NAMES, True), (NAMES, True), NAMES]]


def test_shared_classes_are_found_and_the_host_has_pythons_method_again(program: ModuleType) -> None:
    before = vars(type)["__subclasses__"]

    (found,) = run(program.shared, world_size=1)

    assert found[1:] == (len(type.__subclasses__(__import__("torch").nn.Linear)), [])
    assert vars(type)["__subclasses__"] is before
    assert len(program.mine()) >= len(NAMES)
