"""The lines that NCCL itself writes if NCCL_DEBUG is set: its version, and its warnings."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from simdist.device import current_device
from simdist.inside.torch import NCCL, NcclPlace
from simdist.process import SimProcess, current_process

__all__ = ["show_version", "show_warning", "variable"]

_LEVELS = {"VERSION": 1, "WARN": 2, "INFO": 3, "ABORT": 4, "TRACE": 5}


def variable(process: SimProcess, name: str, default: str = "") -> str:
    """Return an environment variable of a process; callable at any moment, on any thread."""
    return os.fsdecode(process.environ.get(name.encode(), default.encode()))


def _level(process: SimProcess) -> int:
    return _LEVELS.get(variable(process, "NCCL_DEBUG").upper(), 0)


def show_version(process: SimProcess, rank: int, index: int) -> None:
    """Write the line of NCCL's version, once per process, if NCCL_DEBUG is at least INFO, or is set on rank 0."""
    level = _level(process)
    if not (level > _LEVELS["WARN"] or (level and rank == 0)) or not process.torch_state.nccl.once("version"):
        return
    line = f"NCCL version {NCCL}+cuda{NCCL.cuda}\n"
    if level > _LEVELS["WARN"]:
        line = f"{_whence(process, index)} NCCL INFO {line}"
    _write(process, line, "w")


def show_warning(text: str, place: NcclPlace, process: SimProcess | None = None, index: int | None = None) -> None:
    """Write a warning of NCCL, from level WARN on: of the calling rank, or of a process for one of its devices."""
    process = current_process() if process is None else process
    if process is None:
        return
    if process.torch_state.nccl is not None:
        process.torch_state.nccl.last_warning = text
    if _level(process) < _LEVELS["WARN"]:
        return
    index = current_device() if index is None else index
    seconds = process.calendar_ns(process.simulation.now_ns) // 1_000_000_000
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    line = f"\n[{moment:%F %T}] {_whence(process, index)} {place.shown} NCCL WARN {text}\n"
    _write(process, line, "a")


def _whence(process: SimProcess, index: int) -> str:
    return f"{process.host.name}:{process.pid}:{process.pid} [{index}]"


def _write(process: SimProcess, line: str, mode: str) -> None:
    path = variable(process, "NCCL_DEBUG_FILE")
    if path and _level(process) > _LEVELS["VERSION"]:
        named = path.replace("%h", process.host.name).replace("%p", str(process.pid)).replace("%%", "%")
        with Path(named).open(mode, encoding="utf-8") as file:
            file.write(line)
    else:
        process.add_output("stdout", line)
