"""Objects of ranks that were killed, or hang, are freed when their world is over."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch

import simdist
from simdist.faults import Crash, Hang
from simdist.frames import frames_by_thread


class Held:
    """A large object that a function of the user holds."""


def alive(*faults: simdist.faults.Fault) -> list[object]:
    """Return for each rank its object if it still exists after a run with these faults, else None."""
    kept: list[weakref.ref[Held]] = []

    def main() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        simdist.point("held")
        torch.ones(1)

    simdist.run(main, world_size=2, faults=list(faults))
    assert len(kept) == 2
    return [ref() for ref in kept]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("fault", [Crash(rank=0, at_point="held"), Hang(rank=0, at_point="held")])
def test_what_a_struck_rank_held_goes_with_its_world(fault: simdist.faults.Fault) -> None:
    assert alive(fault) == [None, None]


def test_frames_are_those_of_other_threads_and_of_the_callers_caller() -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        leave.wait()

    def asked() -> dict[int, str]:
        return {ident: frame.f_code.co_name for ident, frame in frames_by_thread().items()}

    thread = threading.Thread(target=wait)
    thread.start()
    inside.wait()
    found = asked()
    leave.set()
    thread.join()

    assert thread.ident is not None
    assert found[threading.get_ident()] == test_frames_are_those_of_other_threads_and_of_the_callers_caller.__name__
    assert found[thread.ident] == "wait"
