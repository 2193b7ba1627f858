"""PyTorch's own tests of NCCL's flight recorder (test_c10d_nccl.py), by name.

As in `test_torch_suite.py`: every test from the first that reads a trace to the end of that family. A test with
parameters is one case, with a world for each value; `test_torch_suite_compiled.py` has those that compile. A duration
only has to be positive: on these links some take nanoseconds.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C import _distributed_c10d as c10d_names

from simdist import RunResult
from tests.c10d.nccl.suite import Case, cases, dist, hold, play, raises

_c: Any = c10d_names
_cuda: Any = torch.cuda
Tensor = torch.Tensor


def entries(**what: bool) -> list[dict[str, Any]]:
    """Return the entries of the rank's recorder."""
    found: list[dict[str, Any]] = pickle.loads(_c._dump_nccl_trace(**what))["entries"]
    return found


def begin(self: Case, timed: bool) -> tuple[Any, Tensor]:
    """Return a group, which measures its collectives if `timed`, and a tensor."""
    group = self.init()
    if timed:
        group._enable_collectives_timing()
    return group, torch.full((3, 4), float(self.rank), device=self.device)


def reduce_often(self: Case, group: Any, tensor: Tensor, times: int) -> None:
    """Do all-reduces, and wait until the watchdog has seen their ends."""
    for _ in range(times):
        work = group.allreduce(tensor)
    work.wait()
    torch.cuda.synchronize(device=self.device)
    time.sleep(1)


# -- the content of a trace ------------------------------------------------------------------------------------------


def verify(self: Case, found: dict[str, Any], entries_are_wanted: bool, timed: bool, in_json: bool) -> None:
    assert found["version"] == "2.10"
    assert found["comm_lib_version"] == ".".join(str(each) for each in _cuda.nccl.version())
    (config,) = found["pg_config"].values()
    assert {"name", "desc", "ranks"} <= set(config)
    assert len(json.loads(config["ranks"])) == self.world_size
    (status,) = found["pg_status"].values()
    assert str(status["last_enqueued_collective"]) == str(status["last_completed_collective"]) == "2"
    assert str(status["last_started_collective"]) == ("2" if timed else "-1")
    assert ("entries" in found) is entries_are_wanted
    if not entries_are_wanted:
        return
    assert len(found["entries"]) == 2
    last = found["entries"][-1]
    assert tuple(last["process_group"]) == ("0", "default_pg")
    assert (last["state"], last["record_id"], last["collective_seq_id"]) == ("completed", 1, 2)
    assert last["time_discovered_completed_ns"]
    if timed:
        assert 0 < last["time_discovered_started_ns"] <= last["time_discovered_completed_ns"]
        assert 0 < last["duration_ms"] < 100
    else:
        assert "duration_ms" not in last
    if not in_json:
        assert Path(__file__).name in str(last["frames"])
    assert [list(each) for each in (*last["input_sizes"], *last["output_sizes"])] == [[3, 4], [3, 4]]
    assert last["input_dtypes"] == last["output_dtypes"] == ["Float"]
    assert last["timeout_ms"] == 600000
    made, now = datetime.fromtimestamp(last["time_created_ns"] / 1e9), datetime.now()
    assert now - timedelta(minutes=1) < made < now


def case_short_json(self: Case, timed: bool, in_json: bool = True) -> None:
    group, tensor = begin(self, timed)
    reduce_often(self, group, tensor, 2)
    for wanted in (True, False):
        dumped = (_c._dump_nccl_trace_json if in_json else _c._dump_nccl_trace)(includeCollectives=wanted)
        verify(self, (json if in_json else pickle).loads(dumped), wanted, timed, in_json)
    dist.destroy_process_group()


def case_short_pickle(self: Case, timed: bool) -> None:
    case_short_json(self, timed, in_json=False)


def case_long(self: Case) -> None:
    group, tensor = begin(self, False)
    for _ in range(2):
        one = [torch.ones(3, 4, device=self.device)]
        group.broadcast(one).wait()
        group.allreduce(one).wait()
        group.reduce(one).wait()
        several = [[torch.empty(3, 4, device=self.device) for _ in range(self.world_size)]]
        group.allgather(several, one).wait()
        group.reduce_scatter(one, several).wait()
        work = group.allreduce(tensor)
    work.wait()
    torch.cuda.synchronize(device=self.device)
    found = entries()
    assert len(found) == 10
    last = found[-1]
    assert (last["profiling_name"], last["state"]) == ("nccl:all_reduce", "completed")
    assert Path(__file__).name in str(last["frames"])
    assert last["collective_seq_id"] - found[0]["collective_seq_id"] == 9
    dist.destroy_process_group()


