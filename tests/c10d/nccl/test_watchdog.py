"""Operations that do not end: logs, dumps and exit codes of torch 2.13, in virtual time."""

from __future__ import annotations

import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as _c
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.multiprocessing.spawn import spawn

import simdist
from simdist.cluster import build
from simdist.faults import Crash, Hang, HostCrash
from simdist.inside.torch import Place
from tests.builds import NCCL
from tests.c10d.nccl.worlds import join, of, results, run, said

_nccl: Any = _c
_c10d: Any = c10d
_dist: Any = dist
LIKELY = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
    "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, "
    "this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)
CORRUPTED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU "
    "operations might run on corrupted/incomplete data."
)
DOWN = "To avoid data inconsistency, we are taking the entire process down."


def connect() -> None:
    """Make the communicator of this rank's device, and call nothing."""
    group: Any = dist.group.WORLD
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))


def skips(asleep: bool = False) -> None:
    """Let rank 1 leave the second all_reduce out."""
    rank = join()
    tensor = of(1, 2)
    dist.all_reduce(tensor)
    if rank == 1:
        if asleep:
            time.sleep(3600)
        return
    dist.all_reduce(tensor)
    tensor.tolist()


def test_a_skipped_collective_ends_with_the_log_of_a_real_job() -> None:
    result = run(skips, 2)

    assert [rank.exit_code for rank in result.ranks] == [-6, 0]
    assert result.ranks[0].ended_ns == 660_100_000_000
    work = "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=2, NumelOut=2, Timeout(ms)=600000)"
    timeout = (
        f"[Rank 0] Watchdog caught collective operation timeout: {work} ran for 600099 milliseconds before timing out."
    )
    prefix = "[PG ID 0 PG GUID 0(default_pg) Rank 0] "
    torchs = Path(dist.__file__).parent
    at_once, dumping, at_last = (
        f"[rank0]:[E101 00:{minute}000000" for minute in ("10:00.100", "10:01.000", "11:00.100")
    )
    thrown = (
        f"{prefix}Process group watchdog thread terminated with exception: {timeout}\n"
        f"Exception raised from checkTimeout at {Place.TIMEOUT_RAISED.path_for_cuda}"
    )
    lines = result.ranks[0].stderr.splitlines()
    frames = [line for line in lines if line.startswith("#")]
    assert [frame.partition(" from ")[0] for frame in frames] == ["#0 all_reduce", "#1 wrapper", "#2 skips"]
    assert frames[0].startswith(f"#0 all_reduce from {torchs}/distributed_c10d.py:")
    assert [line for line in lines if not line.startswith("#")] == [
        f"{at_once} {Place.WORK_TIMED_OUT}] {timeout}",
        f"{at_once} {Place.WATCHDOG_FOUND}] {prefix} failure detected by watchdog at work sequence id: 2 PG status: "
        "last enqueued work: 2, last completed work: 1",
        f"{at_once} {Place.WORK_STACK}] Stack trace of the failed collective: ",
        "",
        f"{at_once} {Place.DUMP_FIRST}] {prefix}First PG on this rank to signal dumping.",
        f"{dumping} {Place.MONITOR_FOUND}] {prefix}Received a dump signal due to a collective timeout from this "
        f"local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 2, last completed NCCL "
        f"work: 1.{LIKELY}",
        f"{dumping} {Place.DUMP_PREPARED}] {prefix}ProcessGroupNCCL preparing to dump debug info. Include stack "
        "trace: 1, only active collectives: 0",
        f"{at_last} {Place.WORK_LEAVES_GARBAGE}] [Rank 0] {CORRUPTED}",
        f"{at_last} {Place.WORK_TAKES_DOWN}] [Rank 0] {DOWN}",
        *f"{at_last} {Place.WATCHDOG_ENDED}] {thrown}".splitlines(),
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        *f"  what():  {thrown}".splitlines(),
    ]


