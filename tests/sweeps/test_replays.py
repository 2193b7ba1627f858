"""A failure of a function's sweep is repeated by one call, or by a test that simdist writes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.cluster import make
from simdist.errors import ArgumentError
from simdist.faults import Crash, Fault, HostCrash
from simdist.sweeps import SweepReport

__all__ = ["in_place"]

_NAMES: dict[str, Any] = {"simdist": simdist, "Crash": Crash, "HostCrash": HostCrash, "tests": sys.modules["tests"]}


def in_place(folder: str, *, steps: int = 2) -> int:
    """Count the steps in a file that is written in place."""
    path = Path(folder) / "count"
    for step in range(int(path.read_text()) if path.exists() else 0, steps):
        simdist.step(step)
        path.write_text(str(step + 1))
    return int(path.read_text())


def _swept(**settings: Any) -> SweepReport:
    return simdist.sweep(in_place, world_size=1, kwargs={"steps": 1}, **settings)


@pytest.mark.parametrize("settings", [{}, {"second_crash": True, "limit": 6}, {"profile": "posix", "strikes": ["all"]}])
def test_a_replay_tries_only_that_crash_and_finds_the_same(settings: Any) -> None:
    report = _swept(**settings)

    for failure in report.shortest()[-2:]:
        again: SweepReport = eval(failure.replay, _NAMES)
        assert [each.account for each in again.failures][-1:] == [failure.account]
        assert again.cases[-1].faults == failure.case.faults
        assert len(again.cases) == len(failure.case.faults)


def test_a_replay_names_the_function_and_what_it_was_given() -> None:
    (failure, *_) = _swept(strikes=["rank"]).shortest()

    assert failure.replay == (
        "simdist.sweep(tests.sweeps.test_replays.in_place, world_size=1, kwargs={'steps': 1}, strikes=['rank'], "
        "only=[Crash(rank=0, op='storage', nth=2)])"
    )


def test_hosts_are_reported_too() -> None:
    report = simdist.sweep(in_place, world_size=2, cluster=make(2, hosts=2), strikes=["all"], limit=4, outcomes=1)

    assert "cluster=simdist.cluster.make(2, hosts=2)" in report.shortest()[0].replay


@pytest.mark.parametrize("fault", [Crash(rank=0, op="storage", nth=99), HostCrash(rank=0, at_step=0)])
def test_a_crash_that_the_sweep_does_not_try_is_refused(fault: Fault) -> None:
    with pytest.raises(ArgumentError, match="only: none of its crashes is"):
        _swept(only=[fault])


def test_tests_are_written_that_fail_until_the_program_is_mended(tmp_path: Path) -> None:
    source = Path(__file__).read_text().split("def in_place")[1].split("def _swept")[0]
    header = "import simdist\nfrom pathlib import Path\n\n\n"
    (tmp_path / "counting.py").write_text(f"{header}def in_place{source}")
    sys.path.insert(0, str(tmp_path))
    try:
        import counting  # type: ignore[import-not-found]

        report = simdist.sweep(counting.in_place, world_size=1, strikes=["rank"])
        written = report.write_tests(tmp_path / "found")
        test = runpy.run_path(str(written[0]))["test_in_place_1"]
        with pytest.raises(AssertionError, match="1 of 1 crash was not survived"):
            test()
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["counting"]

    assert [path.name for path in written] == ["test_in_place_1.py"]
    assert report.failures[0].account in test.__doc__


def test_no_test_is_written_for_a_function_that_no_file_could_import(tmp_path: Path) -> None:
    def local(folder: str) -> int:
        return in_place(folder)

    report = simdist.sweep(local, world_size=1, strikes=["rank"])

    with pytest.raises(ArgumentError, match="stands in no module"):
        report.write_tests(tmp_path)


def test_an_argument_that_nothing_has_is_named() -> None:
    with pytest.raises(ArgumentError, match="sed: unknown argument; did you mean 'seed'") as caught:
        simdist.sweep(print, world_size=2, sed=3, wokers=2)  # type: ignore[call-arg]

    assert len(str(caught.value).splitlines()) == 3
