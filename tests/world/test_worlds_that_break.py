"""An error while a world starts or ends does no harm: the next world runs, and the host's state is restored."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.process import Undoing, call_all, current_runtime
from simdist.world import World, WorldSpec
from tests.host_state import host_state
from tests.warm import Interpreters

_FOLDER = str(Path(simdist.__file__).parent)


class Struck(KeyboardInterrupt):
    """Stands in for Ctrl-C, and other exceptions at any moment."""


def program(rank: int) -> float:
    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item()


class StrikeAt:
    """Raises at the n-th call of one of simdist's functions; with too high a number it never does."""

    def __init__(self, number: int) -> None:
        self._left = number

    @property
    def struck(self) -> bool:
        return self._left <= 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_FOLDER):
            self._left -= 1
            if self.struck:
                sys.setprofile(None)
                raise Struck

    def during(self, step: Any) -> None:
        sys.setprofile(self)
        try:
            step()
        except Struck:
            pass
        finally:
            sys.setprofile(None)


def strike_everywhere(phase: str, isolate: bool, every: int) -> list[Any]:
    """Strike at each call of the phase, one world after the other; returns what was wrong with the worlds after."""
    spec = WorldSpec(call=program, world_size=2, isolate=isolate)
    good = World(spec).run().digest  # also imports the modules that worlds need
    before, wrong = host_state(), []
    for number in range(1, 100_000, every):
        world, strike = World(spec), StrikeAt(number)
        if phase == "start":
            strike.during(world.start)
        else:  # it is also the world after the one that was struck before
            world.start()
            digest = world.finish().digest
            strike.during(world.close)
        world.close()
        after = host_state()
        changed = [name for name, value in before.items() if after[name] != value]
        if phase == "start":
            digest = World(spec).run().digest
        if changed or digest != good:
            wrong.append((number, changed, digest))
        if not strike.struck:
            return wrong
    raise AssertionError("there is no end")


@pytest.mark.parametrize(("phase", "isolate", "every"), [("start", False, 1), ("close", False, 1), ("start", True, 97)])
def test_a_world_struck_at_any_moment_of_its_start_or_end_leaves_nothing(
    phase: str, isolate: bool, every: int, interpreters: Interpreters
) -> None:
    assert interpreters.call("1", strike_everywhere, phase, isolate, every) == []


def test_an_error_at_the_end_is_raised_and_the_next_world_runs() -> None:
    def leaves_a_trap() -> None:
        runtime = current_runtime()
        assert runtime is not None
        runtime.patches.on_undo(lambda: [].pop())

    with pytest.raises(IndexError, match="pop from empty list"):
        simdist.run(leaves_a_trap, world_size=1)

    assert simdist.run(program, world_size=2, args=(0,)).values == [2.0, 2.0]


def test_an_error_at_the_start_is_raised_and_the_next_world_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dist.distributed_c10d.Backend, "SIM", "sim", raising=False)
        patch.setattr(
            dist.distributed_c10d.Backend, "backend_list", [*dist.distributed_c10d.Backend.backend_list, "sim"]
        )
        with pytest.raises(simdist.SimdistError, match="a backend named 'sim' is registered already"):
            simdist.run(program, world_size=2, args=(0,))

    assert simdist.run(program, world_size=2, args=(0,)).values == [2.0, 2.0]


def test_a_second_world_is_refused_and_the_first_goes_on() -> None:
    world = World(WorldSpec(call=program, world_size=2))
    world.start()

    with pytest.raises(simdist.SimdistError, match="another simulated world is running"):
        simdist.run(program, world_size=2, args=(0,))

    result = world.finish()
    world.close()
    assert result.values == [2.0, 2.0]


def test_steps_are_undone_the_last_first_and_all_of_them() -> None:
    done: list[int] = []
    undoing = Undoing()
    undoing.add(lambda: done.append(1))
    undoing.add(lambda: done.append(2 // (len(done) - 1)))
    undoing.add(lambda: done.append(3))

    with pytest.raises(ZeroDivisionError):
        undoing.close()

    assert done == [3, 1]
    undoing.close()
    assert done == [3, 1]


def test_a_step_that_is_interrupted_is_taken_again() -> None:
    done: list[str] = []

    def interrupted() -> None:
        done.append("begun")
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append("done")

    with pytest.raises(KeyboardInterrupt):
        call_all(interrupted, lambda: done.append("next"))

    assert done == ["begun", "begun", "done", "next"]
