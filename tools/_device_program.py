"""The behaviour of one GPU as plain data: the same functions run on a real device and on a virtual one.

    python tools/_device_program.py alone         # one process
    python tools/_device_program.py pair STORE    # one of two processes on one GPU, over Gloo; RANK says which

Each function returns JSON data that should be the same on both. Nothing here imports simdist.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["ALONE", "alone", "pair"]

_cuda: Any = torch.cuda


def _said(call: Callable[[], Any]) -> str:
    """Return the type and the first line of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


def device_errors() -> dict[str, str]:
    """Tensors on two devices, and devices that do not exist."""
    there, here = torch.ones(3, 4, device="cuda"), torch.ones(3, 4)
    linear = nn.Linear(4, 2).cuda()
    return {
        "add": _said(lambda: there + here),
        "mul_": _said(lambda: there.mul_(here)),
        "mm": _said(lambda: there @ here.t()),
        "linear": _said(lambda: linear(here)),
        "cross_entropy": _said(lambda: nn.functional.cross_entropy(there, torch.tensor([0, 1, 2]))),
        "cat": _said(lambda: torch.cat([there, here])),
        "where": _said(lambda: torch.where(there > 0, there, here)),
        "embedding": _said(lambda: nn.functional.embedding(torch.tensor([0]), there)),
        "index on the cpu": _said(lambda: there[torch.tensor([1])]),
        "a scalar of the cpu": _said(lambda: there * torch.tensor(2.0)),
        "numpy": _said(lambda: there.numpy()),
        "no such device": _said(lambda: torch.ones(1, device=f"cuda:{torch.cuda.device_count()}")),
        "generator of the cpu": _said(lambda: torch.randn(2, device="cuda", generator=torch.Generator())),
        "pinned on the device": _said(lambda: torch.empty(2, device="cuda", pin_memory=True)),
    }


def streams_and_events() -> dict[str, Any]:
    """How streams and events answer."""
    side, start, end = _cuda.Stream(), _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
    plain = _cuda.Event()
    value = torch.ones(1 << 20, device="cuda")
    unrecorded = _said(lambda: start.elapsed_time(end))
    start.record()
    side.wait_stream(_cuda.current_stream())
    with _cuda.stream(side):
        is_current = _cuda.current_stream() == side
        value.add_(1)
        end.record()
    _cuda.current_stream().wait_event(end)
    total = value.sum().item()
    _cuda.synchronize()
    return {
        "unrecorded": unrecorded,
        "untimed": _said(lambda: start.elapsed_time(plain)),
        "current": is_current,
        "sum": total,
        "queries": [side.query(), start.query(), plain.query()],
        "elapsed is no less than 0": start.elapsed_time(end) >= 0,
        "default": _cuda.default_stream() == _cuda.current_stream(),
        "priorities": list(_cuda.Stream.priority_range()),
        "handle of the default stream": _cuda.default_stream().cuda_stream,
    }


def memory() -> dict[str, Any]:
    """The memory that tensors of some sizes take, and what stays allocated after them."""
    _cuda.empty_cache()
    before = _cuda.memory_allocated()
    taken = {}
    for size in (1, 512, 513, 4096, (1 << 20) + 1, 3 << 20):
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        taken[str(size)] = _cuda.memory_allocated() - before
        del tensor
    _cuda.reset_peak_memory_stats()
    one, two = torch.empty(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
    del one
    peak = _cuda.max_memory_allocated() - before
    two.untyped_storage().resize_(0)
    free, whole = _cuda.mem_get_info()
    return {
        "taken": taken,
        "peak": peak,
        "after resize": _cuda.memory_allocated() - before,
        "too much": _said(lambda: torch.empty(1 << 45, dtype=torch.uint8, device="cuda")).partition(". GPU")[0],
        "free is less than all": free <= whole,
        "reserved in 2 MiB": _cuda.memory_reserved() % (2 << 20),
    }


def mixed_precision() -> dict[str, Any]:
    """The types that autocast casts to, and the scales of a gradient scaler."""
    x, image = torch.ones(4, 4, device="cuda"), torch.ones(1, 2, 4, 4, device="cuda")
    kinds: dict[str, str] = {}
    for kind in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", kind):
            found = {
                "mm": x @ x,
                "linear": nn.functional.linear(x, x),
                "conv": nn.functional.conv2d(image, torch.ones(2, 2, 3, 3, device="cuda")),
                "softmax": (x @ x).softmax(-1),
                "sum": (x @ x).sum(),
                "exp": (x @ x).exp(),
                "relu": (x @ x).relu(),
                "layer_norm": nn.functional.layer_norm(x @ x, (4,)),
                "cross_entropy": nn.functional.cross_entropy(x @ x, torch.zeros(4, dtype=torch.long, device="cuda")),
                "cat": torch.cat([x @ x, x]),
            }
        kinds |= {f"{name} {kind}": str(value.dtype) for name, value in found.items()}
    weight = torch.ones(2, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
    scales = []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        loss: Any = (weight * factor).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return {"kinds": kinds, "scales": scales, "weight": weight.tolist()}


def generators() -> dict[str, Any]:
    """The state of a device's generator. The numbers that it draws are not compared: they depend on the device."""
    generator = torch.Generator("cuda").manual_seed(7)
    before = generator.get_state().numel(), generator.initial_seed()
    torch.randn(8, device="cuda", generator=generator)
    first = torch.randn(8, device="cuda", generator=generator.manual_seed(7))
    again = torch.randn(8, device="cuda", generator=generator.manual_seed(7))
    return {
        "state": before,
        "offset moves in fours": generator.get_offset() > 0 and generator.get_offset() % 4 == 0,
        "repeats": torch.equal(first, again),
        "device": str(generator.device),
    }


ALONE: dict[str, Callable[[], Any]] = {
    "device errors": device_errors,
    "streams and events": streams_and_events,
    "memory": memory,
    "mixed precision": mixed_precision,
    "generators": generators,
}


def alone() -> dict[str, Any]:
    """Run all checks for one process on the current device."""
    return {name: json.loads(json.dumps(check())) for name, check in ALONE.items()}


def pair(store: str, rank: int) -> dict[str, Any]:
    """Two processes on one GPU over Gloo: collectives on its tensors, and a DDP step whose numbers are exact."""
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    tensor = torch.arange(4.0, device="cuda") + rank
    dist.all_reduce(tensor)
    gathered = [torch.empty(2, device="cuda") for _ in range(2)]
    dist.all_gather(gathered, torch.full((2,), float(rank), device="cuda"))
    root = torch.full((3,), float(rank + 5), device="cuda")
    dist.broadcast(root, 1)
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    group: Any = dist.distributed_c10d._get_default_group()
    coalesced = _said(lambda: group.allreduce_coalesced([tensor, tensor]).wait())
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False).cuda(), device_ids=[0])
    with torch.no_grad():
        model.module.weight.fill_(1)
    model(torch.full((1, 2), float(rank + 1), device="cuda")).sum().backward()
    gradient: Any = model.module.weight.grad
    found = {
        "all_reduce": tensor.tolist(),
        "all_gather": [each.tolist() for each in gathered],
        "broadcast": root.tolist(),
        "objects": objects,
        "coalesced": coalesced,
        "gradient": gradient.tolist(),
        "devices": [str(each.device) for each in (tensor, gathered[0], gradient)],
    }
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    print(json.dumps(alone() if sys.argv[1] == "alone" else pair(sys.argv[2], int(os.environ["RANK"]))))
