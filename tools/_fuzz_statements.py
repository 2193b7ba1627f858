"""The actions of a rank at each statement of a random program."""

from __future__ import annotations

import contextlib
import os
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simdist
from tools._fuzz_programs import Program, Statement

__all__ = ["ACTIONS", "perform"]


@dataclass
class _Rank:
    """The state of a rank that runs a program."""

    program: Program
    rank: int = 0
    groups: list[Any] = field(default_factory=list)
    works: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # tensors of works that were not waited for
    crc: int = 0
    turn: int = 0  # turn of the innermost loop
    errors: list[str] = field(default_factory=list)
    model: Any = None

    def take(self, *tensors: Any) -> None:
        """Add tensors to the checksum that the rank returns."""
        for tensor in tensors:
            data = tensor.detach().to(torch.complex128).contiguous()
            self.crc = zlib.crc32(torch.view_as_real(data).numpy().tobytes(), self.crc)


def perform(program: Program) -> tuple[int, list[str]]:
    """Run a program on this rank; returns a checksum over all received data, and the errors that it caught."""
    dist.init_process_group("gloo", timeout=timedelta(milliseconds=program.timeout_ms))
    state = _Rank(program, dist.get_rank(), [dist.group.WORLD])
    for statement in program.statements:
        _guarded(statement, state)
    _guarded(Statement("wait_all", 0), state)
    if program.destroys and dist.is_initialized():  # not after an `again` that failed half-way
        state.model = None
        dist.destroy_process_group()
    return state.crc, state.errors


def _guarded(statement: Statement, state: _Rank) -> None:
    if not state.program.goes_on:
        _do(statement, state)
        return
    try:
        _do(statement, state)
    except (RuntimeError, ValueError, TypeError) as error:
        state.errors.append(f"{statement.kind}: {type(error).__name__}")


def _do(statement: Statement, state: _Rank) -> None:
    odd = statement.odd is not None and statement.odd % dist.get_world_size() == state.rank
    times = 1
    if odd:
        if statement.way == "skip":
            return
        times = 2 if statement.way == "twice" else 1
        changes: dict[str, dict[str, Any]] = {
            "shape": {"size": statement.size + 3},
            "dtype": {"dtype": "int32" if statement.dtype != "int32" else "float32", "op": "SUM"},
            "other": {"kind": "broadcast" if statement.kind != "broadcast" else "all_reduce"},
        }
        statement = replace(statement, **changes.get(statement.way, {}))
    for _ in range(times):
        if statement.kind == "loop":
            for turn in range(statement.times):
                for inner in statement.body:
                    state.turn = turn
                    _guarded(inner, state)
        else:
            ACTIONS[statement.kind](statement, state)


def _data(statement: Statement, state: _Rank, length: int | None = None, salt: int = 0) -> torch.Tensor:
    """Return the tensor that this rank passes to a statement."""
    size = statement.size if length is None else length
    generator = torch.Generator().manual_seed(1_000_003 * statement.number + 101 * state.rank + 7 * state.turn + salt)
    dtype: torch.dtype = getattr(torch, statement.dtype)
    small = torch.randint(0, 5, (size,), generator=generator)
    tensor = small.to(dtype) if not dtype.is_floating_point else (small.to(torch.float64) / 3).to(dtype)
    if statement.layout == "transposed" and size % 2 == 0 and size:
        return tensor.reshape(2, -1).t()
    if statement.layout == "scalar" and size == 1:
        return tensor.expand(1, 1).contiguous().as_strided((1,), (3,))
    return tensor


