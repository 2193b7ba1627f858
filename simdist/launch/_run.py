"""A launch as a world: the script as `__main__` on every rank, under torchrun's agent."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simdist._world import World, WorldSpec
from simdist.cluster import make
from simdist.launch._plan import Launch
from simdist.process import run_program
from simdist.result import RunResult
from simdist.scenario import importable

__all__ = ["error_file", "launch", "log_folder", "repeat"]

Echo = Callable[[int, int, str, str], None]


def launch(
    plan: Launch, folder: str, *, echo: Echo | None = None, progress: Callable[[int, int], None] | None = None
) -> RunResult:
    """Run it; `folder` takes the error files of `@record`.

    Raises:
        SimdistError: another world is running.
        StallError, LivelockError: as `simdist.run`.
    """
    here = Path.cwd() if plan.module else Path(plan.script).resolve().parent
    script = plan.script if plan.module else str(Path(plan.script).resolve())
    shown = [plan.script if not plan.module else "-m", *plan.script_args]
    with importable(here, "simdist"), _path_begins_with("" if plan.module else str(here)):
        cluster = None
        if plan.nodes > 1 or plan.devices:
            devices: dict[str, Any] = {}
            if plan.devices:
                devices = {"devices_per_host": plan.devices, "device_model": plan.device_model}
            cluster = make(plan.world_size, hosts=plan.nodes, **devices)
        spec = WorldSpec(
            call=lambda rank: run_program(script, module=plan.module),
            world_size=plan.world_size,
            seed=plan.seed,
            cluster=cluster,
            faults=plan.faults,
            max_restarts=plan.max_restarts,
            stop_on_failure=True,
            env=_environment(plan),
            rank_env=functools.partial(_rank_environment, plan, folder),
            argv=shown,
            isolate=("__main__", "__mp_main__"),
            min_hosts=plan.min_nodes,
            monitor_ns=plan.monitor_ns,
            grace_ns=plan.grace_ns,
            echo=echo,
            progress=progress,
            replay=plan.replay,
        )
        return World(spec).run()


def repeat(plan: Launch) -> None:
    """Run it once more, for comparison; nothing is shown."""
    with log_folder(plan) as folder:
        launch(plan, folder)


@contextmanager
def log_folder(plan: Launch) -> Iterator[str]:
    """The folder for error files, as torchrun names it; gone afterwards unless it was asked for."""
    base = plan.log_dir or tempfile.mkdtemp(prefix="torchelastic_")
    try:
        Path(base).mkdir(parents=True, exist_ok=True)
        yield tempfile.mkdtemp(prefix=f"{plan.run_id}_", dir=base)
    finally:
        if plan.log_dir is None:
            shutil.rmtree(base, ignore_errors=True)


def error_file(folder: str, life: int, local_rank: int) -> str:
    """Where `@record` writes on a worker."""
    return str(Path(folder) / f"attempt_{life}" / str(local_rank) / "error.json")


def _environment(plan: Launch) -> Mapping[str, str]:
    """What torchrun sets for all workers alike, beside what a world sets itself."""
    found = {
        "ROLE_NAME": plan.role,
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(plan.agent_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": plan.signals,
    }
    if not plan.agent_store:
        found |= {"MASTER_ADDR": plan.master_addr, "MASTER_PORT": str(plan.master_port)}
    if "OMP_NUM_THREADS" in os.environ:
        found["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    return found


def _rank_environment(plan: Launch, folder: str, life: int, rank: int, local_rank: int, node: int) -> Mapping[str, str]:
    inside = str(Path(folder) / f"node_{node}") if plan.nodes > 1 else folder
    file = error_file(inside, life, local_rank)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    return {"TORCHELASTIC_ERROR_FILE": file}


@contextmanager
def _path_begins_with(entry: str) -> Iterator[None]:
    """As Python begins its search path for a script or a module; `importable` put the folder in front already."""
    before = sys.path[0]
    sys.path[0] = entry or before
    try:
        yield
    finally:
        if sys.path and sys.path[0] == (entry or before):
            sys.path[0] = before
