"""The flight recorder: the entries of a rank's dump for its operations. One body, two arms."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from tests.parity.arms import simulated
from tests.real_gloo import run_real

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]

dist: Any = torch.distributed  # the stubs do not export every name
c10d: Any = torch.distributed.distributed_c10d
_c: Any = torch._C._distributed_c10d
VARYING = ("time_created_ns", "thread_id", "thread_name", "frames")  # a process's name depends on its starter


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (4,), dtype=dtype)


def start(size: str | None, level: str = "OFF") -> tuple[int, int]:
    """Join the world; returns the rank and the world's size."""
    if size is not None:
        os.environ["TORCH_FR_BUFFER_SIZE"] = size
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    dist.set_debug_level_from_env()
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    return dist.get_rank(), dist.get_world_size()


def dump(**options: bool) -> dict[str, Any]:
    """Return the dump without what differs between runs; waits, since real works are retired after they are done."""
    time.sleep(0.1)
    found: dict[str, Any] = pickle.loads(_c._dump_fr_trace(**options))
    for status in found.get("pg_status", {}).values():
        # This is the last retired one, not the highest: with two threads that is a race after some ten operations.
        if status["last_completed_collective"] > 10:
            del status["last_completed_collective"]
    for entry in found.get("entries", ()):
        for name in VARYING:
            entry.pop(name, None)
    return found


def dump_json(**options: bool) -> str:
    found = json.loads(_c._dump_fr_trace_json(**options))
    for entry in found.get("entries", ()):
        for name in VARYING:
            entry.pop(name, None)
    return json.dumps(found)  # keeps the order


def every_operation() -> dict[str, Any]:
    rank, size = start("200")
    root = rank == 1
    dist.barrier()
    dist.all_reduce(ones(2, 3, dtype=torch.float64))
    dist.all_reduce(torch.ones(()))
    dist.all_reduce(ones(4, dtype=torch.complex64))
    dist.all_reduce(ones(2, 3).t())
    dist.all_reduce(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (4,)))
    dist.broadcast(ones(), 0)
    dist.reduce(ones(3), 1)
    dist.all_gather([ones() for _ in range(size)], ones())
    dist.all_gather_into_tensor(ones(4 * size), ones())
    dist.reduce_scatter(ones(2 + rank), [ones(2 + index) for index in range(size)])
    dist.reduce_scatter_tensor(ones(2, 3), ones(2 * size, 3))
    dist.all_to_all_single(ones(2 * size, 2), ones(4 * size))
    dist.all_to_all_single(ones(2 * size), ones(2 * size), [2] * size, [2] * size)
    dist.all_to_all([ones(2, 2) for _ in range(size)], [ones(2, 2) for _ in range(size)])
    dist.gather(ones(2, 2), [ones(2, 2) for _ in range(size)] if root else None, dst=1)
    dist.scatter(ones(2, 2), [ones(2, 2) for _ in range(size)] if root else None, src=1)
    dist.all_reduce_coalesced([ones(), ones(3)])
    dist.all_gather_coalesced([[ones(), ones(3, 2)] for _ in range(size)], [ones(), ones(3, 2)])
    with c10d._coalescing_manager():
        dist.all_gather_into_tensor(ones(4 * size), ones())
        dist.all_gather_into_tensor(ones(2 * size), ones(2))
    dist.group.WORLD.allreduce([ones(), ones()]).wait()
    dist.group.WORLD.broadcast([ones(), ones()]).wait()
    dist.group.WORLD.allgather([[ones()] * (2 * size)] * 2, [ones()] * 2).wait()
    dist.all_gather_object([None] * size, "x")
    return dump()


def messages_leave_no_entry() -> dict[str, Any]:
    rank, _ = start("200")
    for _ in range(2):
        dist.recv(ones(), 0) if rank else dist.send(ones(), 1)
    dist.monitored_barrier()
    dist.all_reduce(ones())
    return dump()


