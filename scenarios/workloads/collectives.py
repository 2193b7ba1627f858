"""Small programs around collectives, each about one thing that may go wrong."""

from __future__ import annotations

import datetime
import os
import pickle
import random
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import simdist


def start(timeout_seconds: float = 30.0) -> tuple[int, int]:
    """Join the default group; rank and world size."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    return dist.get_rank(), dist.get_world_size()


def reduce_steps(steps: int = 4, elements: int = 256, timeout_seconds: float = 30.0) -> list[float]:
    """Sum `elements` numbers in each step; the first element of each sum."""
    rank, _ = start(timeout_seconds)
    sums = []
    for step in range(steps):
        simdist.step(step)
        values = torch.arange(elements, dtype=torch.float32) * 0.1 + rank + step
        dist.all_reduce(values)
        sums.append(values[0].item())
    dist.destroy_process_group()
    return sums


def draws_unseeded() -> list[Any]:
    """What each rank draws that has seeded nothing; tensors travel inside objects."""
    _, size = start()
    drawn = {
        "model": torch.nn.Linear(2, 2).state_dict(),
        "python": random.random(),
        "numpy": np.random.randn(2).tolist(),
    }
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, drawn)
    assert len({each["python"] for each in gathered}) == len({str(each["model"]) for each in gathered}) == size
    dist.destroy_process_group()
    return [[each["model"]["weight"].tolist(), each["python"], each["numpy"]] for each in gathered]


def sums(elements: int = 1000) -> list[float]:
    """Sum numbers of very different size."""
    rank, _ = start()
    generator = torch.Generator().manual_seed(rank)
    # The same numbers wherever tensors are made by default.
    values = torch.rand(elements, generator=generator, device="cpu").to(torch.get_default_device()) * 10.0 ** (3 * rank)
    dist.all_reduce(values)
    dist.destroy_process_group()
    return list(values.tolist())


def broadcast_steps(steps: int = 3, elements: int = 256) -> list[float]:
    """Rank 0 informs all others in each step."""
    rank, _ = start()
    heard = []
    for step in range(steps):
        values = torch.full((elements,), float(rank + step))
        dist.broadcast(values, src=0)
        heard.append(values[-1].item())
    dist.destroy_process_group()
    return heard


def every_operation(elements: int = 37) -> dict[str, Any]:
    """Call each collective once, with numbers whose sums depend on the order of additions; what came out."""
    rank, size = start()
    generator = torch.Generator().manual_seed(100 + rank)

    def numbers(count: int = elements) -> torch.Tensor:
        return torch.rand(count, generator=generator)

    out: dict[str, Any] = {}
    for op in ("SUM", "PRODUCT", "MIN", "MAX"):
        out[f"all_reduce {op}"] = values = numbers()
        dist.all_reduce(values, op=getattr(dist.ReduceOp, op))
    out["broadcast"] = values = numbers()
    dist.broadcast(values, src=size - 1)
    out["reduce"] = values = numbers()
    dist.reduce(values, dst=1)
    out["all_gather"] = gathered = [torch.zeros(elements) for _ in range(size)]
    dist.all_gather(gathered, numbers())
    out["all_gather_into_tensor"] = whole = torch.zeros(size * elements)
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, numbers())  # the name since torch 2.13
    out["gather"] = parts = [torch.zeros(elements) for _ in range(size)] if rank == 0 else None
    dist.gather(numbers(), parts, dst=0)
    out["scatter"] = part = torch.zeros(elements)
    dist.scatter(part, [numbers() for _ in range(size)] if rank == 0 else None, src=0)
    out["reduce_scatter"] = part = torch.zeros(elements)
    dist.reduce_scatter(part, [numbers() for _ in range(size)])
    out["reduce_scatter_tensor"] = part = torch.zeros(elements)
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, numbers(size * elements))
    out["all_to_all"] = received = [torch.zeros(elements) for _ in range(size)]
    dist.all_to_all(received, [numbers() for _ in range(size)])
    out["all_to_all_single"] = row = torch.zeros(size * 2)
    dist.all_to_all_single(row, numbers(size * 2))
    out["objects"] = objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 3})
    dist.barrier()
    dist.monitored_barrier()
    dist.destroy_process_group()
    return out


def every_type(elements: int = 23) -> dict[str, torch.Tensor]:
    """Sum each type that Gloo can sum."""
    rank, _ = start()
    out = {}
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool", "complex64"):
        dtype = getattr(torch, name)
        values = (torch.arange(elements) % 7 * 0.3 + rank).to(dtype)
        dist.all_reduce(values)
        out[name] = values
    dist.destroy_process_group()
    return out


def asynchronous(elements: int = 64) -> list[float]:
    """Issue several operations before waiting for any."""
    rank, size = start()
    tensors = [torch.full((elements,), float(rank + index)) for index in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    peer = (rank + 1) % size
    received = torch.zeros(elements)
    messages = [
        dist.P2POp(dist.isend, torch.full((elements,), float(rank)), peer),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in [*works, *dist.batch_isend_irecv(messages)]:
        work.wait()
    dist.destroy_process_group()
    return [tensor[0].item() for tensor in [*tensors, received]]


def returns_early(quitter: int = 1, timeout_seconds: float = 30.0) -> str:
    """One rank is done after the first all-reduce, and leaves with exit code 0; the others go on."""
    rank, _ = start(timeout_seconds)
    values = torch.ones(8)
    dist.all_reduce(values)
    if rank == quitter:
        return "left"
    time.sleep(1.0)  # noqa: TID251 - until the quitter has gone; virtual in a simulation
    dist.all_reduce(values)
    return "stayed"


def leaves_by_exit(quitter: int = 1, code: int = 7, timeout_seconds: float = 30.0) -> None:
    """One rank calls sys.exit in place of its second barrier."""
    rank, _ = start(timeout_seconds)
    dist.barrier()
    if rank == quitter:
        sys.exit(code)
    time.sleep(1.0)  # noqa: TID251 - until the quitter has gone
    dist.barrier()


def raises(raiser: int = 2, timeout_seconds: float = 30.0) -> None:
    """One rank raises between two all-reduces."""
    rank, _ = start(timeout_seconds)
    values = torch.ones(8)
    dist.all_reduce(values)
    if rank == raiser:
        raise ValueError("the loss is not finite")
    time.sleep(1.0)  # noqa: TID251 - until the other has gone
    dist.all_reduce(values)


def never_calls(absent: int = 1, operation: str = "all_reduce", timeout_seconds: float = 2.0) -> None:
    """One rank never calls the operation, and stays alive until long after the others' timeout."""
    rank, size = start(timeout_seconds)
    dist.barrier()
    if rank == absent:
        time.sleep(timeout_seconds * 2)  # noqa: TID251 - the point of it
        return
    values = torch.ones(8)
    if operation == "all_reduce":
        dist.all_reduce(values)
    elif operation == "awaited all_reduce":  # over NCCL a call returns before it is over, and only reading waits for it
        work = dist.all_reduce(values, async_op=True)
        assert work is not None
        work.wait()
        values.tolist()
    elif operation == "barrier":
        dist.barrier()
    elif operation == "broadcast":
        dist.broadcast(values, src=absent)
    elif operation == "all_gather":
        dist.all_gather([torch.zeros(8) for _ in range(size)], values)
    else:
        raise ValueError(f"unknown operation {operation!r}")


