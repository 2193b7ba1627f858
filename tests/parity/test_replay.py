"""Scenarios on real processes, compared with their simulation, and with simulations that are wrong on purpose.

Each scenario has one real run; all tests compare with the result of that run.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch.distributed import distributed_c10d

from simdist.c10d.backends.gloo import GlooFailure
from simdist.c10d.engine import _data
from simdist.cli import main
from simdist.hardware import replay
from simdist.hardware.compare._account import Account, account_of
from simdist.hardware.compare._compare import compare
from simdist.scenario import Plan, load, run_scenario

ROOT = Path(__file__).parents[2]


@functools.cache
def real(name: str) -> tuple[Plan, Account]:
    """Return the result of the scenario's real run; a busy machine gets a second and a third attempt."""
    plan = load(str(ROOT / "scenarios" / f"{name}.toml"))
    simulated = run_scenario(plan, record_results=True)
    report = account = None
    for _ in range(3):
        report = replay(plan)
        assert report is not None
        account = account_of(report.result, report.state, report.time_scale)
        if report.ok and all(point.ok for point in compare(account_of(simulated.result, simulated.state), account)):
            break
    assert report is not None
    assert account is not None
    assert report.ok, [verdict for verdict in report.verdicts if not verdict.ok]
    return plan, account


def differences(name: str) -> set[str]:
    """Return the kinds of points in which the present simulation differs from the real run."""
    plan, account = real(name)
    report = run_scenario(plan, record_results=True)
    return {point.name for point in compare(account_of(report.result, report.state), account) if not point.ok}


def test_ranks_that_seed_nothing_draw_the_same_in_both_arms() -> None:
    assert differences("unseeded") == set()


@dataclass(frozen=True)
class Flip:
    """A wrong behaviour of a backend's simulation, and the points that must show it."""

    scenario: str
    flip: Callable[[pytest.MonkeyPatch], None]
    shown_by: set[str]


def _another_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GlooFailure, "closed_by_peer", lambda self, peer: f"Connection to peer {peer} was lost")


def _another_order(patch: pytest.MonkeyPatch) -> None:
    right = _data.execute

    def in_the_other_direction(algorithm: Any, operation: Any, inputs: list[Any], limit: int) -> int:
        return int(right(algorithm, operation, inputs[::-1], limit))

    patch.setattr(_data, "execute", in_the_other_direction)


def _another_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(distributed_c10d, "default_pg_timeout", distributed_c10d.default_pg_timeout / 2)


FLIPS = {
    "an error text": Flip("crash_before", _another_text, {"exception", "errors"}),
    "the ring's order": Flip("ring_order", _another_order, {"results", "value"}),
    "a timeout": Flip("deadlock", _another_timeout, {"exception", "errors"}),
}


@pytest.mark.parametrize("name", ["crash_before", "ring_order", "deadlock", "restarts_exhausted", "hang"])
def test_a_portable_scenario_is_the_same_on_real_processes(name: str) -> None:
    assert differences(name) == set()


@pytest.mark.parametrize("name", FLIPS)
def test_a_wrong_personality_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flip = FLIPS[name]
    assert differences(flip.scenario) == set()

    flip.flip(monkeypatch)

    assert differences(flip.scenario) >= flip.shown_by


def test_two_agents_on_one_machine_replay_a_scenario_of_two_hosts(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    out, dumps = tmp_path / "out.json", tmp_path / "dumps"
    words = [sys.executable, "-m", "simdist", "run", "scenarios/two_hosts.toml", "--real", "gloo", "--nnodes", "2"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two", "--local-addr", "127.0.0.1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    written = ["--json", str(out), "--flight-recorder", str(dumps)]
    nodes = [
        subprocess.Popen(
            [*words, "--node-rank", str(rank), *written[: 4 * (rank == 0)]],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [node.communicate(timeout=110)[0] for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], texts
    summary = json.loads(out.read_text())
    assert [rank["status"] for rank in summary["ranks"]] == ["returned"] * 4
    assert len({rank["value"]["parameters"] for rank in summary["ranks"]}) == 1
    simulated = run_scenario(load(str(ROOT / "scenarios" / "two_hosts.toml"))).result
    assert summary["ranks"][3]["value"] == simulated.ranks[3].value
    # The records of the other node's torch are here, too: only they have code lines.
    assert [(each["rank"], each["compared"] > 0) for each in summary["flight_records"]] == [(r, True) for r in range(4)]
    last = pickle.loads((dumps / "nccl_trace_rank_3").read_bytes())["entries"][-1]
    assert last["frames"]


# -- commands ----------------------------------------------------------------------------------------------------------


def test_the_command_compares_and_writes_its_reports(tmp_path: Path) -> None:
    page, data = tmp_path / "out.html", tmp_path / "out.json"
    ideal = tmp_path / "ideal.toml"
    ideal.write_text('world_size = 2\nbackend = "sim"\n\n[workload]\ntarget = "builtins:print"\n')
    arguments = ["parity", "scenarios/exception.toml", str(ideal)]

    result = CliRunner().invoke(main, [*arguments, "--html", str(page), "--json", str(data)])

    assert result.exit_code == 0, result.output
    reports = {report["scenario"]: report for report in json.loads(data.read_text())["reports"]}
    assert reports["scenarios/exception.toml"]["status"] == "parity"
    assert all(point["ok"] for point in reports["scenarios/exception.toml"]["points"])
    assert "exception" in page.read_text()
    assert reports[str(ideal)]["reason"] == "backend 'sim': it exists only in simulation"
    assert "2 scenarios: 1 parity, 1 not comparable" in result.stdout


def test_nothing_comparable_is_exit_code_3_with_the_reason() -> None:
    result = CliRunner().invoke(main, ["parity", "scenarios/straggler.toml", "--real", "nccl"])

    assert result.exit_code == 3
    assert re.search("not comparable: (this build of torch has no NCCL|NCCL needs a GPU for each rank)", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["parity", "scenarios/none.toml", "--html", "/no/where.html"], ["no such file", "--html /no/where.html"]),
        (["parity", "scenarios/straggler.toml", "--time-scale", "0"], ["--time-scale: 0 is too small"]),
        (["run", "scenarios/straggler.toml", "--real", "gloo", "--nnodes", "3"], ["do not divide", "--rdzv-endpoint"]),
        (["run", "scenarios/straggler.toml", "--nnodes", "2"], ["--nnodes: for real runs only"]),
        (["run", "scenarios/straggler.toml", "--real", "gloo", "--strict"], ["--strict: a real run has none of that"]),
        (["calibrate", "-o", "/no/where.toml"], ["-o /no/where.toml: cannot be written"]),
    ],
)
def test_bad_input_is_reported_at_once_and_nothing_runs(
    arguments: list[str], reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 2, result.output
    assert all(text in result.output for text in reported), result.output
    assert "Traceback" not in result.output
