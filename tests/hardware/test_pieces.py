"""Journals, outcomes, portability, scaling of times, the cost model's fit."""

from __future__ import annotations

import pickle
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from simdist.faults import KINDS, Crash, LinkDelay, SlowRank
from simdist.hardware import Nodes
from simdist.hardware._device import nccl_environment, with_backend
from simdist.hardware._journal import Journal, read_events, read_lives
from simdist.hardware.compare._calibrate import Calibration, Fit, Model, fit_model, predict_s
from simdist.hardware.compare._outcome import outcome_of
from simdist.hardware.compare._portable import not_replayed
from simdist.scenario import load
from simdist.scenario._calibration import CalibrationError, calibrated
from tests.hardware.jobs import job


def test_a_journal_is_read_as_written_without_a_line_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 2, 1)
    journal.note("issue", "all_reduce", "0", 0, 8, "float32", (2,), -1, True, time_ns=5)
    with (tmp_path / "rank2-life1.jsonl").open("a") as stream:
        stream.write('[6, "comp')

    assert read_lives(tmp_path) == [(2, 1)]
    assert list(read_events(tmp_path, 2, 1)) == [(5, "issue", 2, "all_reduce", "0", 0, 8, "float32", (2,), -1, True)]


def written(folder: Path, rank: int, life: int, status: str, code: int | None, value: object = None) -> None:
    journal = Journal(folder, rank, life)
    journal.note("start", life, 100, "0", time_ns=10 + 100 * life)
    journal.note("issue", "barrier", "0", 0, 0, "", (), -1, True, time_ns=20 + 100 * life)
    if status in ("returned", "raised", "exited"):
        journal.note("exit", status, code, life, time_ns=40 + 100 * life)
        names = [base.__name__ for base in type(value).__mro__]
        content = pickle.dumps((status, names, str(value), pickle.dumps(value)))
        (folder / f"rank{rank}-life{life}.pickle").write_bytes(content)
    journal.note("ended", code, False, time_ns=time.time_ns())


def test_an_outcome_has_values_exceptions_signals_and_restarts(tmp_path: Path) -> None:
    written(tmp_path, 0, 0, "killed", -signal.SIGTERM)
    written(tmp_path, 1, 0, "killed", -signal.SIGKILL)
    written(tmp_path, 0, 1, "returned", 0, {"loss": 0.5})
    written(tmp_path, 1, 1, "raised", 1, ValueError("no"))

    result = outcome_of(job(tmp_path, world_size=3), "again")

    assert [rank.status for rank in result.ranks] == ["returned", "raised", "hung"]
    assert [rank.exit_code for rank in result.ranks] == [0, 1, None]
    assert result.ranks[0].value == {"loss": 0.5}
    assert repr(result.ranks[1].exception) == repr(ValueError("no"))
    assert [rank.lives for rank in result.ranks] == [2, 2, 0]
    assert (result.restarts, result.virtual_time_ns, result.seed) == (1, 140, 3)
    assert [event.kind for event in result.events].count("restart") == 1


def test_a_call_that_was_refused_is_no_operation(tmp_path: Path) -> None:
    written(tmp_path, 0, 0, "raised", 1, RuntimeError("Invalid scalar type"))
    Journal(tmp_path, 0, 0).note("refused", "barrier", "0", 0, time_ns=21)

    result = outcome_of(job(tmp_path), "")

    assert result.ranks[0].operations == 0


def test_an_exception_that_does_not_unpickle_keeps_its_name_and_text(tmp_path: Path) -> None:
    written(tmp_path, 0, 0, "raised", 1, ValueError("lost"))
    names = ["ShardError", "RuntimeError", "Exception", "BaseException", "object"]
    (tmp_path / "rank0-life0.pickle").write_bytes(pickle.dumps(("raised", names, "shard 3", b"")))

    error = outcome_of(job(tmp_path), "").ranks[0].exception

    assert [base.__name__ for base in type(error).__mro__][:2] == ["ShardError", "RuntimeError"]
    assert str(error) == "shard 3"


def test_what_cannot_be_replayed_is_named_with_its_reason() -> None:
    plan = load("scenarios/straggler.toml", overrides=['backend="sim"', "strict=true"])

    reported = [str(each) for each in not_replayed(plan, "gloo")]

    assert reported == [
        "backend 'sim': it exists only in simulation",
        "strict: a real backend has no strict mode",
    ]
    assert not_replayed(load("scenarios/ddp_crash_resume.toml"), "gloo") == ()


@pytest.mark.parametrize(
    ("nodes", "lines"),
    [
        (Nodes(), []),
        (Nodes(count=2, rank=1, endpoint="host:1", run_id="x"), []),
        (Nodes(count=2), ["--rdzv-endpoint: missing", "--rdzv-id: missing"]),
        (
            Nodes(count=3, rank=3, endpoint="host", run_id="x"),
            ["--node-rank: 3 is outside 0-2", "'host' is no host:port"],
        ),
        (Nodes(count=3, endpoint="host:1", run_id="x"), ["--nnodes: 4 ranks do not divide among 3 nodes"]),
    ],
)
def test_nodes_that_do_not_fit_together_are_reported(nodes: Nodes, lines: list[str]) -> None:
    found = nodes.problems(4)

    assert len(found) == len(lines)
    assert all(part in line for part, line in zip(lines, found, strict=True))


