"""Programs of every kind for `shared_state.py`: what a rank does with torch, in a few steps each."""

# Torch's own gaps: many of its functions have no types, and its packages export by other ways.
# mypy: disable-error-code="no-untyped-call, attr-defined, arg-type"

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, Callable[[], object]] = {}


def _program(function: Callable[[], object]) -> Callable[[], object]:
    PROGRAMS[function.__name__.strip("_")] = function
    return function


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def _train(model: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


@_program
def _collectives() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.all_gather([torch.empty(4) for _ in range(size)], tensor)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(tensor, group=group)
    dist.new_subgroups(1)
    dist.barrier()
    dist.destroy_process_group()


@_program
def _messages() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    inbox = torch.empty(2)
    operations = [
        dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size),
        dist.P2POp(dist.irecv, inbox, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


@_program
def _ddp() -> None:
    dist.init_process_group("gloo")
    _train(DDP(_model()))


@_program
def _ddp_join() -> None:
    dist.init_process_group("gloo")
    model = DDP(_model())
    with model.join():
        for _ in range(1 + dist.get_rank()):
            model(torch.ones(2, 8)).sum().backward()


@_program
def _ddp_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    dist.init_process_group("gloo")
    model = DDP(_model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    _train(model)
    model = DDP(_model())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    _train(model, 4)


@_program
def _zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo")
    model = DDP(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()


@_program
def _fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    init_device_mesh("cpu", (dist.get_world_size(),))
    model = _model()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    _train(model)


@_program
def _dtensor() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("all",))
    tensor = distribute_tensor(torch.arange(12.0).reshape(6, 2), mesh, [Shard(0)])
    (tensor @ tensor.T).redistribute(mesh, [Replicate()])
    tensor.redistribute(mesh, [Shard(1)]).full_tensor()


@_program
def _tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model(torch.ones(2, 8)).sum().backward()


@_program
def _comm_debug_mode() -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    dist.init_process_group("gloo")
    model = DDP(_model())
    with CommDebugMode() as mode:
        model(torch.ones(2, 8, requires_grad=True)).sum().backward()
    mode.get_total_counts()


@_program
def _functional_collectives() -> None:
    import torch.distributed._functional_collectives as funcol

    dist.init_process_group("gloo")
    funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum()
    funcol.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD).sum()


@_program
def _pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(4, 4), rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: ((out - target) ** 2).sum())
    if rank == 0:
        schedule.step(torch.ones(4, 4))
    elif rank == size - 1:
        schedule.step(target=torch.zeros(4, 4), losses=[])
    else:
        schedule.step()


@_program
def _checkpoint() -> None:
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = _model()
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder[0])


@_program
def _saving() -> None:
    import io

    stream = io.BytesIO()
    torch.save(_model().state_dict(), stream)
    stream.seek(0)
    torch.load(stream)
    torch.serialization.add_safe_globals([_Kept])


class _Kept:
    """A type that may be loaded."""


@_program
def _autograd() -> None:
    from torch.utils.checkpoint import checkpoint

    model = _model()
    checkpoint(model, torch.ones(2, 8, requires_grad=True), use_reentrant=False).sum().backward()
    with torch.autograd.set_detect_anomaly(True):
        model(torch.ones(2, 8)).sum().backward()
    torch.func.grad(lambda x: (x**2).sum())(torch.ones(3))
    torch.func.vmap(torch.sin)(torch.ones(3, 2))


@_program
def _autocast() -> None:
    model = _model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(2, 8)).sum().backward()
    torch.amp.GradScaler("cpu").scale(torch.ones(1))


@_program
def _compile() -> None:
    dist.init_process_group("gloo")
    compiled = torch.compile(lambda x: x * (1 + dist.get_rank()), backend="eager")
    compiled(torch.ones(2))


@_program
def _compiled_ddp() -> None:
    dist.init_process_group("gloo")
    model = torch.compile(DDP(_model()), backend="aot_eager")
    model(torch.ones(2, 8)).sum().backward()


@_program
def _export() -> None:
    from torch.fx import symbolic_trace

    symbolic_trace(_model())(torch.ones(2, 8))
    torch.export.export(_model(), (torch.ones(2, 8),))


@_program
def _scripting() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(_model(), torch.ones(2, 8))(torch.ones(2, 8))


@_program
def _profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("part"):
            _model()(torch.ones(2, 8))
        profile.step()


@_program
def _data() -> None:
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(12.0))
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        list(DataLoader(data, batch_size=2, sampler=sampler))


@_program
def _layers() -> None:
    nn.LSTM(4, 4)(torch.ones(2, 2, 4))
    nn.MultiheadAttention(4, 2)(torch.ones(2, 2, 4), torch.ones(2, 2, 4), torch.ones(2, 2, 4))
    nn.BatchNorm1d(4)(torch.ones(3, 4))
    nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))(torch.ones(1, 2))
    F.scaled_dot_product_attention(torch.ones(1, 2, 4), torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    torch.distributions.Normal(0.0, 1.0).sample()


@_program
def _flags() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_printoptions(precision=3)
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    torch._C._set_cudnn_benchmark(True)
