"""Torchrun's agent for the ranks of one node, in a process of its own, where it may handle signals, fork and log.

Run as `python -m simdist.hardware._agent JOB NODES`, with `Nodes` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from simdist.hardware._device import nccl_environment
from simdist.hardware._job import Job
from simdist.hardware.links._loopback import serve_on_loopback

__all__ = ["main"]


def main(job_path: str, nodes: dict[str, object]) -> int:
    """Launch the node's ranks, and watch them to the end; 0 if all of them ended well."""
    job = Job.load(job_path)
    count = int(str(nodes["count"]))
    if not job.shares_store:
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if count == 1:
        serve_on_loopback("torch.distributed", "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
    os.environ.update({"OMP_NUM_THREADS": "1", **(nccl_environment(job.wait) if job.backend == "nccl" else {})})
    logs = f"{job.out}/agent{nodes['rank']}"
    Path(logs).mkdir(parents=True, exist_ok=True)
    config = LaunchConfig(
        min_nodes=count,
        max_nodes=count,
        nproc_per_node=job.world_size // count,
        run_id=str(nodes["run_id"]),
        role="default",
        rdzv_backend=str(nodes["backend"]),
        rdzv_endpoint=str(nodes["endpoint"]),
        rdzv_configs={"rank": nodes["rank"], "timeout": 300, "is_host": nodes["rank"] == 0},
        max_restarts=job.max_restarts,
        monitor_interval=0.1,
        local_addr=str(nodes["local_addr"]) or None,
        logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL),
    )
    try:
        elastic_launch(config, sys.executable)("-m", "simdist.hardware.rank._supervisor", job_path, str(os.getpid()))
    except ChildFailedError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
