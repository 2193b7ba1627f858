"""The report of a failed run: it is the same everywhere, and names facts that no exception has."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException

import simdist
from simdist.cluster import build
from simdist.errors import RunFailedError
from simdist.faults import Crash, Hang
from simdist.result import LINES, WIDTH, Event, report_of
from simdist.result._collectives import uneven_collectives


def _issue(rank: int, number: int, op: str = "all_reduce", *, size: int = 1, group: str = "0") -> Event:
    data = {"op": op, "group": group, "seq": number, "nbytes": 4 * size, "dtype": "float32", "shape": [size]}
    return Event(0, "issue", rank, data)


def _group(*ranks: int, name: str = "0") -> Event:
    return Event(0, "group", -1, {"group": name, "ranks": list(ranks), "desc": ""})


def _one_more(extra: int, group_again: bool = False) -> None:
    for _ in range(2 if group_again else 1):
        dist.init_process_group("gloo")
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    dist.init_process_group("gloo")
    for _ in range(3 if dist.get_rank() == extra else 2):
        dist.all_reduce(torch.ones(1))


# -- collectives that ranks did not call alike ----------------------------------------------------------------------


def test_a_rank_that_issues_one_collective_more_is_named() -> None:
    result = simdist.run(_one_more, world_size=4, args=(1, True))

    with pytest.raises(RunFailedError) as caught:
        result.raise_for_failure()

    assert (
        "\nonly rank 1 called collective #2 of group '0', all_reduce of float32[1]; ranks 0, 2, 3 never did\n"
        in str(caught.value)
    )


def test_a_rank_that_issues_one_collective_fewer_is_named() -> None:
    events = [
        _group(0, 1, 2),
        *(_issue(rank, number) for number in range(2) for rank in range(3)),
        *map(_third, (0, 2)),
    ]

    assert uneven_collectives(events, strict=False) == [
        "ranks 0, 2 called collective #2 of group '0', all_reduce of float32[1]; rank 1 never did"
    ]


def _third(rank: int) -> Event:
    return _issue(rank, 2)


def test_the_members_of_a_group_are_those_that_it_has_when_it_is_made_anew() -> None:
    first = [_group(0, 1, 2), *(_issue(rank, number) for number in range(3) for rank in range(3))]
    again = [_group(0, 2), *(_issue(rank, number, "barrier") for number in range(2) for rank in (0, 2))]

    assert uneven_collectives([*first, *again], strict=False) == []


def test_only_the_last_life_counts() -> None:
    died = [_group(0, 1), _issue(0, 0)]
    restarted = [Event(5, "restart", -1, {"life": 1}), _group(0, 1), _issue(0, 0), _issue(1, 0)]

    assert len(uneven_collectives(died, strict=False)) == 1
    assert uneven_collectives([*died, *restarted], strict=False) == []


def test_a_group_whose_members_never_met_misses_nobody() -> None:
    assert uneven_collectives([_issue(0, 0)], strict=False) == []


@pytest.mark.parametrize(("strict", "lines"), [(False, 2), (True, 1)])
def test_ranks_that_call_another_collective_are_distinguished(strict: bool, lines: int) -> None:
    events = [_group(0, 1, 2), _issue(0, 0), _issue(1, 0, size=2), _issue(2, 0, "barrier", size=0)]

    reported = uneven_collectives(events, strict=strict)

    assert reported[0] == (
        "ranks disagree on collective #0 of group '0': rank 0 all_reduce of float32[1]; "
        "rank 1 all_reduce of float32[2]; rank 2 barrier"
    )
    assert len(reported) == lines


# -- one report everywhere ------------------------------------------------------------------------------------------


def test_the_error_the_summary_and_spawn_have_the_same_report() -> None:
    def fails(rank: int) -> None:
        if rank == 1:
            raise ValueError("bad batch")

    context = simdist.spawn(fails, nprocs=2, join=False)
    assert context is not None
    with pytest.raises(ProcessRaisedException) as spawned:
        context.join()
    assert context.result is not None
    result = simdist.run(lambda: fails(int(__import__("os").environ["RANK"])), world_size=2)
    with pytest.raises(RunFailedError) as caught:
        result.raise_for_failure()

    report = report_of(result)
    assert str(caught.value) == f"{report.headline}\n{report}"
    assert json.loads(json.dumps(result.summary()))["report"] == str(report)
    assert spawned.value.__notes__ == [str(report_of(context.result))]
    assert report_of(context.result).ranks[:2] == report.ranks[:2]


def test_a_run_that_did_well_has_no_report() -> None:
    assert simdist.run(lambda: None, world_size=2).summary()["report"] is None


@pytest.mark.parametrize(
    ("replay", "hint"),
    [
        ("pytest test_it.py --simdist-seed=0", "; -s shows all"),
        ("simdist run it.toml --seed 0", "; --show-output shows all"),
        ("simdist launch --simdist-seed 0 it.py", ""),
        ("simdist.run(it, 1)", ""),
    ],
)
def test_the_option_that_shows_all_is_one_of_the_command(replay: str, hint: str) -> None:
    def speaks() -> None:
        print("word\n" * 50)
        raise ValueError

    report = report_of(simdist.run(speaks, world_size=1, replay=replay))

    hidden = [line for line in report.ranks if "more lines of output" in line]
    assert [line.partition("of output")[2] for line in hidden] == [f"{hint})"]


def test_the_faults_that_struck_are_reported_up_to_a_number() -> None:
    faults = [Hang(rank=rank, at_ns=rank, duration_ns=5_000_000) for rank in range(6)]
    result = simdist.run(_waits, world_size=6, faults=[*faults, Crash(rank=0, at_ns=100)])

    assert report_of(result).faults == (
        "fault at 0 ns: rank 0 hangs for 5 ms",
        "fault at 1 ns: rank 1 hangs for 5 ms",
        "fault at 2 ns: rank 2 hangs for 5 ms",
        "fault at 3 ns: rank 3 hangs for 5 ms",
        "and 3 more faults",
    )


def _waits() -> None:
    import time

    time.sleep(1)


def test_a_report_has_so_many_lines_of_so_many_letters_at_most() -> None:
    def prints() -> None:
        for line in range(50):
            print("line", line, "x" * 200)
        for step in range(9):
            simdist.step(step)
        raise ValueError("y" * 300)

    result = simdist.run(prints, world_size=40)

    lines = report_of(result).lines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) == WIDTH


def test_a_result_prints_as_its_report() -> None:
    good = simdist.run(_one_more, world_size=2, args=(-1,))
    bad = simdist.run(_one_more, world_size=2, args=(1,))

    assert str(good) == f"every rank did well\n{report_of(good)}"
    with pytest.raises(RunFailedError) as caught:
        bad.raise_for_failure()
    assert str(caught.value) == str(bad)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["nccl"], "backend nccl"),
        (["gloo"], "backend gloo"),
        (["cpu:gloo,cuda:nccl"], "backends gloo and nccl"),
        (["gloo", "nccl"], "backends gloo and nccl"),
        ([], "backend gloo"),
    ],
)
def test_a_report_names_the_backends_of_the_groups_that_were_made(asked: list[str], words: str) -> None:
    def body() -> None:
        for name in asked:
            dist.init_process_group(name)
            dist.destroy_process_group()
        raise ValueError

    setting = report_of(simdist.run(body, world_size=2, cluster=build(2, devices_per_host="ranks"))).setting

    assert setting.startswith(f"2 ranks, {words}, seed 0")


def refused_and_caught() -> None:
    with contextlib.suppress(NotImplementedError):
        os.fork()


def test_what_a_program_caught_is_reported_if_the_run_fails() -> None:
    def body() -> None:
        refused_and_caught()
        raise ValueError("later")

    failed = simdist.run(body, world_size=1)

    (text,) = failed.refused
    assert text.startswith("rank 0: os.fork would copy the whole world")
    assert "\nnot supported, and refused before: rank 0: os.fork would copy" in str(failed)


def test_the_error_of_a_rank_is_not_reported_twice() -> None:
    failed = simdist.run(os.fork, world_size=1)

    assert failed.refused
    assert "refused before" not in str(failed)
    assert simdist.run(refused_and_caught, world_size=1).ok
    assert simdist.run(int, world_size=1).refused == ()