def test_faults_know_their_time_in_a_run() -> None:
    assert job(Path()).scaled_s(2_000_000_000) == 1.0
    assert [
        type(f) for f in (Crash(rank=0, at_ns=1), SlowRank(rank=0, delay_ns=1), LinkDelay(src=0, dst=1, delay_ns=1))
    ]


# -- calibration -------------------------------------------------------------------------------------------------------

TRUE = Model(30_000, 0.2, slowdown=3.0, latency_slowdown=1.5, from_bytes=1 << 20)
POINTS = [(operation, 4 << (2 * n)) for operation in ("all_reduce", "broadcast") for n in range(0, 13, 3)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_fit_finds_the_numbers_that_made_the_measurement(ranks: int) -> None:
    measured = {point: predict_s(*point, ranks, TRUE) for point in POINTS}

    fit = Fit(ranks, fit_model(ranks, measured), measured, measured)

    assert fit.error(measured) < 0.03
    assert fit.model.latency_ns == pytest.approx(TRUE.latency_ns, rel=0.05)
    assert fit.model.byte_ns == pytest.approx(TRUE.byte_ns, rel=0.1)


def test_a_description_is_read_back_as_the_arguments_of_a_cluster(tmp_path: Path) -> None:
    measured = {point: predict_s(*point, 2, TRUE) for point in POINTS}
    path = tmp_path / "machine.toml"
    path.write_text(Calibration("gloo", (Fit(2, TRUE, measured, measured),)).to_toml())

    assert calibrated(path, 2) == {
        "local_latency_ns": 30_000,
        "local_bandwidth_bytes_per_s": 5_000_000_000,
        "reduction_slowdown": 3.0,
        "reduction_latency_slowdown": 1.5,
        "reduction_from_bytes": 1 << 20,
    }
    with pytest.raises(CalibrationError, match="has no entry for 8 ranks; it has 2"):
        calibrated(path, 8)


def test_a_simulation_costs_what_the_description_says(tmp_path: Path) -> None:
    from datetime import timedelta as delta

    import torch
    import torch.distributed as dist

    import simdist

    def body() -> list[float]:
        dist.init_process_group("gloo", timeout=delta(seconds=5))
        times = []
        for size in (4, 1 << 20, 4 << 20):
            dist.barrier()
            began = time.monotonic()
            dist.all_reduce(torch.ones(size // 4))
            times.append(time.monotonic() - began)
        return times

    cluster = simdist.cluster.build(
        3,
        local_latency_ns=30_000,
        local_bandwidth_bytes_per_s=5 * 10**9,
        reduction_slowdown=3.0,
        reduction_latency_slowdown=1.5,
        reduction_from_bytes=1 << 20,
    )
    result = simdist.run(body, world_size=3, cluster=cluster)

    expected = [predict_s("all_reduce", size, 3, TRUE) for size in (4, 1 << 20, 4 << 20)]
    assert result.values[0] == pytest.approx(expected, rel=1e-4)


def test_no_time_is_scaled_to_none() -> None:
    from simdist.hardware.rank import _scaling

    assert _scaling.scaled(timedelta(seconds=2)) == timedelta(seconds=2)  # this process has no scale
    assert _scaling.scaled(timedelta(0)) == timedelta(0)


# -- NCCL --------------------------------------------------------------------------------------------------------------


def test_nccls_two_ways_of_waiting_exclude_each_other() -> None:
    blocking, watched = nccl_environment("blocking"), nccl_environment("async")

    names = ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    assert [blocking[name] for name in names] == ["1", "0"]
    assert [watched[name] for name in names] == ["0", "1"]
    assert watched["TORCH_NCCL_ENABLE_TIMING"] == "1"  # without it the flight record has no durations


@pytest.mark.parametrize(("asked", "given"), [(None, "nccl"), ("gloo", "nccl"), ("GLOO", "nccl"), ("mpi", "mpi")])
def test_a_workload_that_asks_for_gloo_gets_nccl_on_its_gpu(asked: str | None, given: str) -> None:
    def init_process_group(backend: str | None = None, timeout: object = None, device_id: object = None) -> object:
        return backend, timeout, device_id

    wrapped = with_backend(init_process_group, "cuda:1")

    assert wrapped(asked, timeout=3) == (given, 3, "cuda:1")
    assert wrapped(asked, device_id="cuda:2") == (given, None, "cuda:2")


_SIMULATED_ONLY = {
    *(
        "bad_values",
        "bit_flip",
        "bit_rot",
        "clock_skew",
        "device_error",
        "device_wrong",
        "disk_full",
        "host_crash",
        "io_error",
        "lost_sync",
        "short_write",
        "slow_disk",
        "wrong_result",
    ),
}


def test_every_fault_that_real_processes_can_have_is_in_the_parity_suite() -> None:
    plans = [load(str(path)) for path in sorted(Path("scenarios").glob("*.toml"))]

    replayed = {fault.kind for plan in plans if plan.portable for fault in plan.faults}

    assert set(KINDS) - replayed == _SIMULATED_ONLY
