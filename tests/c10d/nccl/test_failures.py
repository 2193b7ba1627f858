"""Works that fail, as their waiters and then the watchdog see it: torch 2.13's words and times."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

import simdist
from simdist.cluster import build
from simdist.faults import Crash, HostCrash, Partition
from simdist.inside.torch import NcclPlace
from tests.builds import NCCL
from tests.c10d.nccl.worlds import join, of, run, said

_nccl: Any = _c
_dist: Any = dist
REMOTE = (
    f"NCCL error: remote process exited or there was a network error, NCCL version {NCCL}\nncclRemoteError: A call "
    "failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
)
CLOSED = f"{REMOTE}socketProgress: Connection closed by remote peer host1<40001>"
SYSTEM = (
    f"NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version {NCCL}\nncclSystemError: "
    "System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n"
)
CORRUPTED = "Some NCCL operations have failed or timed out."
DOWN = "To avoid data inconsistency, we are taking the entire process down."
NO_DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}


def backend() -> Any:
    group: Any = dist.group.WORLD
    return group._get_backend(torch.device("cuda"))


def lines(result: simdist.RunResult, text: str, rank: int = 0) -> list[str]:
    """Return the virtual times of day of the lines in a rank's log that contain a text."""
    found = [line for line in result.ranks[rank].stderr.splitlines() if text in line and line.startswith("[rank")]
    return [line.split()[1][:12] for line in found]


def start() -> int:
    """Join and make the communicator; returns the rank."""
    rank = join(timeout=timedelta(seconds=5))
    dist.all_reduce(of(1))
    torch.cuda.synchronize()
    return rank