def case_barrier_profiling(self: Case) -> None:
    group, tensor = begin(self, False)
    group.barrier()
    group.allreduce(tensor).wait()
    torch.cuda.synchronize(device=self.device)
    assert [each["profiling_name"] for each in entries()] == ["nccl:all_reduce_barrier", "nccl:all_reduce"]
    dist.destroy_process_group()


def case_trace_while_all_works_retired(self: Case) -> None:
    group, _ = begin(self, False)
    for _ in range(12):
        group.broadcast([torch.ones(3, 4, device=self.device)]).wait()
    torch.cuda.synchronize(device=self.device)
    group._wait_for_pending_works()
    found = entries()
    assert len(found) == 10
    assert (found[-1]["retired"], found[-1]["state"]) == (True, "completed")


# -- while something is under way ------------------------------------------------------------------------------------


def next_to(self: Case, key: str) -> None:
    """Wait until both ranks are here; torch's test uses pipes to the parent for this."""
    store = self.store()
    store.add(key, 1)
    while int(store.add(key, 0)) < self.world_size:
        time.sleep(0.01)


def case_trace_while_active(self: Case, timed: bool) -> None:
    group, tensor = begin(self, timed)
    with torch.cuda.device(self.device):
        group.allreduce(tensor).wait()
        event: Any = _cuda.Event()
        event.record()
        if self.rank != 0:
            group.allreduce(tensor).wait()
        event.synchronize()
        time.sleep(1)
        active, last = entries(onlyActive=True), entries(onlyActive=False)[-1]
        assert len(active) == (0 if self.rank == 0 else 1)
        assert last["profiling_name"] == "nccl:all_reduce"
        running = "started" if timed else "scheduled"
        expected = (1, "completed") if self.rank == 0 else (2, running)
        assert (last["collective_seq_id"], last["state"]) == expected
        next_to(self, "looked")
        if self.rank == 0:
            group.allreduce(tensor).wait()
        torch.cuda.synchronize(device=self.device)


def case_trace_while_stuck(self: Case, timed: bool) -> None:
    group, tensor = begin(self, timed)
    with torch.cuda.device(self.device):
        group.allreduce(tensor).wait()
        event: Any = _cuda.Event()
        event.record()

        def look() -> None:
            event.synchronize()
            time.sleep(5)
            last = entries()[-1]
            running = "started" if timed else "scheduled"
            expected = (1, "completed") if self.rank == 0 else (2, running)
            assert (last["collective_seq_id"], last["state"]) == expected
            assert self.rank == 0 or last["time_discovered_completed_ns"] is None
            looked.append(True)
            next_to(self, "looked")

        looked: list[bool] = []
        if self.rank != 0:
            group.allreduce(tensor).wait()
            thread = threading.Thread(target=look)
            thread.start()
            for _ in range(200):
                tensor = tensor + tensor
            thread.join()
        else:
            look()
            group.allreduce(tensor).wait()
        assert looked
        torch.cuda.synchronize(device=self.device)


# -- messages and blocks ---------------------------------------------------------------------------------------------

SIZES: tuple[list[tuple[int, ...]], ...] = ([(2, 3)], [(2, 3), (5, 5), (1,)])


def message_name(self: Case) -> str:
    return "nccl:recv 0<-1" if self.rank == 0 else "nccl:send 1->0"


def case_batched_send_recv(self: Case, timed: bool, sizes: list[tuple[int, ...]]) -> None:
    begin(self, timed)
    count = len(sizes)
    for _ in range(20):
        tensors = [torch.full(size, 2.0 * self.rank, device=self.device) for size in sizes]
        call = dist.irecv if self.rank == 0 else dist.isend
        dist.batch_isend_irecv([dist.P2POp(call, tensor, 1 - self.rank) for tensor in tensors]).pop().wait()
    torch.cuda.synchronize(device=self.device)
    time.sleep(1)
    found = entries()
    assert [each["record_id"] for each in found] == list(range(20 * (count + 1)))
    operations = 0
    for block in range(20):
        *inner, whole = found[block * (count + 1) : (block + 1) * (count + 1)]
        for each, size in zip(inner, sizes, strict=True):
            operations += 1
            assert (each["profiling_name"], each["state"]) == (message_name(self), "scheduled")
            assert (each["collective_seq_id"], each["p2p_seq_id"], each["op_id"]) == (0, block + 1, operations)
            assert [tuple(one) for one in (*each["input_sizes"], *each["output_sizes"])] == [size, size]
            assert "duration_ms" not in each
        assert (whole["profiling_name"], whole["state"]) == ("nccl:coalesced", "completed")
        assert (whole["p2p_seq_id"], list(whole["input_sizes"]), list(whole["output_sizes"])) == (block + 1, [], [])
        assert whole["timeout_ms"] == 600000
        assert (0 < whole["duration_ms"] < 10000) if timed else ("duration_ms" not in whole)


