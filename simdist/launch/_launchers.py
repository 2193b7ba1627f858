"""The variables that other launchers set for their workers, so that a script for one of them finds these.

Each launcher is described by the variables that it sets besides torchrun's, those of torchrun that it does not set, and
the argument that it puts before the script's. The sources: `torch/distributed/launch.py` (2.13),
`deepspeed/launcher/launch.py` (0.15), the manual of Open MPI 5 ("Environment variables set for MPI applications"), that
of Slurm's srun ("OUTPUT ENVIRONMENT VARIABLES"). "python" is no launcher: the script starts its ranks itself.

The variables of `accelerate launch` depend on its options: `_accelerate` gets them from accelerate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["ELASTIC", "LAUNCHERS", "TORCH", "Launcher", "Worker"]

TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables that only torchrun's agent sets.
ELASTIC = (
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, with a launcher's numbers."""

    rank: int
    local_rank: int
    node: int
    world_size: int
    workers: int  # on the worker's node
    nodes: int
    devices: int  # on the worker's node


def _nothing(worker: Worker) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Launcher:
    """The differences between one launcher and torchrun."""

    sets: Callable[[Worker], Mapping[str, str]] = field(default=_nothing)
    leaves_out: tuple[str, ...] = ()  # variables of torchrun
    argument: str = ""  # before the script's arguments, followed by the local rank
    starts_one: bool = False  # process, which may start others itself


def _deepspeed(worker: Worker) -> Mapping[str, str]:
    found = {"CROSS_RANK": worker.node, "CROSS_SIZE": worker.nodes, "LOCAL_SIZE": worker.workers}
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(worker.workers)))} if worker.devices else {}
    return {name: str(value) for name, value in found.items()} | devices


def _mpirun(worker: Worker) -> Mapping[str, str]:
    found = {
        "OMPI_COMM_WORLD_SIZE": worker.world_size,
        "OMPI_COMM_WORLD_RANK": worker.rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": worker.workers,
        "OMPI_COMM_WORLD_LOCAL_RANK": worker.local_rank,
        "OMPI_COMM_WORLD_NODE_RANK": worker.local_rank,
        "OMPI_UNIVERSE_SIZE": worker.world_size,
        "PMIX_RANK": worker.rank,
    }
    return {name: str(value) for name, value in found.items()}


def _srun(worker: Worker) -> Mapping[str, str]:
    each = str(worker.workers) if worker.nodes == 1 else f"{worker.workers}(x{worker.nodes})"
    nodes = "host0" if worker.nodes == 1 else f"host[0-{worker.nodes - 1}]"
    found = {
        "SLURM_JOB_ID": 1,
        "SLURM_JOBID": 1,
        "SLURM_JOB_NAME": "simdist",
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": worker.nodes,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_LOCALID": worker.local_rank,
        "SLURM_NNODES": worker.nodes,
        "SLURM_NODEID": worker.node,
        "SLURM_NODELIST": nodes,
        "SLURM_NPROCS": worker.world_size,
        "SLURM_NTASKS": worker.world_size,
        "SLURM_NTASKS_PER_NODE": worker.workers,
        "SLURM_PROCID": worker.rank,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": worker.nodes,
        "SLURM_STEP_NUM_TASKS": worker.world_size,
        "SLURM_TASKS_PER_NODE": each,
        "SLURM_STEP_TASKS_PER_NODE": each,
        "SLURMD_NODENAME": f"host{worker.node}",
    }
    return {name: str(value) for name, value in found.items()}


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(),
    "torch.distributed.launch": Launcher(argument="--local-rank="),
    "accelerate": Launcher(),
    "deepspeed": Launcher(_deepspeed, ELASTIC, "--local_rank="),
    "mpirun": Launcher(_mpirun, (*TORCH, *ELASTIC)),
    "srun": Launcher(_srun, (*TORCH, *ELASTIC)),
    "python": Launcher(leaves_out=(*TORCH, *ELASTIC), starts_one=True),
}