# -- one after the other -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handling", ["0", "2"])
def test_a_watchdog_that_goes_on_comes_to_the_next_work_that_hangs(handling: str) -> None:
    def body() -> list[str]:
        if start():
            return []
        works: list[Any] = [dist.all_reduce(of(1), async_op=True) for _ in range(2)]
        ends = [work.get_future_result() for work in works]
        found = [str(_nccl.WorkResult(end.wait())) for end in ends]
        return [*found, str(backend().get_error()), str(round(time.monotonic()))]

    result = run(body, env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": handling} | NO_DUMPS)

    second = {"0": "WorkResult.TIMEOUT", "2": "WorkResult.COMM_ERROR"}[handling]
    assert result.ranks[0].value == ["WorkResult.TIMEOUT", second, "ErrorType.TIMEOUT", "65"]
    log = result.ranks[0].stderr
    if handling == "0":
        assert lines(result, "SeqNum=3") == ["00:01:05.100"]
        assert "Timeout(ms)=5000) ran for 65099 milliseconds" in log
    else:
        assert (
            "[Rank 0] Collective WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=5000) " in log
        )
        assert f"raised the following async exception: {SYSTEM}\n" in log
    assert lines(result, CORRUPTED) == ["00:01:05.100", "00:02:05.100"]  # the end of the program waits for the watchdog
    assert "failure detected by watchdog at work sequence id: 3 PG status: last enqueued work: 3, last completed" in log
    assert "last completed work: 2" in log
    assert DOWN not in log


def test_the_end_of_a_program_waits_for_a_watchdog_that_sleeps() -> None:
    def body(how: str) -> None:
        if start() == 0:
            dist.all_reduce(of(1), async_op=True)
            time.sleep(10)
            if how == "abort":
                backend().abort()

    for how in ("return", "abort"):
        first, _ = run(body, args=[how]).ranks
        assert (first.exit_code, first.ended_ns) == (-6, 65_100_000_000)


def test_lines_about_works_have_the_rank_in_the_group_of_the_first() -> None:
    def body() -> None:
        rank = join()
        group = dist.new_group([1, 2], timeout=timedelta(seconds=1))
        if rank:
            dist.all_reduce(of(1), group=group)
        if rank == 2:
            dist.all_reduce(of(1), group=group)
            time.sleep(2)

    result = run(body, 3)

    assert result.ranks[2].exit_code == -6
    assert len(lines(result, "[Rank 1] ", 2)) == 3 + 1  # the fourth repeats the first
    assert "[Rank 2] " not in result.ranks[2].stderr


# -- waits of the host -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_a_wait_that_ran_out_of_time_gives_its_communicator_up(blocking: str) -> None:
    def body() -> list[Any]:
        rank = start()
        if rank == 0:
            dist.send(of(7), 1)
        else:
            dist.recv(of(0), 0)
        if rank:
            dist.recv(got := of(0), 0)
            return [got.item()]
        work: Any = dist.all_reduce(of(1), async_op=True)
        end = work.get_future_result()
        first = said(lambda: work.wait(timedelta(seconds=2)))
        found = [first == said(work.wait), work.is_completed(), said(lambda: dist.all_reduce(of(1)))]
        dist.send(of(7), 1)  # messages have their own communicator
        time.sleep(1)
        return [*found, end.done() and str(_nccl.WorkResult(end.value())), str(backend().get_error())]

    env = {"TORCH_NCCL_BLOCKING_WAIT": blocking}
    result = run(body, env=env | NO_DUMPS)

    first, second = result.ranks
    assert second.value == [7]
    log = first.stderr
    times = ["00:00:02.001"] * 2  # once for each wait
    assert lines(result, "timed out in blocking wait.") == times[:1]
    assert lines(result, DOWN)[:2] == lines(result, CORRUPTED)[:2] == times
    if blocking == "1":
        assert first.value == [
            *(True, True, "DistBackendError: NCCL communicator was aborted on rank 0. "),
            *("WorkResult.TIMEOUT", "ErrorType.SUCCESS"),
        ]
        assert "async exception" not in log
    else:  # its watchdog finds the communicator broken
        assert (first.exit_code, first.ended_ns) == (-6, 62_100_000_000)
        assert f"raised the following async exception: {SYSTEM}\n" in log
        assert (
            f"Process group watchdog thread terminated with exception: {SYSTEM}\nException raised from "
            "checkForNCCLErrorsInternal at "
        ) in log


@pytest.mark.parametrize("kind", ["wait", "poll", "barrier", "no watchdog"])
def test_who_asks_for_a_work_learns_of_an_error_of_its_communicator(kind: str) -> None:
    def body() -> list[Any]:
        if start():
            time.sleep(10)
        work: Any = (
            dist.barrier(async_op=True, device_ids=[0]) if kind == "barrier" else dist.all_reduce(of(1), async_op=True)
        )
        end = work.get_future_result()
        if kind in ("poll", "barrier"):
            time.sleep(3)
        polled = kind == "poll" and work.is_completed()
        text = said(lambda: work.wait(timedelta(seconds=4)) if kind == "wait" else work.wait())
        found = [polled, text, int(time.monotonic()), end.value(), str(backend().get_error())]
        time.sleep(0.2)
        os._exit(3) if kind != "no watchdog" else None
        return found

    env = {"TORCH_NCCL_BLOCKING_WAIT": "1"} if kind == "no watchdog" else {}
    result = run(body, env=env, faults=[Crash(rank=1, at_ns=2_000_000_000)], cluster=build(2, hosts=2))

    first = result.ranks[0]
    log = first.stderr
    moments = lines(result, "raised the following async exception: ")
    assert lines(result, DOWN) == moments[-1:]
    assert f"raised the following async exception: {CLOSED}\n" in log
    if kind == "no watchdog":
        assert first.value == [False, f"DistBackendError: {CLOSED}", 2, 2, "ErrorType.SUCCESS"]
        assert moments == ["00:00:02.000"]
    else:
        assert first.exit_code == 3
        assert len(moments) == 2  # its watchdog reports it as well


# -- which ranks see a death -------------------------------------------------------------------------------------------


def dies(op: str) -> None:
    """Let rank 2 of four be dead when the others call."""
    rank = join(timeout=timedelta(seconds=100))
    dist.all_reduce(of(1))
    torch.cuda.synchronize()
    time.sleep(1)
    tensors = [of(0) for _ in range(4)]
    if op == "all_reduce":
        dist.all_reduce(of(1))
    elif op == "gather":
        dist.gather(of(1), tensors if rank == 0 else None, 0)
    else:
        peer = (rank + 2) % 4
        dist.batch_isend_irecv([_dist.P2POp(dist.isend, of(1), peer), _dist.P2POp(dist.irecv, of(1), peer)])
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("op", "ended_s"),
    [("all_reduce", [121.1, 61.1, 61.1]), ("gather", [61.1, 121.1, 121.1]), ("batch", [61.1, 1.0, 1.0])],
)
def test_the_sockets_of_those_who_talk_to_a_dead_rank_are_closed(op: str, ended_s: list[float]) -> None:
    result = run(dies, 4, args=[op], faults=[Crash(rank=2, at_ns=900_000_000)], cluster=build(4, hosts=4))

    assert [round(result.ranks[rank].ended_ns / 1e9, 1) for rank in (0, 1, 3)] == ended_s