def _fresh(state: _Rank, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return memory to receive into. If ranks disagree, some of it may stay unfilled; a program then reads zeros."""
    return (torch.zeros if state.program.disagrees else torch.empty)(*size, dtype=dtype)


def _fresh_like(state: _Rank, tensor: torch.Tensor) -> torch.Tensor:
    return (torch.zeros_like if state.program.disagrees else torch.empty_like)(tensor)


def _group(statement: Statement, state: _Rank) -> Any:
    """Return the group of a statement, out of those that this rank has; the default group if it has no other."""
    return state.groups[statement.group % len(state.groups)]


def _size(group: Any) -> int:
    return dist.get_world_size(group)


def _root(statement: Statement, group: Any) -> int:
    return (
        dist.get_global_rank(group, statement.root % _size(group)) if _is_sub(group) else statement.root % _size(group)
    )


def _is_sub(group: Any) -> bool:
    return group is not dist.group.WORLD


def _issue(statement: Statement, state: _Rank, call: Callable[..., Any], *results: Any) -> None:
    """Issue the call, and wait for it now or later."""
    work = call(async_op=statement.asynchronous)
    if work is None:
        state.take(*results)
        return
    state.works.append(work)
    state.kept.append(results)


def _outside(group: Any) -> bool:
    return group is None or group == dist.GroupMember.NON_GROUP_MEMBER


def _collective(action: Callable[[Statement, _Rank, Any], None]) -> Callable[[Statement, _Rank], None]:
    def do(statement: Statement, state: _Rank) -> None:
        group = _group(statement, state)
        if not _outside(group):
            action(statement, state, group)

    return do


def _all_reduce(s: Statement, state: _Rank, group: Any) -> None:
    tensor = _data(s, state)
    op = getattr(dist.ReduceOp, s.op)
    _issue(s, state, lambda async_op: dist.all_reduce(tensor, op, group, async_op), tensor)


def _broadcast(s: Statement, state: _Rank, group: Any) -> None:
    tensor = _data(s, state)
    _issue(s, state, lambda async_op: dist.broadcast(tensor, _root(s, group), group, async_op), tensor)


def _reduce(s: Statement, state: _Rank, group: Any) -> None:
    tensor = _data(s, state)
    op = getattr(dist.ReduceOp, s.op)
    _issue(s, state, lambda async_op: dist.reduce(tensor, _root(s, group), op, group, async_op), tensor)


def _all_gather(s: Statement, state: _Rank, group: Any) -> None:
    tensor = _data(s, state)
    outputs = [_fresh_like(state, tensor) for _ in range(_size(group))]
    _issue(s, state, lambda async_op: dist.all_gather(outputs, tensor, group, async_op), *outputs)


def _all_gather_single(s: Statement, state: _Rank, group: Any) -> None:
    tensor = _data(replace(s, layout="plain"), state)
    output = _fresh(state, len(tensor) * _size(group), dtype=tensor.dtype)
    _issue(s, state, lambda async_op: dist.all_gather_into_tensor(output, tensor, group, async_op), output)


def _gather(s: Statement, state: _Rank, group: Any) -> None:
    tensor = _data(s, state)
    root = _root(s, group)
    outputs = [_fresh_like(state, tensor) for _ in range(_size(group))] if state.rank == root else None
    _issue(s, state, lambda async_op: dist.gather(tensor, outputs, root, group, async_op), *(outputs or ()))


def _scatter(s: Statement, state: _Rank, group: Any) -> None:
    root = _root(s, group)
    inputs = [_data(s, state, salt=q) for q in range(_size(group))] if state.rank == root else None
    output = _fresh_like(state, _data(s, state))
    _issue(s, state, lambda async_op: dist.scatter(output, inputs, root, group, async_op), output)


def _reduce_scatter(s: Statement, state: _Rank, group: Any) -> None:
    inputs = [_data(s, state, salt=q) for q in range(_size(group))]
    output = _fresh_like(state, inputs[0])
    op = getattr(dist.ReduceOp, s.op)
    _issue(s, state, lambda async_op: dist.reduce_scatter(output, inputs, op, group, async_op), output)


def _reduce_scatter_single(s: Statement, state: _Rank, group: Any) -> None:
    plain = replace(s, layout="plain")
    whole = _data(plain, state, s.size * _size(group))
    output = _fresh(state, s.size, dtype=whole.dtype)
    op = getattr(dist.ReduceOp, s.op)
    _issue(s, state, lambda async_op: dist.reduce_scatter_tensor(output, whole, op, group, async_op), output)


def _all_to_all(s: Statement, state: _Rank, group: Any) -> None:
    inputs = [_data(s, state, salt=q) for q in range(_size(group))]
    outputs = [_fresh_like(state, tensor) for tensor in inputs]
    _issue(s, state, lambda async_op: dist.all_to_all(outputs, inputs, group, async_op), *outputs)


def _all_to_all_single(s: Statement, state: _Rank, group: Any) -> None:
    whole = _data(replace(s, layout="plain"), state, s.size * _size(group))
    output = _fresh_like(state, whole)
    _issue(s, state, lambda async_op: dist.all_to_all_single(output, whole, group=group, async_op=async_op), output)


def _uneven_exchange(s: Statement, state: _Rank, group: Any) -> None:
    size, me = _size(group), dist.get_group_rank(group, state.rank) if _is_sub(group) else state.rank
    going = [(me + q + s.number) % 4 for q in range(size)]
    coming = [(q + me + s.number) % 4 for q in range(size)]
    whole = _data(replace(s, layout="plain"), state, sum(going))
    output = _fresh(state, sum(coming), dtype=whole.dtype)
    _issue(
        s,
        state,
        lambda async_op: dist.all_to_all_single(output, whole, coming, going, group=group, async_op=async_op),
        output,
    )


def _all_reduce_coalesced(s: Statement, state: _Rank, group: Any) -> None:
    tensors = [_data(s, state, length, salt=length) for length in (s.size + 1, 3, 1)]
    op = getattr(dist.ReduceOp, s.op)
    _issue(s, state, lambda async_op: dist.all_reduce_coalesced(tensors, op, group, async_op), *tensors)


def _coalescing(s: Statement, state: _Rank, group: Any) -> None:
    tensors = [_data(replace(s, layout="plain"), state, salt=q) for q in range(3)]
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
    state.take(*tensors)


def _sparse(s: Statement, state: _Rank, group: Any) -> None:
    index = torch.tensor([[state.rank % 3, 3]])
    tensor = torch.sparse_coo_tensor(index, torch.tensor([1.0 + state.rank, 2.0]), (5,))
    dist.all_reduce(tensor, group=group)
    state.take(tensor.to_dense())


def _barrier(s: Statement, state: _Rank, group: Any) -> None:
    _issue(s, state, lambda async_op: dist.barrier(group, async_op))


def _monitored_barrier(s: Statement, state: _Rank, group: Any) -> None:
    timeout = timedelta(milliseconds=min(state.program.timeout_ms, 2_000))
    dist.monitored_barrier(group, timeout=timeout, wait_all_ranks=s.root % 2 == 0)


def _ring(s: Statement, state: _Rank) -> None:
    world = dist.get_world_size()
    if world < 2:
        return
    tensor = _data(replace(s, layout="plain"), state)
    received = _fresh_like(state, tensor)
    works = [
        dist.isend(tensor, (state.rank + 1) % world, tag=s.root),
        dist.irecv(received, (state.rank - 1) % world, tag=s.root),
    ]
    for work in works if s.number % 2 else works[::-1]:
        assert work is not None
        work.wait()
    state.take(received)


def _pair(s: Statement, state: _Rank) -> None:
    world = dist.get_world_size()
    if world < 2:
        return
    one = s.root % world
    other = (one + 1) % world
    tensor = _data(replace(s, layout="plain"), state)
    if state.rank == one:
        dist.send(tensor, other, tag=s.number % 3)
    elif state.rank == other:
        dist.recv(tensor, one, tag=s.number % 3)
        state.take(tensor)


def _any_source(s: Statement, state: _Rank) -> None:
    world = dist.get_world_size()
    root = s.root % world
    if state.rank == root:
        total = torch.zeros(s.size)
        for _ in range(world - 1):
            received = torch.zeros(s.size)
            dist.recv(received, tag=s.number)
            total += received
        state.take(total)
    else:
        dist.send(torch.full((s.size,), float(state.rank)), root, tag=s.number)


def _batch(s: Statement, state: _Rank) -> None:
    world = dist.get_world_size()
    received = [_fresh(state, s.size) for _ in range(world)]
    calls = []
    for peer in range(world):
        if peer != state.rank:
            calls.append(dist.P2POp(dist.isend, torch.full((s.size,), float(state.rank)), peer))
            calls.append(dist.P2POp(dist.irecv, received[peer], peer))
    if calls:
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        state.take(*(tensor for peer, tensor in enumerate(received) if peer != state.rank))


def _many_messages(s: Statement, state: _Rank) -> None:
    if dist.get_world_size() < 2 or state.rank > 1:
        return
    tensors = [torch.full((1,), float(index)) for index in range(100)]
    call = dist.isend if state.rank == 0 else dist.irecv
    works = [call(tensor, 1 - state.rank, tag=s.number) for tensor in tensors]
    for work in works:
        assert work is not None
        work.wait()
    state.take(*tensors)


def _objects(s: Statement, state: _Rank, group: Any) -> None:
    gathered: list[Any] = [None] * _size(group)
    held = {"rank": state.rank, "text": "x" * (s.size + state.rank), "tensor": _data(s, state)}
    dist.all_gather_object(gathered, held, group=group)
    state.crc = zlib.crc32(repr(gathered).encode(), state.crc)


def _object_list(s: Statement, state: _Rank, group: Any) -> None:
    objects: list[Any] = [state.rank, "y" * s.size, None, torch.nn.Linear(1, 1).state_dict()]
    dist.broadcast_object_list(objects, _root(s, group), group=group)
    state.crc = zlib.crc32(repr(objects).encode(), state.crc)


def _object_gather(s: Statement, state: _Rank, group: Any) -> None:
    root = _root(s, group)
    gathered: list[Any] | None = [None] * _size(group) if state.rank == root else None
    dist.gather_object(("from", state.rank), gathered, root, group=group)
    state.crc = zlib.crc32(repr(gathered).encode(), state.crc)


def _object_scatter(s: Statement, state: _Rank, group: Any) -> None:
    received: list[Any] = [None]
    dist.scatter_object_list(received, [f"to {q}" for q in range(_size(group))], _root(s, group), group=group)
    state.crc = zlib.crc32(repr(received).encode(), state.crc)


def _store(s: Statement, state: _Rank) -> None:
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    count = store.add(f"count {s.number}", state.rank + 1)
    store.set(f"of {state.rank} {s.number}", str(s.size))
    if s.root % 2:
        store.compare_set(f"first {s.number}", "", str(state.rank))
        state.crc = zlib.crc32(store.get(f"first {s.number}"), state.crc)
    dist.barrier()
    state.crc = zlib.crc32(store.get(f"of {s.root % dist.get_world_size()} {s.number}"), state.crc + min(count, 1))


def _store_wait(s: Statement, state: _Rank) -> None:
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    world = dist.get_world_size()
    key = f"wait {s.number} {state.turn}"
    if state.rank == s.root % world:
        time.sleep(0.01)
        store.set(key, "there")
    else:
        store.wait([key], timedelta(milliseconds=min(5_000, state.program.timeout_ms)))


def _sleep(s: Statement, state: _Rank) -> None:
    time.sleep(((s.size * (1 + state.rank)) % 97) / 1000)


def _step(s: Statement, state: _Rank) -> None:
    simdist.step(s.root)


def _draw_numbers(s: Statement, state: _Rank) -> None:
    state.crc = zlib.crc32(f"{random.random()} {torch.rand(1).item()} {os.getpid()} {time.time()}".encode(), state.crc)


def _new_group(s: Statement, state: _Rank) -> None:
    world = dist.get_world_size()
    members = sorted({(s.root + q * (1 + s.number % 2)) % world for q in range(1 + s.size % world)})
    state.groups.append(dist.new_group(members))


def _split_groups(s: Statement, state: _Rank) -> None:
    world = dist.get_world_size()
    half = max(1, world // 2)
    made = [dist.new_group(part) for part in (list(range(half)), list(range(half, world))) if part]
    state.groups.append(next(group for group in made if not _outside(group)))


def _destroy_group(s: Statement, state: _Rank) -> None:
    if len(state.groups) > 1:
        group = state.groups.pop()
        if not _outside(group):
            _wait_all(s, state)
            dist.destroy_process_group(group)


def _again(s: Statement, state: _Rank) -> None:
    _wait_all(s, state)
    dist.barrier()
    state.model = None
    dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(milliseconds=state.program.timeout_ms))
    state.groups = [dist.group.WORLD]


def _wait_all(s: Statement, state: _Rank) -> None:
    works, state.works = state.works, []
    kept, state.kept = state.kept, []
    for work in works if s.number % 2 else works[::-1]:
        work.wait()
    for results in kept:
        state.take(*results)


def _poll(s: Statement, state: _Rank) -> None:
    tensor = _data(replace(s, dtype="float32", layout="plain"), state)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    asked = 0
    while not work.is_completed() and asked < 50:
        asked += 1
        time.sleep(0.001)
    work.wait()
    state.take(tensor)


def _future(s: Statement, state: _Rank) -> None:
    tensor = _data(replace(s, dtype="float32", layout="plain"), state)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    state.take(work.get_future().then(lambda done: done.value()[0] * 2).wait())


def _functional(s: Statement, state: _Rank) -> None:
    from torch.distributed import _functional_collectives as functional

    tensor = _data(replace(s, dtype="float32", layout="plain"), state)
    world: Any = dist.group.WORLD
    state.take(functional.all_reduce(tensor, "sum", world) + 1)
    state.take(functional.all_gather_tensor(tensor, 0, world) * 1)


def _ddp(s: Statement, state: _Rank) -> None:
    torch.manual_seed(s.number)
    if state.model is None:
        layers = torch.nn.Sequential(
            torch.nn.Linear(4, 3 + s.size % 5), torch.nn.ReLU(), torch.nn.Linear(3 + s.size % 5, 1)
        )
        state.model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1)
    for index in range(1 + s.root % 3):
        optimizer.zero_grad()
        data = torch.randn(2, 4, generator=torch.Generator().manual_seed(100 * index + state.rank))
        if index == 0 and s.root > 5:
            with state.model.no_sync():
                state.model(data).sum().backward()
        state.model(data).square().sum().backward()
        optimizer.step()
    state.take(*state.model.parameters())


def _mesh(s: Statement, state: _Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    world = dist.get_world_size()
    shape = (2, world // 2) if world % 2 == 0 else (world,)
    mesh = init_device_mesh("cpu", shape)
    whole = torch.arange(float((1 + s.size % 9) * 3)).reshape(-1, 3)
    tensor: Any = distribute_tensor(whole, mesh, [Shard(0)] * len(shape))
    state.take(tensor.redistribute(mesh, [Replicate()] * len(shape)).to_local(), (tensor * 2).full_tensor())


def _print(s: Statement, state: _Rank) -> None:
    print(f"statement {s.number} on rank {state.rank}")


def _date(s: Statement, state: _Rank) -> None:
    import datetime

    objects: list[Any] = [datetime.datetime.now()]
    dist.broadcast_object_list(objects, s.root % dist.get_world_size())
    state.crc = zlib.crc32(str(objects).encode(), state.crc)


def _uneven_work(s: Statement, state: _Rank) -> None:
    """Let some ranks arrive much later than others."""
    time.sleep((state.rank * s.number % 5) / 10)
    dist.barrier()


def _inference(s: Statement, state: _Rank) -> None:
    with torch.inference_mode():
        tensor = torch.full((s.size,), float(state.rank))
        work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    with contextlib.suppress(RuntimeError):  # an inference tensor may not be saved for backward
        state.take(tensor.clone())


ACTIONS: dict[str, Callable[[Statement, _Rank], None]] = {
    "all_reduce": _collective(_all_reduce),
    "broadcast": _collective(_broadcast),
    "reduce": _collective(_reduce),
    "all_gather": _collective(_all_gather),
    "all_gather_single": _collective(_all_gather_single),
    "gather": _collective(_gather),
    "scatter": _collective(_scatter),
    "reduce_scatter": _collective(_reduce_scatter),
    "reduce_scatter_single": _collective(_reduce_scatter_single),
    "all_to_all": _collective(_all_to_all),
    "all_to_all_single": _collective(_all_to_all_single),
    "uneven_exchange": _collective(_uneven_exchange),
    "all_reduce_coalesced": _collective(_all_reduce_coalesced),
    "coalescing": _collective(_coalescing),
    "sparse": _collective(_sparse),
    "barrier": _collective(_barrier),
    "monitored_barrier": _collective(_monitored_barrier),
    "ring": _ring,
    "pair": _pair,
    "any_source": _any_source,
    "batch": _batch,
    "many_messages": _many_messages,
    "objects": _collective(_objects),
    "object_list": _collective(_object_list),
    "object_gather": _collective(_object_gather),
    "object_scatter": _collective(_object_scatter),
    "store": _store,
    "store_wait": _store_wait,
    "sleep": _sleep,
    "step": _step,
    "draw": _draw_numbers,
    "new_group": _new_group,
    "split_groups": _split_groups,
    "destroy_group": _destroy_group,
    "again": _again,
    "wait_all": _wait_all,
    "poll": _poll,
    "future": _future,
    "functional": _functional,
    "ddp": _ddp,
    "mesh": _mesh,
    "print": _print,
    "date": _date,
    "uneven_work": _uneven_work,
    "inference": _inference,
}
