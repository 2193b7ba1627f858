"""The lines of ProcessGroupNCCL at level INFO, and those about a store that is gone (torch 2.13's sources)."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.inside.torch import Place
from tests.builds import NCCL
from tests.c10d.nccl.worlds import join, of, run, said

INFO = {"TORCH_CPP_LOG_LEVEL": "INFO"}
_LINE = re.compile(r"(?:\[rank(\d)\]:)?\[([IWEF])\d+ [\d:.]+ (\w+)\.\w+:\d+\] (?:\[PG (.*?)\] )?(.*)")


def lines(result: simdist.RunResult, rank: int = 0, level: str = "I") -> list[str]:
    found = [_LINE.match(line) for line in result.ranks[rank].stderr.splitlines()]
    return [each[5] for each in found if each is not None and each[2] in level]


def prefixes(result: simdist.RunResult) -> list[str]:
    found = [_LINE.match(line) for line in result.ranks[0].stderr.splitlines()]
    return [each[4] for each in found if each is not None]


MADE = [
    "HeartbeatMonitor environments: TORCH_NCCL_ENABLE_MONITORING (Whether to kill program when no watchdog heartbeat "
    "detected): 1, TORCH_NCCL_DUMP_ON_TIMEOUT: 1, TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC: 15000, "
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480, TORCH_NCCL_COORD_CHECK_MILSEC: 1000, "
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN: 1",
    "PGNCCL Watchdog environments: TORCH_NCCL_RETHROW_CUDA_ERRORS: 1, TORCH_NCCL_PROPAGATE_ERROR: 0, "
    "TORCH_NCCL_DESYNC_DEBUG: 0",
    "ProcessGroupNCCL initialization options: size: 1, global rank: 0, TIMEOUT(ms): 600000, USE_HIGH_PRIORITY_STREAM: "
    "0, SPLIT_FROM: 0, SPLIT_COLOR: -2, PG Name: 0",
    f"ProcessGroupNCCL environments: NCCL version: {NCCL}, TORCH_NCCL_ASYNC_ERROR_HANDLING: 1, "
    "TORCH_NCCL_ENABLE_TIMING: 0, TORCH_NCCL_BLOCKING_WAIT: 0, TORCH_DISTRIBUTED_DEBUG: OFF, "
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK: 0, TORCH_NCCL_TRACE_BUFFER_SIZE: 2000, "
    "TORCH_NCCL_NAN_CHECK: 0, TORCH_NCCL_CUDA_EVENT_CACHE: 1",
]
CONNECTED = ["Using non-blocking mode: 0", "NCCL_DEBUG: N/A"]
ABORTED = ["Launching ProcessGroupNCCL abort asynchronously.", "ProcessGroupNCCL aborts successfully."]
JOINED = ["ProcessGroupNCCL watchdog thread joined.", "ProcessGroupNCCL heart beat monitor thread joined."]


def test_a_group_reports_how_it_was_made_and_destroyed() -> None:
    def body() -> None:
        join()
        dist.all_reduce(of(1))
        dist.destroy_process_group()

    result = run(body, 1, env=INFO)
    said = [line for line in lines(result) if "through store took" not in line]

    assert said == [
        *MADE,
        *CONNECTED,
        "Starting to destroy process group, flushing operations.",
        "Operations flushed, joining watchdog thread.",
        JOINED[0],
        "Watchdog joined, destroying NCCL communicators.",
        "Destroy complete.",
        "ProcessGroupNCCL destructor entered.",
        JOINED[1],
    ]
    assert list(dict.fromkeys(prefixes(result))) == ["ID 0 PG GUID 0 Rank 0", "ID 0 PG GUID 0(default_pg) Rank 0"]
    with_rank = [line.startswith("[rank0]:") for line in result.ranks[0].stderr.splitlines()]
    assert [with_rank[place] for place in (0, len(MADE) - 1, len(MADE), -3, -1)] == [False, False, True, True, False]
    assert not run(body, 1).ranks[0].stderr


def test_a_group_reports_that_it_is_aborted() -> None:
    def body() -> None:
        join(device_id=torch.device("cuda", 0))
        abort: Any = dist.distributed_c10d._abort_process_group
        abort()

    said = lines(run(body, 1, env=INFO | {"NCCL_DEBUG": "VERSION"}))

    assert "Eagerly connecting nccl backend with device cuda:0" in said
    assert "NCCL_DEBUG: VERSION" in said
    assert said[-5:] == [*ABORTED, "ProcessGroupNCCL destructor entered.", *JOINED]


def test_a_group_that_is_left_is_aborted_by_its_destructor() -> None:
    said = lines(run(join, 1, env=INFO), level="IW")

    assert said[:4] == MADE
    assert said[4] == "ProcessGroupNCCL destructor entered."
    assert said[5].startswith("Warning: WARNING: destroy_process_group() was not called") or len(said) == 9
    assert said[-4:] == [*ABORTED, *JOINED]


def test_a_second_group_does_not_report_the_environment_again() -> None:
    def body() -> None:
        join()
        torch.use_deterministic_algorithms(True)
        for _ in range(2):
            dist.new_group([0])

    result = run(body, 1, env=INFO)
    said = lines(result)

    assert said[4:7] == [
        "torch deterministic mode is enabled, disabling NVLS algorithm in NCCL which can lead to non-deterministic "
        "reduction.",
        MADE[2].replace("Name: 0", "Name: 1"),
        MADE[2].replace("Name: 0", "Name: 2"),
    ]


def test_variables_that_change_what_a_watchdog_does_are_reported() -> None:
    blocking = lines(run(join, 1, env=INFO | {"TORCH_NCCL_BLOCKING_WAIT": "1"}))
    raised = lines(run(join, 1, env=INFO | {"TORCH_NCCL_DESYNC_DEBUG": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}))

    assert blocking[0] == "TORCH_NCCL_BLOCKING_WAIT is enabled, NO watchdog thread is created."
    assert not set(JOINED) & set(blocking)
    assert raised[0] == (
        "TORCH_NCCL_DESYNC_DEBUG and TORCH_NCCL_ASYNC_ERROR_HANDLING must both be enabled. Enabling "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING."
    )
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING: 3, TORCH_NCCL_ENABLE_TIMING: 1" in "".join(raised)


def test_a_dump_is_reported(tmp_path: Any) -> None:
    def body() -> None:
        join()
        dist.all_reduce(of(1))
        group: Any = dist.group.WORLD
        group._get_backend(torch.device("cuda")).abort()

    env = INFO | {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/d_", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1"}
    said = lines(run(body, 1, env=env))
    begin = said.index("Sending extra dumping signal")

    assert said[begin + 1 : begin + 5] == [
        "Broadcasting signal exception_dump to other ranks via TCPStore.",
        f"ProcessGroupNCCL dumping nccl trace to {tmp_path}/d_0",
        f"Finished writing Flight Recorder debug info to {tmp_path}/d_0",
        "Flight Recorder trace successfully dumped.",
    ]


# -- a store that is gone --------------------------------------------------------------------------------------------

FAILED = (
    'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: '
)
CLOSED = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"


def outlives_the_store(seconds: float, *, calls: bool = False) -> None:
    rank = join()
    dist.all_reduce(of(1))
    torch.cuda.synchronize()
    if rank == 0:
        time.sleep(1.5)
        os._exit(0)
    if calls:
        dist.all_reduce(of(1))
    time.sleep(seconds)


@pytest.mark.parametrize(("env", "times"), [({}, 8), ({"TORCH_NCCL_COORD_CHECK_MILSEC": "2000"}, 4)])
def test_a_monitor_reports_each_look_into_a_store_that_is_gone(env: dict[str, str], times: int) -> None:
    result = run(outlives_the_store, 2, args=[9.5], env=env | {"TORCHELASTIC_USE_AGENT_STORE": "0"})

    socket = "SocketImpl(fd=3, addr=[host0]:40001, remote=[127.0.0.1]:29500)"
    expected = [
        *(f"[c10d] recvValue failed on {socket}: {CLOSED}", f"{FAILED}{CLOSED}"),
        *[f"[c10d] sendBytes failed on {socket}: Broken pipe", f"{FAILED}Broken pipe"] * (times - 1),
    ]
    monitor_says_so = Place.MONITOR_HAS_NO_STORE.is_there
    assert lines(result, 1, "W") == [line for line in expected if monitor_says_so or not line.startswith(FAILED)]
    raised = [line for line in result.ranks[1].stderr.splitlines() if line.startswith("Exception raised from ")]
    assert len(raised) == times
    place = f"{Place.SOCKET_READ.path_for_cuda} (most recent call first):"
    assert raised[0] == f"Exception raised from recvBytes at {place}"
    assert [rank.exit_code for rank in result.ranks] == [0, 0]


def test_a_watchdog_can_not_ask_for_dumps_without_a_store() -> None:
    env = {"TORCHELASTIC_USE_AGENT_STORE": "0"}
    result = run(outlives_the_store, 2, args=[900], kwargs={"calls": True}, env=env)

    assert "Failed to broadcast signal exception_dump through TCPStore. Error: Broken pipe" in lines(result, 1, "E")
    assert result.ranks[1].exit_code == -6


def test_without_a_store_communicators_go_on_and_no_new_one_is_made() -> None:
    def body() -> list[Any]:
        rank = join()
        group, new = dist.new_group([1, 2]), dist.new_group([1, 2])
        tensor = of(1)
        if rank == 0:
            time.sleep(1)
            os._exit(0)
        dist.all_reduce(tensor, group=group)
        found = []
        if rank == 2:
            found = [said(lambda: dist.all_reduce(tensor, group=new)) for _ in range(2)]
        dist.all_reduce(tensor, group=group)
        return [*found, tensor.item()]

    result = run(body, 3, env={"TORCHELASTIC_USE_AGENT_STORE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"})

    assert result.values[1:] == [
        [4.0],
        [
            *(
                "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
                f"key-value store by key '{key}', but store->get('{key}') got error: {text}. This may indicate a "
                "possible application crash on rank 0 or a network set up issue."
                for key, text in enumerate((CLOSED, "Broken pipe"))
            ),
            4.0,
        ],
    ]


def test_a_monitor_of_a_store_that_is_gone_does_not_go_on_for_ever() -> None:
    def body() -> None:
        rank = join()
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        if rank == 0:
            os._exit(0)
        threading.Event().wait()

    hung = run(body, 2, env={"TORCHELASTIC_USE_AGENT_STORE": "0"}).ranks[1]

    assert hung.status == "hung"
    assert hung.ended_ns <= 2_000_000_000
