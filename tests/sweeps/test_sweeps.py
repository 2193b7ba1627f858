"""A sweep crashes a program at every moment and reports where it does not recover."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import make
from simdist.errors import ArgumentError, InterruptedRunsError
from simdist.faults import Crash, Hang, HostCrash, Signal
from simdist.programs import FunctionProgram
from simdist.settings import CheckedSettings
from simdist.storage import Mount
from simdist.sweeps import STRIKES, CameBack, Crashes, SweepReport, Tries, swept
from tests.sweeps.isolated_programs import count, in_parts, number


def in_place(folder: str) -> int:
    """Count the steps in a file that is written in place."""
    path = Path(folder) / "count"
    for step in range(number(path), 2):
        path.write_text(str(step + 1))
    return number(path)


def _program(function: Any, settings: CheckedSettings) -> FunctionProgram:
    whole: CheckedSettings = {"world_size": 1, "args": ("{tmp}",), **settings}
    mount = Mount(folder="{tmp}")
    return FunctionProgram(caller="a test", function=function, settings=whole, mount=mount, oracle=CameBack())


def _calls(report: SweepReport) -> list[tuple[str, str]]:
    return [(point.kind, point.call) for point in report.points]


def test_points_are_what_a_crash_can_come_before() -> None:
    report = simdist.sweep(count, world_size=1, args=("{tmp}",), kwargs={"steps": 1})

    assert _calls(report) == [
        ("step", "step 0"),
        ("storage", "create of count.tmp"),
        ("storage", "write of count.tmp"),
        ("storage", "fsync of count.tmp"),
        ("storage", "rename of count.tmp to count"),
        ("storage", "fsync_dir of the disk"),
    ]
    assert [point.nth for point in report.points] == [1, 1, 2, 3, 4, 5]
    assert all(point.where.startswith("isolated_programs.py:") for point in report.points)


def resumed(folder: str) -> None:
    path = Path(folder) / "count"
    simdist.sometimes("went on", path.exists() and path.stat().st_size > 0)
    simdist.sometimes("from the tenth step", path.exists() and path.read_text() == "10")
    in_place(folder)


def test_what_should_be_reached_and_never_was_is_listed() -> None:
    report = simdist.sweep(resumed, world_size=1, args=("{tmp}",), strikes=["rank"])

    assert report.never == ("from the tenth step",)
    assert "  never reached: from the tenth step" in str(report).splitlines()


def test_code_that_syncs_survives_everything() -> None:
    report = simdist.sweep(count, world_size=1, max_steps_lost=1, outcomes=8)

    assert report.ok
    assert len(report.cases) > 20
    report.raise_for_failure()


def test_code_that_does_not_sync_is_reported_with_the_line_and_the_rest() -> None:
    report = simdist.sweep(count, world_size=1, kwargs={"sync": False}, strikes=["all"])

    assert not report.ok
    assert not report
    failure = report.shortest()[0]
    assert "all hosts lost power after rename of count.tmp to count (isolated_programs.py:" in failure.account
    assert "count is empty, of 1 bytes; rank 0 raised ValueError: invalid literal for int()" in failure.account
    assert failure.left == (("count", "is empty, of 1 bytes"),)
    with pytest.raises(AssertionError, match=r"(was|were) not survived\n.*points, .* crashes tried"):
        report.raise_for_failure()


def test_a_rank_that_dies_shows_what_is_written_in_place() -> None:
    report = simdist.sweep(in_place, world_size=1, strikes=["rank"])

    assert [failure.case.words.partition(" (")[0] for failure in report.failures] == [
        "rank 0 died before write of count",
        "rank 0 died during write of count",
        "rank 0 died before write of count",
        "rank 0 died during write of count",
    ]


def test_a_checkpoint_that_is_too_old_is_a_failure() -> None:
    def seldom(folder: str) -> int:
        path = Path(folder) / "count"
        for step in range(number(path), 6):
            simdist.step(step)
            if step == 2:
                path.write_text("3")
        return 6

    for bound, said in ((2, set()), (1, {"2 steps were lost to a restart, at most 1"})):
        report = simdist.sweep(seldom, world_size=1, strikes=["rank"], max_steps_lost=bound)

        problems = [failure.problems[0] for failure in report.failures]
        assert {text for name, text in problems if name == "max_steps_lost"} == said


def test_a_wrong_state_is_a_failure() -> None:
    def forgets(folder: str) -> float:
        path = Path(folder) / "state"
        momentum, total, first = 0.0, 0.0, 0
        if path.exists():
            text = path.read_text().split()
            total, first = float(text[0]), int(text[1])
        for step in range(first, 3):
            momentum = momentum / 2 + step
            total += momentum
            path.with_suffix(".tmp").write_text(f"{total} {step + 1}")
            path.with_suffix(".tmp").replace(path)
        return total

    report = simdist.sweep(forgets, world_size=1, strikes=["rank"])

    assert {failure.problems[0][0] for failure in report.failures} == {"same_as_without_faults"}


def test_crashes_that_leave_the_same_are_tried_once() -> None:
    def idle(folder: str) -> None:
        (Path(folder) / "a").touch()
        for step in range(10):
            simdist.step(step)

    report = simdist.sweep(idle, world_size=1, strikes=["all"])

    before = [case.point.call for case in report.cases if case.when == "before"]
    assert before == ["create of a", *(f"step {step}" for step in range(10) for _ in "ab")]
    assert report.merged == 0  # a program that is further loses more

    def waits(folder: str) -> None:
        (Path(folder) / "a").touch()
        for _ in range(10):
            simdist.point("waiting")

    report = simdist.sweep(waits, world_size=1, strikes=["all"])

    before = [case.point.call for case in report.cases if case.when == "before"]
    assert before == [
        "create of a",
        "point 'waiting'",
    ]  # the file is there, or it is not
    assert report.merged == 2 * 10 - 1


def test_each_crash_is_a_fault_with_a_trigger_of_its_own() -> None:
    report = simdist.sweep(in_place, world_size=1, limit=4)

    assert len(report.cases) == 4
    assert report.left_out > 0
    for case in report.cases:
        assert case.fault.target == 0
        assert isinstance(case.fault, Crash | HostCrash)


def test_hosts_lose_power_one_by_one_and_all_together() -> None:
    def save(folder: str) -> float:
        dist.init_process_group("gloo")
        path = Path(folder) / "value.pt"
        value = torch.load(path)["value"] if path.exists() else torch.zeros(1)
        if not path.exists():
            dist.all_reduce(value.add_(dist.get_rank()))
            if dist.get_rank() == 0:
                torch.save({"value": value}, path.with_suffix(".tmp"))
                path.with_suffix(".tmp").replace(path)
        dist.barrier()
        dist.destroy_process_group()
        return float(value)

    report = simdist.sweep(save, world_size=2, cluster=make(2, hosts=2))

    assert {case.strike for case in report.cases} == set(STRIKES[:3])
    # A server keeps closed files when a host loses power; when the server does, it keeps only synced ones.
    assert {failure.case.strike for failure in report.failures} == {"all"}
    assert any("value.pt is empty, of" in failure.account for failure in report.failures)


def test_a_program_that_fails_undisturbed_is_not_swept() -> None:
    def fails(folder: str) -> None:
        raise ValueError(folder and "no")

    report = simdist.sweep(fails, world_size=1)

    assert report.wrong == (("outcomes", "rank 0 raised ValueError: no"),)
    assert not report.ok
    assert report.cases == ()


def test_what_a_check_says_is_a_failure() -> None:
    def check(result: Any, folder: str) -> str | None:
        return "left a temporary file" if (Path(folder) / "count.tmp").exists() else None

    def asserts(result: Any, folder: str) -> None:
        assert not (Path(folder) / "count.tmp").exists(), "left a temporary file"

    def leaves(folder: str) -> int:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            (Path(folder) / "count.tmp").write_text("1")
            (Path(folder) / "count.tmp").unlink()
        return 1

    reports = [simdist.sweep(leaves, world_size=1, strikes=["rank"], check=each) for each in (check, asserts)]

    said = {(("check", "left a temporary file"),)}
    assert [{failure.problems for failure in report.failures} for report in reports] == [said, said]


def test_what_cannot_be_seen_is_named() -> None:
    def unseen(folder: str) -> None:
        torch.from_file(f"{folder}/shared", shared=True, size=4)
        os.sync()

    assert simdist.sweep(unseen, world_size=1, strikes=["rank"]).unseen == ("shared",)


def test_bad_arguments_are_reported_all_at_once() -> None:
    wrong: Any = {"strikes": ["cat"], "disk": "x"}

    with pytest.raises(ArgumentError) as caught:
        simdist.sweep(count, world_size=1, profile="zfs", outcomes=0, limit=0, **wrong)

    text = str(caught.value)
    for name in ("profile", "strikes", "outcomes", "limit", "disk"):
        assert f"{name}: " in text


@pytest.mark.parametrize("strikes", ["rank", 3])
def test_strikes_that_are_no_sequence_are_one_problem(strikes: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        simdist.sweep(count, world_size=1, strikes=strikes)

    (problem,) = caught.value.problems
    assert problem.startswith("strikes: expected a sequence of strikes, such as ['rank'], found the ")


def test_equal_sweeps_give_equal_reports() -> None:
    assert simdist.sweep(in_place, world_size=1) == simdist.sweep(in_place, world_size=1)


def test_a_request_to_a_store_is_a_point() -> None:
    def asks(folder: str) -> int:
        store = dist.TCPStore("localhost", 29501, is_master=True)  # type: ignore[attr-defined]
        store.set("key", "value")
        return int(store.add("count", 0))

    report = simdist.sweep(asks, world_size=1, strikes=["rank"])

    assert report.wrong == ()
    assert [(each.point.call, each.fault) for each in report.cases] == [
        ("store.set of 'key'", Crash(rank=0, op="store", nth=1)),
        ("store.add of 'count'", Crash(rank=0, op="store", nth=2)),
    ]
    assert report.ok


@pytest.mark.parametrize("sync", [True, False])
def test_a_run_that_begins_again_as_another_did_ends_as_that_did(sync: bool) -> None:
    kwargs = {"steps": 2, "sync": sync}
    given: dict[str, Any] = {"world_size": 1, "kwargs": kwargs, "max_steps_lost": 0, "isolate": True, "outcomes": 4}
    every = simdist.sweep(count, **given, merge=False)

    merged = simdist.sweep(count, **given)

    assert (every.known, merged.known > len(merged.cases) // 3) == (0, True)
    assert merged == every
    assert merged.ok == sync


@pytest.mark.parametrize("looks", [False, True])
def test_what_is_left_of_a_file_that_nobody_looks_at_makes_no_other_life(looks: bool) -> None:
    program = _program(in_parts, {"isolate": True, "kwargs": {"looks": looks}})
    whole = swept(Crashes(program, merge=False), Tries())
    crashes = Crashes(program)

    report = swept(crashes, Tries())

    assert report.failures == whole.failures
    assert len(report.failures) == (7 if looks else 0)
    seen = crashes.lives.seen
    assert any("but for" in name for name in seen) == (not looks)
    assert len({id(life) for life in seen.values()}) < len({name for name in seen if "but for" not in name}) or looks
    assert list(listening()) == []


def listening() -> Iterator[str]:
    """Yield this process's descriptors of inotify, by which the system reports opened files."""
    for each in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # the descriptor that lists them is already closed
            if "inotify" in str(each.readlink()):
                yield each.name