def case_individual_send_recv(self: Case, timed: bool, sizes: list[tuple[int, ...]]) -> None:
    begin(self, timed)
    for _ in range(10):
        for size in sizes:
            tensor = torch.full(size, 2.0 * self.rank, device=self.device)
            if self.rank == 0:
                dist.recv(tensor, 1)
            else:
                dist.send(tensor, 0)
    torch.cuda.synchronize(device=self.device)
    time.sleep(1)
    found = entries()
    assert len(found) == 10 * len(sizes)
    for index, each in enumerate(found):
        size = sizes[index % len(sizes)]
        assert (each["profiling_name"], each["state"]) == (message_name(self), "completed")
        assert (each["collective_seq_id"], each["p2p_seq_id"], each["op_id"]) == (0, index + 1, index + 1)
        assert [tuple(one) for one in (*each["input_sizes"], *each["output_sizes"])] == [size, size]
        assert (0 < each["duration_ms"] < 10000) if timed else ("duration_ms" not in each)


def case_allgather_uneven(self: Case, timed: bool) -> None:
    begin(self, timed)
    output = torch.zeros(3, 2, device=self.device)
    dist.all_gather(list(torch.split(output, [1, 2])), torch.ones(self.rank + 1, 2, device=self.device))
    torch.cuda.synchronize(device=self.device)
    assert bool((output == 1).all())
    time.sleep(1)
    *inner, whole = entries()
    assert len(inner) == self.world_size
    for index, each in enumerate(inner):
        assert (each["profiling_name"], each["collective_seq_id"]) == ("nccl:_broadcast_oop", 1)
        assert [list(one) for one in (*each["input_sizes"], *each["output_sizes"])] == [[index + 1, 2]] * 2
        assert each["state"] == "scheduled"
        assert "time_discovered_completed_ns" in each
    assert whole["profiling_name"] == "nccl:ALLGATHER_coalesced"


def case_coalescing_manager_collective(self: Case, timed: bool) -> None:
    begin(self, timed)
    outputs = torch.zeros(2, 2, device=self.device)
    inputs = [torch.ones(2, 2, device=self.device) for _ in range(2)]
    with dist._coalescing_manager():
        for index in range(2):
            dist.reduce_scatter_tensor(outputs[index], inputs[index])
    assert torch.equal(outputs, inputs[0] * 2)
    torch.cuda.synchronize(device=self.device)
    time.sleep(1)
    (only,) = entries()
    assert (only["profiling_name"], only["collective_seq_id"], only["state"]) == (
        "nccl:reduce_scatter_tensor_coalesced",
        1,
        "completed",
    )
    assert [list(each) for each in only["input_sizes"]] == [[2, 2], [2, 2]]
    assert [list(each) for each in only["output_sizes"]] == [[2], [2]]
    assert (0 < only["duration_ms"] < 10000) if timed else ("duration_ms" not in only)


# -- starting anew ---------------------------------------------------------------------------------------------------


def reset_between(self: Case, timed: bool, *counts: int) -> None:
    """Reset the records after each number of all-reduces but the last, whose records are numbered from 0."""
    group, tensor = begin(self, timed)
    for index, count in enumerate(counts):
        if index:
            _c._reset_fr_recording_nccl()
        reduce_often(self, group, tensor, count)
    found = entries()
    assert [each["record_id"] for each in found] == list(range(counts[-1]))
    assert {each["profiling_name"] for each in found} == {"nccl:all_reduce"}
    dist.destroy_process_group()


def case_fr_record_reset(self: Case, timed: bool) -> None:
    reset_between(self, timed, 5, 4)


def case_fr_record_reset_circular_buffer_full(self: Case, timed: bool) -> None:
    reset_between(self, timed, 10, 10)


def case_fr_record_reset_partial_overwrite(self: Case, timed: bool) -> None:
    reset_between(self, timed, 10, 3)


def case_fr_record_reset_wraparound(self: Case, timed: bool) -> None:
    reset_between(self, timed, 5, 8)


def case_fr_record_multiple_resets(self: Case, timed: bool) -> None:
    reset_between(self, timed, 2, 3, 4)


# -- dumps of ranks that hang ----------------------------------------------------------------------------------------


def one_too_many(self: Case, timed: bool = False, rank_1_sleeps: bool = False) -> None:
    group = self.init(timeout=timedelta(seconds=1))
    if timed:
        group._enable_collectives_timing()
    with torch.cuda.device(self.device):
        tensor = torch.full((3, 4), float(self.rank), device=self.device)
        group.allreduce(tensor).wait()
        if self.rank == 0:
            group.allreduce(tensor).wait()
        torch.cuda.synchronize(device=self.device)
        if rank_1_sleeps and self.rank == 1:
            time.sleep(600)