def groups() -> dict[str, Any]:
    start("200")
    group = dist.new_group([0, 1], group_desc="mine", timeout=timedelta(seconds=2))
    dist.all_reduce(ones(), group=group)
    dist.all_reduce(ones(), group=dist.new_group([0, 1]))
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=1.5)
    dist.group.WORLD.allreduce([ones()], options).wait()
    return dump()


def made_again() -> dict[str, Any]:
    start("200")
    dist.all_reduce(ones(2))
    dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    dist.all_reduce(ones(3))
    return dump()


def checked() -> dict[str, Any]:
    start("200", "DETAIL")
    dist.all_reduce(ones(2))
    return dump()


def the_last_three() -> tuple[dict[str, Any], str]:
    start("3")
    for count in range(1, 6):
        dist.all_reduce(ones(count))
    return dump(), dump_json()


def switched_off() -> tuple[dict[str, Any], str]:
    start("0")
    dist.all_reduce(ones(2))
    return dump(), dump_json()


def before_any_group() -> tuple[dict[str, Any], str]:
    return dump(), dump_json()


def by_default() -> dict[str, Any]:
    start(None)
    dist.all_reduce(ones(2))
    return dump(includeStackTraces=False)


def parts_of_it() -> tuple[Any, ...]:
    start("200")
    dist.all_reduce(ones(2))
    return dump(includeCollectives=False), dump(onlyActive=True), dump_json(), dump_json(includeCollectives=False)


def under_way() -> tuple[Any, ...]:
    rank, _ = start("200")
    work = dist.all_reduce(ones(2), async_op=True) if rank == 0 else None
    time.sleep(0.3)
    before = dump()
    time.sleep(0.3)
    if work is None:
        dist.all_reduce(ones(2))
    else:
        work.wait()
    return before, dump()


def failed() -> dict[str, Any]:
    rank, _ = start("200")
    if rank == 0:
        with pytest.raises(RuntimeError, match="Timed out"):
            dist.all_reduce(ones(3))
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(ones(dtype=torch.int16))
    with pytest.raises(RuntimeError, match="invalid tensor size"):
        dist.all_gather([ones(3), ones(3)], ones())
    time.sleep(0.3 if rank == 0 else 1.3)
    return dump()


BODIES: dict[str, tuple[Callable[[], Any], int]] = {
    body.__name__.replace("_", " "): (body, size)
    for body, size in (
        (every_operation, 3),
        (messages_leave_no_entry, 2),
        (groups, 2),
        (made_again, 2),
        (checked, 2),
        (the_last_three, 2),
        (switched_off, 2),
        (before_any_group, 1),
        (by_default, 2),
        (parts_of_it, 2),
        (under_way, 2),
        (failed, 2),
    )
}


@pytest.mark.parametrize("name", BODIES)
def test_the_same_dump(name: str) -> None:
    body, size = BODIES[name]
    simulation = simulated(body, size)
    for _ in range(3):  # a work is retired by another thread, which a busy machine may keep waiting
        reality = run_real(body, size, timeout_s=20)
        if [rank.value for rank in reality] == [rank.value for rank in simulation]:
            break

    assert [rank.status for rank in simulation] == ["returned"] * size, simulation[0].message
    assert [rank.value for rank in simulation] == [rank.value for rank in reality]


def test_an_entry_names_the_lines_that_led_to_the_call() -> None:
    def body() -> list[tuple[str, str]]:
        start("10")
        dist.all_reduce(ones())
        frames = pickle.loads(_c._dump_fr_trace())["entries"][0]["frames"]
        return [(frame["name"], Path(frame["filename"]).name) for frame in frames[:3]]

    arms = simulated(body, 2), run_real(body, 2, timeout_s=20)

    expected = [
        ("all_reduce", "distributed_c10d.py"),
        ("wrapper", "c10d_logger.py"),
        ("body", Path(__file__).name),
    ]
    assert [[rank.value for rank in arm] for arm in arms] == [[expected] * 2] * 2