_lives: list[str] = []  # in a module that all lives of a rank share, unless it is isolated


def remembers(folder: str) -> int:
    """Return a result that depends on what an earlier life has left in memory."""
    for name in ("value", "other"):
        (Path(folder) / name).touch()
    _lives.append("first")
    (Path(folder) / "other").unlink()
    _lives.append("second")
    (Path(folder) / "other").touch()
    found = len(_lives)
    _lives.clear()
    return 2 if found == 3 else found


def test_ranks_that_share_modules_are_run_to_the_end() -> None:
    _lives.clear()
    report = simdist.sweep(remembers, world_size=1, strikes=["rank"])

    # A rank that dies before the last call leaves the same files as one that dies before the second.
    assert [(each.case.point.call, each.case.point.nth) for each in report.failures] == [("create of other", 4)]
    assert report.known == 0


def test_what_a_function_closes_over_or_is_given_outlives_a_crash() -> None:
    lives: list[int] = []

    def counts(folder: str) -> None:
        lives.append(len(folder))

    def given(folder: str, seen: list[int]) -> None:
        seen.append(len(folder))

    for fn, args in ((counts, ("{tmp}",)), (given, ("{tmp}", lives))):
        assert not _program(fn, {"isolate": True, "args": args}).forgets
    assert _program(count, {"isolate": True}).forgets
    assert not _program(count, {"isolate": True, "share": ["os"]}).forgets
    assert not _program(count, {}).forgets


