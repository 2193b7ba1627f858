"""Sharded training with checkpoints: saved by four processes, once while training goes on, and loaded by two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def make(mesh: DeviceMesh) -> Any:
    """The model, sharded over the mesh."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: Any) -> list[float]:
    """Sums of the parameters, gathered."""
    found = []
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        found.append(float(parameter.full_tensor().double().sum()))
    return found


def train(model: Any, optimizer: Any, steps: int, seed: int) -> None:
    """A few steps on data that belongs to the process."""
    data = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        loss = model(torch.randn(4, 8, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(folder: str) -> dict[str, Any]:
    """Train, save, go on while it is saved, and load what was saved on half of the processes."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make(init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 2, seed=rank)
    first = whole(model)
    state_dict_saver.save({"model": get_model_state_dict(model)}, checkpoint_id=Path(folder) / "first")

    apart: Any = dist.new_group()  # of the thread that saves: the order of calls in a group is the same everywhere
    state = {"model": get_model_state_dict(model)}
    saving: Any = state_dict_saver.async_save(state, checkpoint_id=Path(folder) / "second", process_group=apart)
    train(model, optimizer, 2, seed=100 + rank)
    saving.result()
    later = whole(model)

    half: Any = dist.new_group(list(range(size // 2)))
    loaded: list[list[float]] = []
    if rank < size // 2:
        mesh = DeviceMesh.from_group(half, "cpu")
        for name in ("first", "second"):
            smaller = make(mesh)
            state = {"model": get_model_state_dict(smaller)}
            state_dict_loader.load(state, checkpoint_id=Path(folder) / name, process_group=half)
            set_model_state_dict(smaller, state["model"])
            loaded.append(whole(smaller))
    sent = [loaded]
    dist.broadcast_object_list(sent, src=0)
    files = sorted(path.name for path in (Path(folder) / "second").iterdir())
    dist.destroy_process_group()
    return {"first": first, "later": later, "loaded": sent[0], "same": sent[0] == [first, first], "files": files}
