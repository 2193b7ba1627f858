"""NCCL's reports besides the watchdog's log: desync reports, remote errors, durations, hooks, estimates."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

import simdist
from simdist.cluster import build, rail_optimised
from simdist.process import current_process
from tests.builds import VERSION
from tests.c10d.nccl.test_watchdog import skips
from tests.c10d.nccl.worlds import join, of, results, run, said

_nccl: Any = _c
_dist: Any = dist
MS = 1_755_000  # cycles of `torch.cuda._sleep`


def logged(result: simdist.RunResult, rank: int = 0) -> str:
    return result.ranks[rank].stderr


def backend() -> Any:
    group: Any = dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cuda"))


# -- who is behind ---------------------------------------------------------------------------------------------------


def test_a_desync_report_names_the_rank_that_is_behind() -> None:
    result = run(skips, 2, env={"TORCH_NCCL_DESYNC_DEBUG": "1"})

    report = (
        "Rank 0\n"
        "\t - [0] Timeout at collective: ALLREDUCE, #2\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "\t     [1] finished collective #1, but didn't join collective #2 (count from 1)\n"
        "\t - Snapshot of ranks' latest states:\n"
        "\t   #1 finished ranks:\n"
        "\t     [1] finished ALLREDUCE\n"
        "\t   #2 started ranks:\n"
        "\t     [0] started ALLREDUCE\n"
    )
    assert f"] {report}" in logged(result)
    assert [rank.exit_code for rank in result.ranks] == [-6, 0]


def test_a_desync_report_knows_who_never_joined() -> None:
    def body() -> None:
        rank = join()
        backend().eager_connect_single_device(torch.device("cuda", rank))
        if rank == 2:
            time.sleep(3600)
        tensor = of(1)
        dist.all_reduce(tensor)
        tensor.tolist()

    result = run(body, 3, env={"TORCH_NCCL_DESYNC_DEBUG": "1"})

    for rank in (0, 1):
        assert (
            f"] Rank {rank}\n\t - [{rank}] Timeout at collective: ALLREDUCE, #1\n\t - To our best knowledge, ranks [2] "
            "are the lagging ranks that caused this timeout. They never joined any collectives\n"
        ) in logged(result, rank)


def test_a_mismatch_shows_in_the_report() -> None:
    def body() -> None:
        rank = join()
        tensor = of(1, 2, 3)
        dist.all_reduce(tensor)
        if rank == 0:
            dist.broadcast(tensor, 1)
        else:
            dist.reduce(tensor, 1)
        tensor.tolist()

    result = run(body, 2, env={"TORCH_NCCL_DESYNC_DEBUG": "1"})

    assert (
        "\t   - [0, 1] joined but didn't finish collective #2 (count from 1)\n"
        "\t - Snapshot of ranks' latest states:\n"
        "\t   #2 started ranks:\n"
        "\t     [1] started REDUCE\n"
        "\t     [0] started BROADCAST\n"
    ) in logged(result)


def test_what_the_report_is_made_of_is_in_the_groups_store() -> None:
    def body() -> list[Any]:
        rank = join()
        dist.all_reduce(of(1))
        if rank:
            dist.broadcast(of(1), 1)  # rank 0 does not call this
        time.sleep(0.2)
        store: Any = backend().get_group_store()
        keys = [f"cuda//NCCL_{each}_trace_{end}" for each in (0, 1) for end in ("start", "end")]
        return [store.get(key) for key in keys]

    env = {"TORCH_NCCL_DESYNC_DEBUG": "1"}
    one = (1).to_bytes(8, "little") + b"ALLREDUCE\0"

    assert results(body, env=env) == [[one, one, (2).to_bytes(8, "little") + b"BROADCAST\0", one]] * 2


def test_the_report_has_the_last_work_queued_behind_the_one_that_hangs() -> None:
    def body() -> None:
        rank = join()
        dist.all_reduce(of(1))
        if rank == 0:
            for _ in range(3):
                dist.all_reduce(torch.ones(1, device="cuda"))  # made on the device: a copy from the host would wait
        time.sleep(700)

    assert "\t - [0] Timeout at collective: ALLREDUCE, #4\n" in logged(
        run(body, 2, env={"TORCH_NCCL_DESYNC_DEBUG": "1"})
    )


DEAD_STORES = [
    (300, "] Rank 1 Failed to retrieve TORCH_NCCL_DESYNC_DEBUG report.  Please file an issue. Error: Broken pipe\n"),
    (0, "] Store is down while updating #2 with key NCCL_1_trace_start\n"),
]


@pytest.mark.parametrize(("dies_s", "said"), DEAD_STORES)
def test_without_a_store_there_is_no_report(dies_s: int, said: str) -> None:
    def body() -> None:
        rank = join()
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        if rank:
            time.sleep(1 if dies_s else 10)
            dist.all_reduce(of(1))
            time.sleep(800)
        time.sleep(dies_s or 5)
        os._exit(0)

    env = {"TORCH_NCCL_DESYNC_DEBUG": "1", "TORCHELASTIC_USE_AGENT_STORE": "0"}
    log = logged(run(body, 2, env=env), 1)

    assert said in log
    assert "Timeout at collective" not in log
    assert ("Failed to retrieve" in log) == bool(dies_s)


def test_without_the_variable_there_is_no_report() -> None:
    assert "Timeout at collective" not in logged(run(skips, 2))


def test_an_error_is_reported_to_the_other_ranks() -> None:
    def body() -> tuple[str, str]:
        rank = join()
        dist.all_reduce(of(1))
        if rank == 0:
            dist.all_reduce(of(1))
        before = backend().get_error().name
        time.sleep(601)
        return before, backend().get_error().name

    env = {"TORCH_NCCL_PROPAGATE_ERROR": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    result = run(body, 2, env=env)
    without = run(body, 2, env={**env, "TORCH_NCCL_PROPAGATE_ERROR": "0"})

    assert [rank.value for rank in result.ranks] == [("SUCCESS", "TIMEOUT"), ("SUCCESS", "REMOTE_ERROR")]
    assert "] [PG ID 0 PG GUID 0(default_pg) Rank 1]  remote error detected from rank: 0\n" in logged(result, 1)
    assert without.ranks[1].value == ("SUCCESS", "SUCCESS")


# -- how long it took ------------------------------------------------------------------------------------------------


def test_a_duration_is_that_of_the_kernel_with_its_wait_for_others() -> None:
    def body() -> tuple[float, str]:
        rank = join()
        work: Any = dist.all_reduce(of(1), async_op=True)
        work.wait()
        torch.cuda.synchronize()
        untimed = said(work._get_duration)
        backend()._enable_collectives_timing()
        if rank:
            sleep: Any = torch.cuda._sleep
            sleep(3 * MS)
        timed: Any = dist.all_reduce(of(1), async_op=True)
        timed.wait()
        torch.cuda.synchronize()
        return timed._get_duration(), untimed

    (waited, untimed), (quick, _) = results(body)

    assert untimed == "RuntimeError: getDuration only works if timing was enabled"
    assert waited - quick == pytest.approx(3.0)
    assert 0 < quick < 1


def test_a_hook_is_called_for_each_work_that_is_over() -> None:
    def body() -> list[Any]:
        join()
        seen: list[Any] = []
        group: Any = dist.group.WORLD
        group._register_on_completion_hook(
            lambda info: seen.append((info.op_type.name, info.seq, info.active_duration.total_seconds() > 0))
        )
        tensor = of(1, 2)
        dist.broadcast(tensor, 0)
        group.allreduce([tensor]).wait()
        second = said(lambda: group._register_on_completion_hook(print))
        dist.destroy_process_group()
        return [seen, second]

    for seen, second in results(body, env={"TORCH_NCCL_ENABLE_TIMING": "1"}):
        assert seen == [("BROADCAST", 1, True), ("ALLREDUCE", 2, True)]
        assert second == "DistBackendError: ProcessGroupNCCL OnCompletion hook already registered"


def test_a_hook_wants_timing_and_its_error_aborts_the_communicators() -> None:
    def untimed() -> str:
        join()
        group: Any = dist.group.WORLD
        return said(lambda: group._register_on_completion_hook(print))

    def fails(info: Any) -> None:
        raise RuntimeError("hook error")

    def body() -> str:
        join()
        group: Any = dist.group.WORLD
        group._register_on_completion_hook(fails)
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        time.sleep(1)
        return said(lambda: dist.all_reduce(of(1)))

    assert (
        "requires recording start and end events which require setting TORCH_NCCL_ENABLE_TIMING" in results(untimed)[0]
    )
    result = run(body, 2, env={"TORCH_NCCL_ENABLE_TIMING": "1"})
    text = (
        "Caught exception on rank 0 while running onCompletion hook for ProcessGroupNCCL: RuntimeError: hook error. "
        "Aborting all communicators."
    )
    assert f"aborted on rank 0.  Original reason for failure was: {text}" in str(result.ranks[0].value)


def test_an_estimate_is_that_of_the_tuning_model_and_moves_nothing() -> None:
    cluster = rail_optimised(8, devices_per_host=8)

    def body() -> tuple[float, float, float, int]:
        rank = join()
        process = current_process()
        assert process is not None
        tensor = torch.full((1 << 20,), rank, dtype=torch.uint8, device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        begin = process.simulation.now_ns
        with _dist._time_estimator(device=tensor.device) as first:
            dist.all_reduce(tensor)
        with _dist._time_estimator(device=tensor.device) as both:
            dist.all_reduce(tensor)
            dist.broadcast(tensor, 0)
        return first.estimated_time, both.estimated_time, float(process.simulation.now_ns - begin), int(tensor[5])

    for rank, (first, both, spent, value) in enumerate(results(body, 8, cluster=cluster)):
        assert first == pytest.approx(28.014, abs=0.001)
        assert both > first
        assert (spent, value) == (0, rank)


def test_nccl_learns_of_memory_pools_once_it_has_a_communicator() -> None:
    def body() -> list[str]:
        join()
        pool: Any = torch.cuda.MemPool()
        before = said(lambda: backend().register_mem_pool(pool))
        dist.all_reduce(of(1))
        backend().register_mem_pool(pool)
        backend().deregister_mem_pool(pool)
        symmetric = said(lambda: backend().register_mem_pool(pool, symm=True))
        return [before, symmetric, said(lambda: backend().mem_allocator)]

    before, symmetric, allocator = results(body)[0]

    assert before.startswith("DistBackendError: NCCL communicator has not been initialized before mem pool creation.")
    assert symmetric == "UnsupportedError: symmetric memory is not simulated; register the pool without symm=True"
    assert allocator == "DistBackendError: NCCL mem allocator is not supported in this NCCL version"


# -- variables -------------------------------------------------------------------------------------------------------


def test_a_watchdog_need_not_take_its_process_down() -> None:
    def body() -> str:
        rank = join()
        dist.all_reduce(of(1))
        if rank == 0:
            dist.all_reduce(of(1))
        time.sleep(800)
        return "lives"

    env = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    result = run(body, 2, env=env)

    assert [rank.value for rank in result.ranks] == ["lives", "lives"]
    assert "Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught" in logged(result)
    assert "terminate called" not in logged(result)


def test_a_communicator_that_is_made_without_blocking_gives_up() -> None:
    def body() -> tuple[str, float]:
        rank = join()
        process = current_process()
        assert process is not None
        if rank == 1:
            time.sleep(100)
            return "", 0
        return said(lambda: dist.all_reduce(of(1))), process.simulation.now_ns / 1e9

    env = {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1", "TORCH_NCCL_NONBLOCKING_TIMEOUT": "30"}
    (text, seconds), _ = results(body, env=env)

    assert text.startswith("DistBackendError: NCCL timeout in: ")
    assert 30 <= seconds < 31


@pytest.mark.skipif(VERSION >= (2, 15), reason="torch does not know the variable since 2.15")
def test_what_is_the_default_now_is_said_to_be() -> None:
    result = run(join, 1, env={"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"})

    assert "Warning: TORCH_NCCL_AVOID_RECORD_STREAMS is the default now, this environment" in logged(result)


def test_dumps_have_what_the_variables_say(tmp_path: Path) -> None:
    env = {
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/early_",
        "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1",
        "TORCH_INCLUDE_STACK_TRACE": "0",
        "TORCH_INCLUDE_ONLY_ACTIVE": "1",
    }

    def body() -> None:
        rank = join()
        os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{tmp_path}/late_"
        tensor = of(1)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        if rank == 0:
            dist.all_reduce(tensor)
            tensor.tolist()

    result = run(body, 2, cluster=build(2, devices_per_host=2), env=env)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["late_0"]
    (entry,) = pickle.loads((tmp_path / "late_0").read_bytes())["entries"]
    assert (entry["collective_seq_id"], "frames" in entry) == (2, False)
    assert "Include stack trace: 0, only active collectives: 1" in logged(result)


def test_an_abort_dumps_if_it_is_asked_to(tmp_path: Path) -> None:
    def body() -> None:
        join()
        dist.all_reduce(of(1))
        backend().abort()

    run(body, 2, env={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a_", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1"})
    run(body, 2, env={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/b_"})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_0", "a_1"]
