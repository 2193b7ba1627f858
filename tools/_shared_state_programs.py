"""Programs of every kind for `shared_state.py`: each uses torch on a rank, in a few steps."""

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
def _fsdp1() -> None:
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"))
    _train(model)
    config = FullStateDictConfig(rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        model.state_dict()


@_program
def _state_dicts() -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = _model()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    states, of_optimizer = get_state_dict(model, optimizer)
    set_state_dict(model, optimizer, model_state_dict=states, optim_state_dict=of_optimizer)


@_program
def _meshes() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("a", "b"))
    mesh["a"].get_group()
    mesh._flatten("ab").get_local_rank()
    with mesh:
        pass


@_program
def _averaging() -> None:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    dist.init_process_group("gloo")
    model = _model()
    averager = PeriodicModelAverager(period=1, warmup_steps=1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


@_program
def _elastic() -> None:
    from torch.distributed.elastic import events, metrics, timer
    from torch.distributed.elastic.multiprocessing.errors import record

    metrics.configure(metrics.NullMetricHandler(), group="mine")
    metrics.put_metric("steps", 1, "mine")
    events.record(events.Event("mine", events.EventSource.WORKER))
    timer.configure(timer.LocalTimerClient(None))
    record(_model)()


@_program
def _functional_optimizers() -> None:
    from torch.distributed.optim.utils import register_functional_optim

    register_functional_optim(type("Mine", (torch.optim.SGD,), {}), torch.optim.SGD)


@_program
def _sharding_rules() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.experimental import implicit_replication, local_map, register_sharding

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    register_sharding(torch.ops.aten.erfc.default)(lambda x: [([Replicate()], [Replicate()])])
    tensor = distribute_tensor(torch.ones(6, 2), mesh, [Shard(0)])
    torch.erfc(tensor)
    with implicit_replication():
        tensor + torch.ones(6, 2)
    local_map(lambda x: x + 1, out_placements=[Shard(0)])(tensor)


@_program
def _hooks() -> None:
    from torch.distributed._composable.contract import contract
    from torch.nn.modules.module import register_module_forward_hook

    handle = register_module_forward_hook(lambda *_: None)
    contract()(lambda module: module)(_model())(torch.ones(2, 8))
    handle.remove()
    nn.DataParallel(_model())(torch.ones(2, 8))


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
def _planned_checkpoints() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    dist.init_process_group("gloo")
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    state = {"all": torch.ones(4), f"of {dist.get_rank()}": torch.ones(2)}
    for step in range(2):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state, checkpoint_id=f"{folder[0]}/{step}", planner=planner)
    saving: Any = dcp.async_save(state, checkpoint_id=f"{folder[0]}/last")
    saving.result()


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


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum()


@_program
def _compiled_shapes() -> None:
    dist.init_process_group("gloo")
    compiled = torch.compile(_doubled, backend="eager")
    for size in (3, 4):  # dynamo takes the second one for any size
        compiled(torch.ones(size + dist.get_rank()))

    @torch.compile(backend="aot_eager")
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    broken(torch.ones(2, requires_grad=True)).sum().backward()


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
