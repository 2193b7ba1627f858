"""A launch as a world: the script as `__main__` on every rank, under torchrun's agent."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from simdist.cluster import make
from simdist.launch._launchers import LAUNCHERS, Worker
from simdist.launch._logs import Logs
from simdist.launch._options import has_main
from simdist.launch._plan import Launch
from simdist.process import run_program
from simdist.result import RunResult
from simdist.scenario import importable
from simdist.world import World, WorldSpec

__all__ = ["free_again", "launch", "log_folder", "repeat", "workers_path"]


def launch(
    plan: Launch,
    folder: str,
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Run the launch; `folder` gets the workers' log and error files, `out` and `err` the output for the console.

    Raises:
        SimdistError: another world is running.
        StallError, LivelockError: as `simdist.run`.
    """
    # As Python makes `__file__`: links and dots stay.
    program = plan.script if Path(plan.script).is_absolute() else f"{Path.cwd()}/{plan.script}"
    module = plan.script if plan.module else "__main__" if has_main(program) else None
    here = Path.cwd() if plan.module else Path(program) if module else Path(program).resolve().parent
    entry = "" if plan.module else program if module else str(here)
    shown = [plan.script if not plan.module else "-m", *plan.script_args]
    logs = Logs(plan, folder, out, err)
    with importable(here, "simdist"), _path_begins_with(entry):
        cluster = None
        if plan.nodes > 1 or plan.devices:
            devices: dict[str, Any] = {}
            if plan.devices:
                devices = {"devices_per_host": plan.devices, "device_model": plan.device_model}
            cluster = make(plan.world_size, hosts=plan.nodes, **devices)
        spec = WorldSpec(
            call=functools.partial(_main, plan, program, module),
            world_size=plan.world_size,
            seed=plan.seed,
            cluster=cluster,
            faults=plan.faults,
            max_restarts=plan.max_restarts,
            stop_on_failure=True,
            env=_environment(plan),
            rank_env=functools.partial(_rank_environment, plan, logs),
            argv=shown,
            isolate=("__main__", "__mp_main__", *plan.isolate),
            share=plan.share,
            min_hosts=plan.min_nodes,
            monitor_ns=plan.monitor_ns,
            grace_ns=plan.grace_ns,
            program_ns=plan.program_ns,
            stall_s=plan.stall_s,
            judges=plan.judges,
            echo=logs.take,
            echo_last_lines=True,
            progress=progress,
            replay=plan.replay,
        )
        return World(spec).run()


def repeat(plan: Launch, folder: str) -> None:
    """Run the launch again, for comparison, in a folder of the same name; shows nothing, and leaves no file."""
    Path(folder).mkdir(mode=0o700)
    try:
        with workers_path():
            launch(plan, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def workers_path() -> Iterator[None]:
    """While inside, `sys.path` lacks the folder that Python put first for this process's program.

    Workers are separate interpreters, whose path begins with the script's folder.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None:  # python -m
        own = str(Path.cwd())
    else:
        own = "" if file is None else str(Path(file).resolve().parent)
    if sys.flags.safe_path or sys.path[:1] != [own]:
        yield
        return
    del sys.path[0]
    try:
        yield
    finally:
        sys.path.insert(0, own)


@contextmanager
def free_again(folder: str) -> Iterator[None]:
    """Move a run's folder aside while others need its name, which workers may print or send."""
    with tempfile.TemporaryDirectory(prefix=".kept_", dir=Path(folder).parent) as aside:
        kept = Path(folder).rename(Path(aside) / "logs")
        try:
            yield
        finally:
            kept.rename(folder)


@contextmanager
def log_folder(plan: Launch) -> Iterator[str]:
    """Yield the folder for log and error files, with torchrun's name; removed afterwards unless it was requested."""
    base = plan.log_dir or _new_folder(tempfile.gettempdir(), "torchelastic_", plan.seed)
    try:
        Path(base).mkdir(parents=True, exist_ok=True)
        yield _new_folder(base, f"{plan.run_id}_", plan.seed)
    finally:
        if plan.log_dir is None:
            shutil.rmtree(base, ignore_errors=True)


def _new_folder(parent: str, prefix: str, seed: int) -> str:
    """Make a new folder; all runs of a seed usually find the same name free, since workers may print it."""
    for number in itertools.count():
        path = Path(parent) / f"{prefix}{zlib.crc32(f'{seed} {number}'.encode()):08x}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return str(path)
    raise AssertionError


def _main(plan: Launch, program: str, module: str | None, rank: int) -> None:
    """The function of a worker."""
    argument = LAUNCHERS[plan.launcher].argument
    if argument:
        sys.argv.insert(1, argument + os.environ["LOCAL_RANK"])
    for name in plan.leaves_out:
        os.environ.pop(name, None)
    os.environ.update(plan.of_shell)
    run_program(module or program, module=module is not None)


def _environment(plan: Launch) -> Mapping[str, str]:
    """Return the variables that torchrun and the launcher set for all workers alike, besides a world's own."""
    found = {
        "ROLE_NAME": plan.role,
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(plan.agent_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": plan.signals,
    }
    if plan.fixed_master:
        found |= {"MASTER_ADDR": plan.master_addr, "MASTER_PORT": str(plan.master_port)}
    if "OMP_NUM_THREADS" in os.environ:
        found["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    return found | dict(plan.env)


def _rank_environment(plan: Launch, logs: Logs, life: int, rank: int, local_rank: int, node: int) -> Mapping[str, str]:
    found = logs.begin(life=life, rank=rank, local_rank=local_rank, node=node)
    worker = Worker(rank, local_rank, node, plan.world_size, plan.workers, plan.nodes, plan.devices)
    return {**found, **LAUNCHERS[plan.launcher].sets(worker)}


@contextmanager
def _path_begins_with(entry: str) -> Iterator[None]:
    """Begin `sys.path` as Python does for a script or a module; `importable` has put the folder in front already."""
    before = sys.path[0]
    sys.path[0] = entry or before
    try:
        yield
    finally:
        if sys.path and sys.path[0] == (entry or before):
            sys.path[0] = before