def test_a_second_crash_strikes_the_recovery() -> None:
    def clears(folder: str) -> int:
        """Remove a half-done file before its content is in a new one."""
        path = Path(folder) / "value"
        if path.with_suffix(".old").exists():
            text = path.with_suffix(".old").read_text()
            path.with_suffix(".old").unlink()
            path.write_text(text)
        elif not path.exists():
            path.with_suffix(".old").write_text("5")
            path.with_suffix(".old").replace(path)
        return int(path.read_text() or "0")

    assert not simdist.sweep(clears, world_size=1, strikes=["rank"]).ok

    def goes_back(folder: str) -> int:
        path, old = Path(folder) / "value", Path(folder) / "old"
        if old.exists():  # it died in the middle: recover, in a way that can't be repeated
            old.unlink()
            path.write_text("5")
        elif not path.exists():
            old.write_text("")
            path.write_text("5")
            old.unlink()
        return int(path.read_text())

    once = simdist.sweep(goes_back, world_size=1, strikes=["rank"])
    twice = simdist.sweep(goes_back, world_size=1, strikes=["rank"], second_crash=True)

    assert once.ok
    assert not twice.ok
    assert twice.shortest()[0].account.startswith(
        "rank 0 died before write of old (test_sweeps.py:"
    ) or twice.shortest()[0].account.startswith("rank 0 died before create of value (test_sweeps.py:")
    assert "; in the life after that rank 0 died before " in twice.shortest()[0].account
    failed = twice.failures[0].case
    assert failed.faults[1] == Crash(rank=0, op="storage", nth=failed.point.nth, life=1, when=failed.when)


