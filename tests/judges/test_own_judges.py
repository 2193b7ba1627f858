"""Judges of the user's own, which may print."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d import OperationCalled
from simdist.judges import Ending, Hearing, Judge
from simdist.kernel import PASS, Verdict
from simdist.records import Record
from tests.judges.programs import grouped


def body(rank: int) -> None:
    print("rank", rank)
    dist.all_reduce(torch.ones(1))


class Noisy(Judge):
    name = "noisy"

    def begin(self, hearing: Hearing) -> None:
        def look_before(event: OperationCalled) -> Verdict:
            print("before", event.operation)
            return PASS

        def at_end(ending: Ending) -> None:
            print(len(ending.events), "events")

        hearing.listen(Record, lambda record: print("record", record.kind, os.environ.get("RANK", "of no rank")))
        hearing.look_before(OperationCalled, look_before)
        hearing.at_end(at_end)


def test_what_a_judge_prints_is_no_output_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    result = simdist.run(grouped(body), world_size=2, judges=[Noisy()])
    lines = capsys.readouterr().out.splitlines()

    assert [rank.stdout for rank in result.ranks] == ["rank 0\n", "rank 1\n"]
    assert result.digest == simdist.run(grouped(body), world_size=2).digest
    assert lines.count("record output 0") == 1
    assert lines.count("before all_reduce") == 2
    assert lines[-1] == f"{len(result.events)} events"
    assert capsys.readouterr().out == ""


class Broken(Judge):
    name = "broken"

    def begin(self, hearing: Hearing) -> None:
        def look(event: Record) -> None:
            raise ValueError("of the judge")

        hearing.listen(Record, look)


def test_after_a_judge_has_raised_ranks_print_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    def says() -> None:
        try:
            print("once")
        except ValueError:
            print("caught", end="")

    with pytest.raises(Exception, match="of the judge"):
        simdist.run(says, world_size=1, judges=[Broken()])

    result = simdist.run(says, world_size=1)
    assert (result.ranks[0].stdout, capsys.readouterr().out) == ("once\n", "")