def dumped(folder: Path, rank: int) -> list[tuple[int, str]]:
    """Return the numbers and states in a rank's file."""
    found = pickle.loads((folder / f"trace_{rank}").read_bytes())["entries"]
    return [(each["collective_seq_id"], each["state"]) for each in found]


def case_timeout_dumps(self: Case, timed: bool) -> None:
    one_too_many(self, timed)


def case_timeout_dumps_on_stuck_ranks(self: Case) -> None:
    one_too_many(self, rank_1_sleeps=True)


def case_nccl_errors_dump(self: Case) -> None:
    group = dist.ProcessGroupNCCL(self.store(), self.rank, self.world_size, timeout=timedelta(seconds=10))
    group.allreduce(torch.rand(10, device=self.device))
    if self.rank == 0:
        work = group.allreduce(torch.rand(10, device=self.device))
        work.wait()
        raises(dist.DistBackendError, lambda: torch.rand(10).cuda(self.rank).tolist())
    else:
        del group
        sys.exit(1)


def case_dump_pipe(self: Case, folder: Path) -> None:
    group, tensor = begin(self, False)
    for _ in range(2):
        work = group.allreduce(tensor)
    work.wait()
    torch.cuda.synchronize(device=self.device)
    if self.rank == 0:
        for rank in range(self.world_size):
            (folder / f"trace_{rank}.pipe").write_text("1\n")
    time.sleep(1.5)
    assert "all_reduce" in str(pickle.loads((folder / f"trace_{self.rank}").read_bytes()))


# -- all of them -----------------------------------------------------------------------------------------------------

SMALL_RING = ("long", "barrier_profiling", "trace_while_all_works_retired", "fr_record_reset_circular_buffer_full")
UNTIMED = ("long", "barrier_profiling", "trace_while_all_works_retired")
OF_SIZES = ("batched_send_recv", "individual_send_recv")
PIPED = ("dump_pipe",)
ENDS = ("timeout_dumps", "timeout_dumps_on_stuck_ranks", "nccl_errors_dump")


def record(name: str, tmp_path: Path, *more: Any, **env: str) -> RunResult:
    """Run a case with the variables that torch's tests of traces set."""
    size = "10" if name in SMALL_RING or name.startswith("fr_record_") else "1000"
    variables = {
        "TORCH_NCCL_ENABLE_TIMING": "0",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": size,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "trace_"),
    }
    case = globals()[f"case_{name}"]
    return play(lambda self: case(self, *more), tmp_path, env={**variables, **env})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [name for name in cases(globals()) if name not in (*UNTIMED, *OF_SIZES, *PIPED, *ENDS)],
)
@pytest.mark.parametrize("timed", [True, False])
def test_torchs_own(name: str, timed: bool, tmp_path: Path) -> None:
    hold(record(name, tmp_path, timed))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNTIMED)
def test_torchs_own_without_times(name: str, tmp_path: Path) -> None:
    hold(record(name, tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_SIZES)
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_torchs_own_of_sizes(name: str, timed: bool, sizes: Any, tmp_path: Path) -> None:
    hold(record(name, tmp_path, timed, sizes))


@pytest.mark.parametrize("name", PIPED)
def test_torchs_own_with_a_pipe(name: str, tmp_path: Path) -> None:
    hold(record(name, tmp_path, tmp_path, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=str(tmp_path / "trace_")))


@pytest.mark.parametrize("timed", [True, False])
def test_timeout_dumps(timed: bool, tmp_path: Path) -> None:
    env = {"TORCH_NCCL_COORD_CHECK_MILSEC": "1000", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1"}
    result = record("timeout_dumps", tmp_path, timed, **env)

    assert [rank.exit_code for rank in result.ranks] == [-6, 0]
    assert dumped(tmp_path, 0) == [(1, "completed"), (2, "started" if timed else "scheduled")]
    assert not (tmp_path / "trace_1").exists()


def test_timeout_dumps_on_stuck_ranks(tmp_path: Path) -> None:
    env = {"TORCH_NCCL_COORD_CHECK_MILSEC": "1000", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1"}
    result = record("timeout_dumps_on_stuck_ranks", tmp_path, **env)

    assert [rank.exit_code for rank in result.ranks] == [-6, -6]
    assert len(dumped(tmp_path, 0)) == 2
    assert dumped(tmp_path, 1) == [(1, "completed")]


def test_nccl_errors_dump(tmp_path: Path) -> None:
    result = record("nccl_errors_dump", tmp_path, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="5")

    assert [rank.exit_code for rank in result.ranks] == [-6, 1]
    assert (tmp_path / "trace_0").exists()