def test_a_rank_that_waits_elsewhere_dumps_too_and_its_monitor_ends_it(tmp_path: Path) -> None:
    env = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_"}

    result = run(skips, 2, args=[True], env=env)

    assert [rank.exit_code for rank in result.ranks] == [-6, -6]
    assert [rank.ended_ns for rank in result.ranks] == [660_100_000_000, 1_081_000_000_000]
    prefix = "[PG ID 0 PG GUID 0(default_pg) Rank 1] "
    lines = [line.partition("] ")[2] for line in result.ranks[1].stderr.splitlines()]
    assert lines[0] == f"{prefix}Observed flight recorder dump signal from another rank via TCPStore."
    assert lines[1].startswith(f"{prefix}Received a dump signal due to a collective timeout from  rank 0 and we will ")
    assert lines[3] == (
        f"{prefix}{prefix}Terminating the process after attempting to dump debug info, due to collective timeout or "
        "exception."
    )
    arguments = JobConfig().parse_args(["-p", "rank_", str(tmp_path)])
    details, version = read_dir(arguments)
    found = build_db(details, arguments, version)
    stuck = [each for each in found.collectives if each.missing_ranks]
    assert [(each.collective_name, each.collective_seq_id, each.missing_ranks) for each in stuck] == [
        ("nccl:all_reduce", 2, {1})
    ]
    assert len(pickle.loads((tmp_path / "rank_0").read_bytes())["entries"]) == 2
    assert len(pickle.loads((tmp_path / "rank_1").read_bytes())["entries"]) == 1


