"""`simdist calibrate`, with a machine that measures exactly what its model predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from simdist.cli import main
from simdist.hardware.compare import _calibrate
from simdist.hardware.compare._calibrate import Measurement, Model, predict_s
from simdist.scenario._calibration import calibrated

MACHINE = Model(40_000, 0.25, slowdown=2.0, latency_slowdown=1.5, from_bytes=64)
POINTS = [(operation, 4 << (4 * n)) for operation in ("all_reduce", "broadcast") for n in range(0, 7, 2)]


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first measurement of each world size be the model's, and each further one 10 % slower."""
    seen: set[int] = set()

    def measured_on(backend: str, ranks: int, *, limit_s: float) -> Measurement:
        slower = 1.1 if ranks in seen else 1.0
        seen.add(ranks)
        return {point: slower * predict_s(*point, ranks, MACHINE) for point in POINTS}

    monkeypatch.setattr(_calibrate, "measured_on", measured_on)


@pytest.mark.usefixtures("_measured")
def test_the_fit_is_printed_with_its_error_on_a_second_measurement(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"

    result = CliRunner().invoke(main, ["calibrate", "-o", str(path), "--ranks", "2", "--ranks", "3"])

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:1]] == ["operation"]
    assert sum(line.startswith(("all_reduce ", "broadcast ")) for line in lines) == 2 * len(POINTS)
    (overall,) = [line for line in lines if line.startswith("over all of it: ")]
    assert 8.0 < float(overall.split()[-1].rstrip("%")) < 12.0
    assert lines[-1] == f"written: {path}"


@pytest.mark.usefixtures("_measured")
def test_what_is_written_is_what_a_scenario_takes(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    CliRunner().invoke(main, ["calibrate", "-o", str(path), "--ranks", "3"])

    found = calibrated(path, 3)

    assert found["local_latency_ns"] == pytest.approx(40_000, rel=0.05)
    assert found["local_bandwidth_bytes_per_s"] == pytest.approx(4e9, rel=0.05)
    assert found["reduction_slowdown"] == pytest.approx(2.0, rel=0.05)
