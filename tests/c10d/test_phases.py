"""The phases of a collective, from its first caller to its last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simdist.c10d.calls._operation import Operation
from simdist.c10d.engine._collective import Collective, Phase
from simdist.errors import InternalError


def collective(ranks: int = 3) -> Collective:
    group: Any = SimpleNamespace(
        size=ranks,
        name="0",
        counted=0,
        backend=SimpleNamespace(algorithm=SimpleNamespace(lets_some_go=lambda operation, ranks: False)),
        simulation=SimpleNamespace(move_deadline=lambda thing, moment: None, now_ns=0),
        collectives={},
    )
    made = Collective(group, Operation("all_reduce", 4), 7)
    group.collectives[7] = made
    return made


def refused_work(rank: int) -> Any:
    member = SimpleNamespace(rank=rank, failed=lambda name, sequence, error: None)
    return SimpleNamespace(member=member, name="all_reduce", fail=lambda error: None)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Phase.ENDED, Phase.GATHERING),
        (Phase.ENDED, Phase.FOLLOWED),
        (Phase.FOLLOWED, Phase.IN_FLIGHT),
        (Phase.DISAGREEING, Phase.FOLLOWED),
        (Phase.IN_FLIGHT, Phase.DISAGREEING),
    ],
)
def test_a_collective_does_not_go_back(first: Phase, then: Phase) -> None:
    made = collective()
    made._enter(first)

    with pytest.raises(InternalError, match=f"all_reduce #7 in group '0' went from {first.name} to {then.name}"):
        made._enter(then)


def test_a_collective_that_everyone_left_ends() -> None:
    made = collective()
    for rank in range(3):
        assert made.phase is Phase.GATHERING
        made.leave(rank)

    assert made.phase is Phase.ENDED
    assert made.communicator.collectives == {}


def test_a_rank_that_is_refused_and_then_leaves_counts_once() -> None:
    made = collective()
    made.refuse(refused_work(0), RuntimeError("no"))
    made.leave(0)
    made.leave(1)

    assert made.unsettled == 1
    assert made.phase is Phase.GATHERING