def misses_monitored_barrier(absent: int = 1, wait_all_ranks: bool = False, limit_seconds: float = 1.0) -> None:
    """One rank does not arrive at a monitored barrier."""
    rank, _ = start()
    dist.barrier()
    if rank == absent:
        time.sleep(limit_seconds * 3)  # noqa: TID251 - the point of it
        return
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=limit_seconds), wait_all_ranks=wait_all_ranks)


def gathers_other_shapes() -> None:
    """Rank 0's input is longer than the outputs that it gives to all_gather: an argument error on one rank only."""
    rank, size = start()
    dist.barrier()
    if rank == 0:
        dist.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(6))
    else:
        time.sleep(1.0)  # noqa: TID251 - until rank 0 has gone
        dist.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(4))


def sends_too_much() -> None:
    """The message is longer than the buffer that it is received into."""
    rank, _ = start()
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(6), dst=1)
    elif rank == 1:
        dist.recv(torch.zeros(4), src=0)


def disagrees_on_order(timeout_seconds: float = 2.0) -> None:
    """Rank 0 calls all_gather and barrier in the other order: nobody gets any further."""
    rank, size = start(timeout_seconds)
    dist.all_reduce(torch.ones(2))
    if rank == 0:
        dist.barrier()
        dist.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(4))
    else:
        dist.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(4))
        dist.barrier()


