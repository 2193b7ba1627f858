"""The passes of a check and its report, with this process in place of others; and twice with real ones."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.determinism import Job, Recording, check, compare, record
from simdist.errors import SimdistError
from tests.determinism import clean, planted

JOB = Job("nowhere", "nothing")


def sleeping(milliseconds: Callable[[], float]) -> Callable[[], object]:
    """Return a run in which rank 0 sleeps for as long as `milliseconds` returns."""

    def program() -> None:
        if dist.is_available():
            duration = milliseconds()
            time.sleep(duration / 1e3)

    return lambda: simdist.run(program, world_size=1)


def payload(changed: int) -> Callable[[], object]:
    def program() -> None:
        dist.init_process_group("gloo")
        tensor = torch.zeros(10_000)
        tensor[changed] = 1.0
        dist.all_reduce(tensor)

    return lambda: simdist.run(program, world_size=2)


def returning(value: Any) -> Callable[[], object]:
    return lambda: simdist.run(lambda: value, world_size=1)


def test_equal_runs_have_no_difference() -> None:
    assert compare(record(payload(3)), record(payload(3))) is None


def test_the_first_event_that_differs_is_reported_with_both_versions() -> None:
    difference = compare(record(sleeping(lambda: 1)), record(sleeping(lambda: 2)))

    assert difference is not None
    assert (difference.world, difference.index, difference.fields) == (0, 1, ["duration_ns"])
    assert difference.one.event is not None
    assert difference.one.event["duration_ns"] == 1_000_000
    assert difference.one.site is not None
    assert difference.one.site[2] == "program"


def test_a_run_that_ends_earlier_differs_where_it_ends() -> None:
    two = record(lambda: [sleeping(lambda: 1)(), sleeping(lambda: 1)()])

    difference = compare(record(sleeping(lambda: 1)), two)

    assert difference is not None
    assert (difference.what, difference.world) == ("number of worlds", 1)


def test_large_payloads_are_compared_whole_though_the_digest_samples_them() -> None:
    one, other = record(payload(3000)), record(payload(3001))

    difference = compare(one, other)

    assert one.digests == other.digests
    assert difference is not None
    assert difference.fields == ["whole payload"]


def test_what_a_rank_returns_belongs_to_the_run() -> None:
    difference = compare(record(returning([1, 2])), record(returning([2, 1])))

    assert difference is not None
    assert difference.what == "returned value"


def test_what_the_program_raises_outside_a_rank_belongs_to_the_run() -> None:
    def fails() -> None:
        raise ValueError("no")

    assert compare(record(fails), record(lambda: None)) is not None
    assert record(fails).error == "ValueError: no"


@pytest.mark.parametrize(("every_time", "shown"), [(True, [2, 2]), (False, [2, 0])])
def test_a_warning_that_a_library_gives_only_once_is_no_difference(every_time: bool, shown: list[int]) -> None:
    calls = itertools.count()

    def program() -> None:
        if every_time or next(calls) == 0:  # once, like torch's C++
            warnings.warn("once", UserWarning, stacklevel=1)

    spec = importlib.util.find_spec("warnings")
    assert spec is not None
    assert spec.loader is not None
    untouched: Any = importlib.util.module_from_spec(spec)  # pytest has replaced the function that shows warnings
    spec.loader.exec_module(untouched)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings._showwarnmsg_impl = untouched._showwarnmsg_impl  # type: ignore[attr-defined]
        runs = [record(lambda: simdist.run(program, world_size=1)) for _ in range(2)]

    assert [sum(event.is_warning for event in run.worlds[0].events) for run in runs] == shown
    assert compare(*runs) is None


def test_recording_leaves_the_digest_as_it_is() -> None:
    def program() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.arange(5000.0))

    result = simdist.run(program, world_size=2)

    assert record(lambda: simdist.run(program, world_size=2), lines=True).digests == (result.digest,)


def test_the_report_shows_both_versions_the_line_and_the_cause() -> None:
    values = itertools.count(1)
    call = sleeping(lambda: next(values))

    report = check(call, JOB, target="job", fresh=lambda job, _: record(call, lines=job.lines))

    lines = str(report).splitlines()
    assert lines[0].startswith("job: not the same in a fresh process with PYTHONHASHSEED=")
    assert lines[0].endswith(", from event 1 on")
    assert any(line.split() == ["*", "duration_ns", "1000000", "2000000"] for line in lines)
    assert report.cause is not None
    assert report.cause.source == "call = sleeping(lambda: next(values))"
    assert report.cause.line < report.cause.way[-1][1] or len(report.cause.way) > 1


@pytest.mark.parametrize("same", [True, False])
def test_programs_outside_the_simulation_are_named_with_their_line(*, same: bool) -> None:
    values = itertools.count(1)

    def program() -> None:
        subprocess.run(["echo", "0" if same else str(next(values))], check=True)

    def call() -> None:
        simdist.run(program, world_size=1)

    report = check(call, JOB, target="job", fresh=lambda job, _: record(call, lines=job.lines))

    assert report.ok == same
    assert str(report).splitlines()[-2:] == [
        "no seed decides what programs outside the simulation do:",
        f"  echo, started at test_check.py:{program.__code__.co_firstlineno + 1} by rank 0",
    ]


def test_what_differs_in_this_process_only_is_state_left_here() -> None:
    here = [0]
    call = sleeping(lambda: here[0])

    def fresh(job: Job, _: str) -> Recording:
        here[0], before = 5, here[0]
        try:
            return record(call, lines=job.lines)
        finally:
            here[0] = before

    report = check(call, JOB, target="job", fresh=fresh)

    assert report.cause is not None
    assert report.cause.kind == "state left by an earlier run in this process"
    assert report.cause.source == "call = sleeping(lambda: here[0])"


def test_a_cause_that_does_not_show_again_is_not_guessed() -> None:
    times = iter([1, *[2] * 10])
    call = sleeping(partial(next, times))

    report = check(call, JOB, target="job", fresh=lambda job, _: record(call, lines=job.lines))

    assert not report.ok
    assert report.cause is None
    assert str(report).splitlines()[-1] == "likely cause: not found; it did not show again when the program was traced"


@pytest.mark.real  # starts interpreters
def test_a_function_is_checked_in_fresh_processes() -> None:
    report = simdist.check_determinism(planted.hash_of_a_text, world_size=2)

    assert not report.ok
    assert report.cause is not None
    assert (report.cause.kind, report.cause.source) == (
        "hash()",
        'place = hash("embedding.weight") % 1_000_003  # <- here',
    )


@pytest.mark.usefixtures("warm_processes")
def test_a_function_that_repeats_itself_passes() -> None:
    report = simdist.check_determinism(clean.ring_of_messages, world_size=3, seed=2, policy="random")

    assert report.ok
    assert str(report).startswith("clean.py:ring_of_messages: the same in a fresh process with PYTHONHASHSEED=")


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (lambda: None, {}, "it is a lambda; put it at the top of its module"),
        (partial(clean.set_as_a_set), {}, "can't import a functools.partial; pass the function"),
        (print, {}, "pass a function of a module"),
        (clean.set_as_a_set, {"args": (threading.Lock(),)}, "they can't be handed over: cannot pickle"),
    ],
)
def test_what_a_fresh_process_cannot_have_is_refused(
    function: Callable[..., Any], arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(simdist.SimdistError, match=text.replace("(", r"\(")):
        simdist.check_determinism(function, world_size=1, **arguments)


@pytest.mark.usefixtures("warm_processes")
def test_a_fresh_process_that_fails_says_why() -> None:
    from simdist.determinism import in_fresh_process

    with pytest.raises(simdist.SimdistError, match="No module named 'nowhere'"):
        in_fresh_process(JOB, "1")


def test_a_rank_cannot_check() -> None:
    def body() -> None:
        with pytest.raises(SimdistError, match="rank 0: a determinism check runs worlds of its own"):
            simdist.check_determinism(clean.sorted_set, world_size=2)
        with pytest.raises(SimdistError, match="call it from the program that runs the world"):
            check(lambda: None, Job("builtins", "print"), target="nothing")

    simdist.run(body, world_size=1).raise_for_failure()
