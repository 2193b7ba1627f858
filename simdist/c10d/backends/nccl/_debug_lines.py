"""The lines that NCCL itself writes, where NCCL_DEBUG asks for them (NCCL 2.29.7): its version, and its warnings."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from simdist.device import current_device
from simdist.process import SimProcess, current_process

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._rank import RankNccl

__all__ = ["NCCL_VERSION", "show_version", "show_warning"]

NCCL_VERSION = (2, 29, 7)
_LEVELS = {"VERSION": 1, "WARN": 2, "INFO": 3, "ABORT": 4, "TRACE": 5}
_CUDA = "13.0"


def _level() -> int:
    return _LEVELS.get(os.environ.get("NCCL_DEBUG", "").upper(), 0)


def show_version(nccl: RankNccl, rank: int, index: int) -> None:
    """Write the line of NCCL's version, once per process, if NCCL_DEBUG asks for it: from INFO on, or on rank 0."""
    level = _level()
    if not (level > _LEVELS["WARN"] or (level and rank == 0)) or not nccl.once("version"):
        return
    line = f"NCCL version {'.'.join(str(number) for number in NCCL_VERSION)}+cuda{_CUDA}\n"
    if level > _LEVELS["WARN"]:
        line = f"{_whence(nccl.process, index)} NCCL INFO {line}"
    _write(nccl.process, line, "w")


def show_warning(text: str, place: str) -> None:
    """Write a warning of the calling rank's NCCL, from WARN on."""
    process = current_process()
    if process is None or _level() < _LEVELS["WARN"]:
        return
    seconds = (process.epoch_ns + process.simulation.now_ns) // 1_000_000_000
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    line = f"\n[{moment:%F %T}] {_whence(process, current_device())} {place} NCCL WARN {text}\n"
    _write(process, line, "a")


def _whence(process: SimProcess, index: int) -> str:
    return f"{process.host.name}:{process.pid}:{process.pid} [{index}]"


def _write(process: SimProcess, line: str, mode: str) -> None:
    path = os.environ.get("NCCL_DEBUG_FILE")
    if path and _level() > _LEVELS["VERSION"]:
        named = path.replace("%h", process.host.name).replace("%p", str(process.pid)).replace("%%", "%")
        with Path(named).open(mode, encoding="utf-8") as file:
            file.write(line)
    else:
        process.add_output("stdout", line)