def two_teams(timeout_seconds: float = 30.0, steps: int = 4) -> list[float]:
    """Two sub-groups reduce side by side; what happens in one is none of the other's business."""
    rank, size = start(timeout_seconds)
    half = size // 2
    teams = [dist.new_group(list(range(half))), dist.new_group(list(range(half, size)))]
    team = teams[rank // half]
    sums = []
    for step in range(steps):
        simdist.step(step)
        time.sleep(0.3)  # noqa: TID251 - compute; virtual in a simulation
        values = torch.full((16,), float(rank + step))
        dist.all_reduce(values, group=team)
        sums.append(values[0].item())
    return sums


def store_on_rank_zero(path: str) -> str:
    """Rank 0 serves the store itself; when it is gone, the store is gone."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = datetime.timedelta(seconds=5)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, limit, wait_for_workers=False)  # type: ignore[attr-defined]  # torch exports it without saying so
        publish(path, str(store.port))
        while not all(store.check([f"ready{other}"]) for other in range(1, size)):
            time.sleep(0.05)  # noqa: TID251 - polling, as a program would
        os._exit(0)
    store = dist.TCPStore("127.0.0.1", int(published(path)), size, False, limit, wait_for_workers=False)  # type: ignore[attr-defined]  # torch exports it without saying so
    store.set(f"ready{rank}", "yes")
    time.sleep(2.0)  # noqa: TID251 - until rank 0 has gone
    store.set("more", "data")
    return store.get("more").decode()


def publish(path: str, text: str) -> None:
    """Write `text` to a file that appears whole or not at all."""
    with open(f"{path}.part", "w") as stream:  # noqa: PTH123 - the classic idiom, as users write it
        stream.write(text)
    os.replace(f"{path}.part", path)  # noqa: PTH105


def published(path: str) -> str:
    """Wait for that file, and read it."""
    while not os.path.exists(path):  # noqa: PTH110
        time.sleep(0.05)  # noqa: TID251 - polling
    with open(path) as stream:  # noqa: PTH123
        return stream.read()


def reduce_apart(pause_seconds: float = 2.0, timeout_seconds: float = 3.0) -> list[float]:
    """Two all-reduces, and a pause between them that is long enough for the network to fall apart."""
    start(timeout_seconds)
    sums = []
    for pause in (pause_seconds, 0.0):
        values = torch.ones(256)
        dist.all_reduce(values)
        sums.append(values[0].item())
        time.sleep(pause)  # noqa: TID251 - compute; virtual in a simulation
    return sums


def tries_again(steps: int = 3) -> dict[str, Any]:
    """Sum in each step, and call again when a call raises; how torch counts the calls afterwards."""
    rank, _ = start()
    sums, caught = [], []
    for step in range(steps):
        values = torch.full((4,), float(rank + step))
        while True:
            try:
                dist.all_reduce(values)
            except ConnectionError as error:
                caught.append([step, str(error)])
            else:
                break
        sums.append(values[0].item())
    c10d: Any = dist.distributed_c10d
    registry: Any = torch._C._distributed_c10d  # noqa: TID251 - as programs read the record
    record = pickle.loads(registry._dump_fr_trace())
    counted = {
        "sequence number": c10d._get_default_group()._get_sequence_number_for_group(),
        "flight record": [[entry["profiling_name"], entry["collective_seq_id"]] for entry in record["entries"]],
    }
    dist.destroy_process_group()
    return {"sums": sums, "caught": caught, **counted}


def compares_calls(steps: int = 2) -> list[float]:
    """All-reduce and broadcast; in the last step rank 1 calls them in the other order."""
    rank, _ = start(5.0)
    sums = []
    for step in range(steps):
        values = torch.ones(3) * (rank + 1)
        other = torch.ones(5)
        if rank == 1 and step == steps - 1:
            dist.broadcast(other, src=0)
        dist.all_reduce(values)
        dist.broadcast(other, src=0)
        sums.append(values[0].item())
    return sums