def test_infiniband_gives_up_after_its_retries_with_power_and_without() -> None:
    env = {"NCCL_NET": "IB", "NCCL_DEBUG": "WARN"}
    cluster = build(4, hosts=4)
    text = "NET/IB: Got completion from peer host2<40002> with status=IBV_WC_RETRY_EXC_ERR(12) opcode="

    for fault in (Crash(rank=2, at_ns=900_000_000), HostCrash(rank=2, at_ns=900_000_000)):
        result = run(dies, 4, args=["all_reduce"], faults=[fault], cluster=cluster, env=env)
        assert [round(rank.ended_ns / 1e9, 1) for rank in result.ranks] == [161.1, 95.4, 0.9, 95.4]
        assert f"{REMOTE}{text}" in result.ranks[1].stderr
        assert f" {NcclPlace.PEER_SILENT.shown} NCCL WARN {text}" in result.ranks[1].stdout
    quick = run(*(dies, 4), args=["all_reduce"], faults=[fault], cluster=cluster, env={**env, "NCCL_IB_TIMEOUT": "14"})
    assert round(quick.ranks[1].ended_ns / 1e9, 1) == 61.6


@pytest.mark.parametrize(
    ("until_s", "net", "ended_s"), [(60, "IB", 95.4), (20, "IB", 20.0), (60, "Socket", 60.0), (None, "Socket", 161.1)]
)
@pytest.mark.parametrize("op", ["all_reduce", "batch"])
def test_a_cut_cable_is_an_error_for_infiniband_only(until_s: int | None, net: str, ended_s: float, op: str) -> None:
    until_ns = None if until_s is None else until_s * 1_000_000_000
    cut = Partition(groups=((0, 1, 3), (2,)), start_ns=500_000_000, until_ns=until_ns)
    result = run(dies, 4, args=[op], faults=[cut], cluster=build(4, hosts=4), env={"NCCL_NET": net})

    rank = 2
    assert round(result.ranks[rank].ended_ns / 1e9, 1) == ended_s
    assert ("NET/IB: Got completion from peer host" in result.ranks[rank].stderr) is (ended_s == 95.4)


def test_a_network_that_is_not_there() -> None:
    def body() -> str:
        join()
        return said(lambda: dist.all_reduce(of(1)))

    missing = run(body, env={"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}).values
    plugin = run(body, env={"NCCL_NET": "AWS Libfabric"}).values

    assert missing[0].endswith(
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nFailed to initialize any "
        "NET plugin"
    )
    assert plugin[0].startswith("UnsupportedError: the network 'AWS LIBFABRIC' is that of a plugin")


def test_an_abort_closes_sockets_too() -> None:
    def body() -> None:
        rank = start()
        if rank == 0:
            time.sleep(2)
            backend().abort()
        else:
            dist.all_reduce(of(1))
        time.sleep(10)

    result = run(body, cluster=build(2, hosts=2))

    assert lines(result, "Collective WorkNCCL(SeqNum=2, OpType=ALLREDUCE", 1)[0] == "00:00:02.100"
    assert "Connection closed by remote peer host0<40000>" in result.ranks[1].stderr


# -- errors that ranks report to others --------------------------------------------------------------------------------


def test_a_group_made_anew_with_the_same_store_finds_the_old_error_there() -> None:
    def body() -> list[Any]:
        if start() == 0:
            dist.all_reduce(of(1), async_op=True)
        time.sleep(6)
        found = [str(backend().get_error())]
        dist.distributed_c10d._abort_process_group()
        time.sleep(100 - time.monotonic())  # both at once: the store still has the id of the old group
        dist.init_process_group("nccl")
        tensor = of(1)
        dist.all_reduce(tensor)
        return [*found, tensor.item(), str(backend().get_error())]

    env = {"TORCH_NCCL_PROPAGATE_ERROR": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    result = run(body, env=env | NO_DUMPS)

    assert result.values == [[f"ErrorType.{kind}", 2, "ErrorType.REMOTE_ERROR"] for kind in ("TIMEOUT", "REMOTE_ERROR")]
    assert "] [PG ID 1 PG GUID 0(default_pg) Rank 1]  remote error detected from rank: 0\n" in result.ranks[1].stderr


def test_a_watchdog_reports_each_time_that_it_asks_a_store_that_is_gone() -> None:
    def body() -> None:
        if start() == 0:
            time.sleep(0.05)
            os._exit(0)
        time.sleep(0.55)

    env = {"TORCH_NCCL_PROPAGATE_ERROR": "1", "TORCHELASTIC_USE_AGENT_STORE": "0"}
    result = run(body, env=env)

    asked = "Failed to check the signal remote_error:0 on TCPStore, "
    assert lines(result, asked, 1) == [f"00:00:00.{tick}00" for tick in range(1, 6)]
    assert f"[PG ID 0 PG GUID 0(default_pg) Rank 1] {asked}Failed to recv, got 0 bytes. " in result.ranks[1].stderr
    assert result.ranks[1].stderr.count(f"{asked}Broken pipe\n") == 4
    assert result.ranks[1].stderr.count("[c10d] sendBytes failed on ") == 4
