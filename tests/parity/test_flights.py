"""Flight records of real Gloo runs: torch's own recorder compared with simdist's, and dumps for torch's analyser."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from simdist.cli import main
from simdist.hardware import RealReport, replay
from simdist.hardware._job import Job
from simdist.hardware.compare._compare import recorders
from simdist.hardware.compare._outcome import matches_of
from simdist.scenario import load
from tests.trace.analyser import analysed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[RealReport, Path]:
    """A run with every kind of collective, and its folder."""
    folder = tmp_path_factory.mktemp("kept")
    report = replay(load(str(ROOT / "scenarios" / "all_operations.toml")), keep=folder)
    assert report is not None
    return report, folder / "run"


def test_torchs_recorder_and_ours_agree_in_every_kind_of_collective(kept: tuple[RealReport, Path]) -> None:
    report, _ = kept

    assert report.ok
    assert [match.record.rank for match in report.matches] == [0, 1, 2, 3]
    assert [(match.compared, match.disagreement) for match in report.matches] == [(20, None)] * 4
    assert {key[0] for key, _ in report.matches[0].pairs} == {
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "gather",
        "scatter",
        "reduce_scatter",
        "all_to_all",
        "barrier",
    }


def test_torch_recorded_an_operation_when_ours_was_issued(kept: tuple[RealReport, Path]) -> None:
    report, _ = kept
    issued = {
        (e.data["op"], e.data["seq"]): e.time_ns for e in report.result.events if e.kind == "issue" and not e.rank
    }

    late_ns = [entry.created_ns - issued[op, sequence] for (op, _, sequence), entry in report.matches[0].pairs]

    assert all(0 <= late < 1_000_000_000 for late in late_ns), late_ns


def test_a_recorder_that_is_wrong_is_reported(kept: tuple[RealReport, Path]) -> None:
    _, folder = kept
    path = folder / "rank2-life0.flight"
    right = path.read_bytes()
    doctored = pickle.loads(right)
    doctored["entries"][4]["profiling_name"] = "gloo:all_reduce"
    try:
        path.write_bytes(pickle.dumps(doctored))
        matches = matches_of(Job.load(str(folder / "job.pickle")))
    finally:
        path.write_bytes(right)

    (point,) = [point for point in recorders(matches) if not point.ok]
    assert point.rank == 2
    assert point.real == "torch's flight recorder saw all_reduce as collective 5 of group '0' of Float[37]"
    assert point.simulated == "simdist recorded broadcast #4 in group '0', 148 bytes of float32"


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("timeout", ["Not all ranks joining collective, sequence number: 2", "missing ranks: {1}", "never_calls at "]),
        ("mismatched_order", ["Collective sequence number: 2 has errors", "error msg: ", "disagrees_on_order at "]),
    ],
)
def test_torchs_analyser_reads_a_real_run(scenario: str, expected: list[str], tmp_path: Path) -> None:
    words = ["run", str(ROOT / "scenarios" / f"{scenario}.toml"), "--real", "gloo", "--flight-recorder", str(tmp_path)]

    result = CliRunner().invoke(main, words)

    assert result.exit_code in (0, 1), result.output  # which rank a real mismatch ends first is a race
    assert "flight records" not in result.output  # no record has a problem
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"nccl_trace_rank_{rank}" for rank in range(3)]
    said = analysed(tmp_path)
    assert said[0] == expected[0]
    for words_said in expected[1:]:
        assert any(line.startswith(words_said) for line in said), said


def test_dumps_that_cannot_be_written_are_reported_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["run", "scenarios/timeout.toml", "--real", "gloo", "--flight-recorder", str(tmp_path / "file")]

    result = CliRunner().invoke(main, words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--flight-recorder {tmp_path / 'file'}: is a file; expected a folder" in result.stderr


@pytest.mark.parametrize("real", [[], ["--real", "gloo"]])
def test_a_way_of_waiting_is_for_nccl_only(real: list[str]) -> None:
    result = CliRunner().invoke(main, ["run", "scenarios/timeout.toml", *real, "--nccl-wait", "blocking"])

    assert result.exit_code == 2
    assert "--nccl-wait: it is about NCCL; add --real nccl" in result.stderr