@pytest.mark.parametrize(
    ("env", "code", "ended_s"),
    [
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, -6, 1081.0),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, 0, 5000.1),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}, 0, 5000.1),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, -6, 660.1),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}, -6, 1081.0),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, -6, 660.1),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "100", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}, -6, 701.0),
        ({"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}, -6, 604.1),
    ],
)
def test_error_handling(env: dict[str, str], code: int, ended_s: float) -> None:
    def body() -> None:
        if join() == 0:
            dist.all_reduce(of(1), async_op=True)
            time.sleep(4999.9998)
        else:
            connect()
            time.sleep(1)

    result = run(body, env=env)

    assert result.ranks[0].exit_code == code
    assert round(result.ranks[0].ended_ns / 1e9, 1) == ended_s
    assert CORRUPTED in result.ranks[0].stderr
    assert (DOWN in result.ranks[0].stderr) is (env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") in "13")
    would = (
        "ProcessGroupNCCL monitor thread is disabled, but would have terminated the processafter attempting to dump "
        "debug info, due to collective timeout or exception.\n"
    )
    assert (would in result.ranks[0].stderr) is ("TORCH_NCCL_ENABLE_MONITORING" in env)


def test_after_a_clean_up_calls_are_refused() -> None:
    def body() -> str:
        if join(timeout=timedelta(seconds=1)) == 0:
            dist.all_reduce(of(1), async_op=True)
            time.sleep(70)
            return said(lambda: dist.all_reduce(of(1)))
        connect()
        return ""

    first, _ = results(body, env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"})

    assert first == "DistBackendError: NCCL communicator was aborted on rank 0. "


def test_a_blocking_wait_raises_and_nobody_is_killed() -> None:
    def body() -> tuple[str, float]:
        rank = join(timeout=timedelta(seconds=3))
        tensor = of(1)
        first: Any = dist.all_reduce(tensor, async_op=True)
        first.wait()
        if rank == 1:
            return "", 0
        work: Any = dist.all_reduce(tensor, async_op=True)
        return said(work.wait), round(time.monotonic(), 2)

    result = run(body, env={"TORCH_NCCL_BLOCKING_WAIT": "1"})

    text, at_s = result.values[0]
    assert [rank.exit_code for rank in result.ranks] == [0, 0]
    assert text == (
        "DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=3000) ran for 3001 milliseconds before timing out."
    )
    assert at_s == 3.0
    assert "timed out in blocking wait." in result.ranks[0].stderr


def test_a_wait_with_a_timeout_of_its_own() -> None:
    def body() -> str:
        if join() == 0:
            work: Any = dist.all_reduce(of(1), async_op=True)
            return said(lambda: work.wait(timedelta(seconds=2)))
        connect()
        return ""

    assert "ran for 2001 milliseconds before timing out." in results(body)[0]


def three_steps() -> None:
    join()
    for _ in range(3):
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        time.sleep(1)


def test_a_dead_peer_on_the_same_host_is_not_noticed() -> None:
    result = run(three_steps, faults=[Crash(rank=1, at_ns=1_500_000_000)])

    assert [rank.exit_code for rank in result.ranks] == [-6, -9]
    assert result.ranks[0].ended_ns > 600_000_000_000


def test_ranks_of_a_host_that_share_nothing_talk_over_sockets() -> None:
    env = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    result = run(three_steps, faults=[Crash(rank=1, at_ns=1_500_000_000)], env=env)

    assert "ncclRemoteError" in result.ranks[0].stderr
    assert round(result.ranks[0].ended_ns / 1e9, 1) == 62.1


def test_a_stopped_process_has_no_watchdog_that_runs() -> None:
    result = run(three_steps, faults=[Hang(rank=1, op="all_reduce", nth=2)])

    assert [(rank.status, rank.exit_code) for rank in result.ranks] == [("killed", -6), ("hung", None)]


def test_a_dead_peer_on_another_host_closes_its_sockets() -> None:
    result = run(three_steps, faults=[Crash(rank=1, at_ns=1_500_000_000)], cluster=build(2, hosts=2))

    first = result.ranks[0]
    assert first.exit_code == -6
    assert round(first.ended_ns / 1e9, 1) == 62.1
    assert (
        "[Rank 0] Collective WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised "
        "the following async exception: NCCL error: remote process exited or there was a network error, NCCL version "
        f"{NCCL}\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer host1<40001>\n"
    ) in first.stderr


def test_a_host_without_power_closes_nothing() -> None:
    def body() -> None:
        join()
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        time.sleep(2)
        dist.all_reduce(of(1))
        torch.cuda.synchronize()

    result = run(body, faults=[HostCrash(rank=1, at_ns=1_500_000_000)], cluster=build(2, hosts=2))

    assert result.ranks[0].exit_code == -6
    assert result.ranks[0].ended_ns > 600_000_000_000


def test_a_group_is_aborted_and_made_anew() -> None:
    def body() -> list[Any]:
        rank = join()
        tensor = of(rank + 1.0)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        if rank == 0:
            dist.all_reduce(of(1), async_op=True)  # rank 1 never joins
        _c10d._abort_process_group()
        torch.cuda.synchronize()
        dist.init_process_group("nccl", store=store_of(rank), rank=rank, world_size=2)
        again = of(rank + 1.0)
        dist.all_reduce(again)
        return [tensor.item(), again.item()]

    def store_of(rank: int) -> Any:
        return _dist.TCPStore("127.0.0.1", 29600, 2, rank == 0)

    assert results(body) == [[3, 3]] * 2


@pytest.mark.parametrize("what", ["all_reduce", "mismatch"])
def test_an_abort_ends_what_is_joined_behind_another_and_what_does_not_fit(what: str, tmp_path: Path) -> None:
    def body(path: str) -> float:
        rank = join()
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        if what == "mismatch" and rank == 0:
            dist.broadcast(of(1, 2, 3), 0)  # does not match the other's all_reduce
        else:
            dist.all_reduce(of(1))
        _c10d._abort_process_group()
        store = _dist.FileStore(path, 2)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
        again = of(rank + 1.0)
        dist.all_reduce(again)
        return again.item()

    assert results(body, args=[str(tmp_path / "store")]) == [3, 3]


def test_to_destroy_a_group_waits_for_what_is_queued() -> None:
    def body() -> float:
        rank = join()
        time.sleep(rank)
        dist.all_reduce(of(1), async_op=True)
        dist.destroy_process_group()
        return round(time.monotonic(), 1)

    first, second = results(body)

    assert first == second


def test_a_group_that_is_left_open_is_reported_by_the_first_rank_of_a_host() -> None:
    def body() -> None:
        join()
        dist.all_reduce(of(1))

    result = run(body, 4, cluster=build(4, hosts=2))

    warned = ["destroy_process_group() was not called before program exit" in rank.stderr for rank in result.ranks]
    assert warned == [True, False, True, False]


def _leave_a_group_open(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://localhost:12355", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1, device="cuda"))


def test_a_job_that_a_rank_spawns_reports_a_group_left_open_once() -> None:
    def body() -> None:
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
        spawn(_leave_a_group_open, nprocs=2)  # type: ignore[no-untyped-call]  # torch gives it no types

    result = run(body, 1, cluster=build(1, devices_per_host=2))

    assert result.ranks[0].stderr.count("destroy_process_group() was not called before program exit") == 1


def test_a_line_of_the_log_names_the_rank_in_the_default_group() -> None:
    def body() -> None:
        rank = 1 - int(os.environ["RANK"])
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
        join(init_method="tcp://localhost:12355", rank=rank, world_size=2)

    result = run(body)

    assert result.ranks[1].stderr.startswith("[rank0]:[W")


def test_a_bad_variable_is_refused_in_torchs_words() -> None:
    result = run(join, 1, env={"TORCH_NCCL_BLOCKING_WAIT": "maybe"})
    old = run(join, 1, env={"NCCL_BLOCKING_WAIT": "0"})

    assert str(result.ranks[0].exception) == "Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT"
    name = "Environment variable NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead"
    assert name in old.ranks[0].stderr


def test_a_hang_repeats_itself() -> None:
    first, second = (simdist.run(skips, world_size=2, backend="nccl") for _ in range(2))

    assert first.digest == second.digest
    assert os.environ.get("TORCH_FR_DUMP_TEMP_FILE") is None