def test_a_sweep_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "kept")

    def interrupt(done: int, count: int, failed: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunsError) as caught:
        simdist.sweep(in_place, world_size=1, keep=path, progress=interrupt)
    assert (len(caught.value.report.cases), caught.value.report.ok) == (5, False)
    kept = Path(path).read_text()
    Path(path).write_text(kept + '{"crash": 5, "fail')  # power was lost in the middle of a line
    tried: list[int] = []

    report = simdist.sweep(in_place, world_size=1, keep=path, progress=lambda done, *_: tried.append(done))

    assert len(kept.splitlines()) == 6
    assert report == simdist.sweep(in_place, world_size=1)
    assert Path(path).read_text().startswith(kept)
    assert tried == list(range(1, len(report.cases) + 1))
    with pytest.raises(ArgumentError, match="is of another sweep, or of no sweep; remove it, or name another file"):
        simdist.sweep(in_place, world_size=1, keep=path, strikes=["rank"])


def _add_up(folder: str, *, fixed: bool = False) -> float:
    """Add up in two steps, for the present number of ranks, or (`fixed`) only for two ranks."""
    dist.init_process_group("gloo")
    path = Path(folder) / "value.pt"
    first, total = torch.load(path) if path.exists() else (0, 0.0)
    dist.barrier()
    for step in range(first, 2):
        simdist.step(step)
        value = torch.ones(2 if fixed else dist.get_world_size())
        dist.all_reduce(value)
        total += float(value[1 if fixed else dist.get_world_size() - 1])
        if dist.get_rank() == 0:
            torch.save((step + 1, total), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
        dist.barrier()
    assert not fixed or dist.get_world_size() == 2, "it was made for two"
    dist.destroy_process_group()
    return total


def test_a_host_is_lost_for_good_and_the_others_go_on() -> None:
    settings: dict[str, Any] = {"world_size": 2, "cluster": make(2, hosts=2), "strikes": ["lost"]}

    report = simdist.sweep(_add_up, **settings)

    assert report.wrong == ()
    assert len(report.cases) > 5
    assert report.failures == ()
    assert {case.point.rank for case in report.cases} == {1}  # without the first host no rank goes on
    broken = simdist.sweep(_add_up, **settings, kwargs={"fixed": True})
    assert len(broken.failures) == len(broken.cases)
    assert broken.failures[0].account.startswith("the host of rank 1 was lost for good before ")
    assert "rank 0 raised AssertionError: it was made for two" in broken.failures[0].account
    assert "strikes=['lost']" in broken.failures[0].replay


def test_what_code_writes_that_cannot_be_seen_is_lost_all_the_same() -> None:
    def save(folder: str) -> int:
        path = Path(folder) / "value"
        value = torch.load(path) if path.exists() else 0
        for step in range(value, 2):
            simdist.step(step)
            torch.save(step + 1, f"{folder}/new")
            data = (Path(folder) / "new").read_bytes()
            mapped = torch.from_file(str(path), shared=True, size=len(data), dtype=torch.uint8)  # invisible to simdist
            mapped.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return value

    report = simdist.sweep(save, world_size=1, strikes=["all"], outcomes=1)

    assert report.unseen == ("value",)
    assert any("value is empty" in failure.account for failure in report.failures)
    assert "{tmp}" in str(report) or "/simdist-" not in str(report)  # the folder differs from run to run


def saving_on_sigterm(folder: str, *, early: bool, code: int = 1) -> int:
    """Add up the steps; a handler saves at once, or (not `early`) notes the signal for the end of the step."""
    path = Path(folder) / "count"
    first, total = map(int, path.read_text().split()) if path.exists() else (0, 0)
    state, noted = {"next": first, "total": total}, []

    def save() -> None:
        path.with_suffix(".tmp").write_text(f"{state['next']} {state['total']}")
        path.with_suffix(".tmp").replace(path)
        sys.exit(code)

    def on_sigterm(number: int, frame: object) -> None:
        noted.append(number)
        if early:
            save()

    signal.signal(signal.SIGTERM, on_sigterm)
    for step in range(first, 3):
        simdist.step(step)
        state["total"] += step
        simdist.point("added")
        state["next"] = step + 1
        if noted:
            save()
    return state["total"]


def test_a_sigterm_at_any_moment_finds_a_handler_that_saves_within_a_step() -> None:
    report = simdist.sweep(saving_on_sigterm, world_size=1, kwargs={"early": True}, strikes=["sigterm"])

    assert [(case.strike, case.fault) for case in report.cases] == [
        (strike, fault)
        for step in range(3)
        for strike, fault in (
            ("sigterm", Signal(rank=0, at_step=step)),
            ("sigterm", Signal(rank=0, at_point="added", nth=step + 1)),
        )
    ]
    assert [failure.case.fault for failure in report.failures] == [
        Signal(rank=0, at_point="added", nth=2),
        Signal(rank=0, at_point="added", nth=3),
    ]
    said = report.failures[0].account
    assert said.startswith("rank 0 got SIGTERM before point 'added' (test_sweeps.py:")
    assert said.endswith("rank 0 differs at value: 4 and 3 undisturbed")
    assert "SIGTERM only note it" in str(report)


def test_a_handler_that_only_notes_the_signal_comes_back() -> None:
    report = simdist.sweep(saving_on_sigterm, world_size=1, kwargs={"early": False}, strikes=["sigterm"])

    assert (report.ok, len(report.cases)) == (True, 6)


def test_a_handler_that_leaves_with_exit_code_0_is_not_started_again() -> None:
    settings: dict[str, Any] = {"world_size": 1, "kwargs": {"early": False, "code": 0}}
    report = simdist.sweep(saving_on_sigterm, **settings, only=[Signal(rank=0, at_step=1)], strikes=["sigterm"])

    (failure,) = report.failures
    assert failure.problems == (
        ("same_as_without_faults", "rank 0 differs at value: None and 3 are of different types undisturbed"),
    )


def test_a_sigterm_needs_no_disk_and_ends_a_program_without_a_handler() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    plain = FunctionProgram(
        caller="a test", function=body, settings={"world_size": 2}, mount=None, oracle=CameBack(steps_lost=0)
    )
    report = swept(Crashes(plain), Tries(strikes=("sigterm",)))

    assert report.ok
    assert {case.strike for case in report.cases} == {"sigterm"}
    assert len(report.cases) == len(report.points)


def test_a_second_sigterm_strikes_the_recovery() -> None:
    report = simdist.sweep(count, world_size=1, strikes=["sigterm"], kwargs={"steps": 1}, second_crash=True)

    assert report.ok
    seconds = [case for case in report.cases if case.first is not None]
    assert seconds
    assert all(fault == Signal(rank=0, **case.point.trigger, life=1) for case in seconds for fault in [case.fault])


def adding(*, swallows: bool) -> list[float]:
    """Add up tensors of all ranks; a time-out ends the program, or (`swallows`) only the loop."""
    dist.init_process_group("gloo")
    total = torch.zeros(1)
    for step in range(2):
        simdist.step(step)
        part = torch.full((1,), step + 1.0)
        try:
            dist.all_reduce(part)
        except RuntimeError:
            if not swallows:
                raise
            break
        total += part
    return total.tolist()


def hangs(*, swallows: bool) -> SweepReport:
    return simdist.sweep(adding, world_size=2, args=(), kwargs={"swallows": swallows}, strikes=["hang"], max_restarts=1)


def test_a_hang_at_every_moment_finds_a_time_out_that_is_swallowed() -> None:
    report = hangs(swallows=True)

    assert not report.ok
    assert {case.fault for case in report.cases} >= {Hang(rank=1, at_step=1, duration_ns=7_200 * 10**9)}
    assert all("hung for 2 h" in failure.case.words for failure in report.failures)
    assert "rank 0 differs at [0]: 0.0 and 6.0 undisturbed" in str(report)
    assert "let a time-out end the rank" in str(report)


def test_a_time_out_that_ends_the_program_and_a_lone_hang_are_survived() -> None:
    report = hangs(swallows=False)

    assert report.ok
    assert {(case.point.rank, case.point.call) for case in report.cases} >= {(0, "step 1"), (1, "step 1")}
