"""The output of workers: to the console, to a file for each worker, or to both, as under torchrun.

The folders are torchrun's: `<log_dir>/<rdzv_id>_<random>/attempt_<n>/<local rank>/`, with `stdout.log`, `stderr.log`
and `error.json`, and `attempt_<n>/filtered_stdout.log` for `--duplicate-stdout-filters`. With several nodes each has a
folder above that, `node_<n>`; under torchrun each has a disk of its own.

In doubt: `attempt_<n>` counts lives, so that a round that adds a node has its own folder, too; torchrun overwrites the
previous one's there. A line is written when it is complete, and a worker's last line gets its line end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import TextIO

from torch.distributed.elastic.multiprocessing import Std

from simdist.launch._plan import Launch

__all__ = ["Logs", "error_file"]

_STREAMS = {"stdout": Std.OUT, "stderr": Std.ERR}


def error_file(folder: str, life: int, local_rank: int) -> str:
    """Return the file that `@record` writes on a worker."""
    return str(Path(folder) / f"attempt_{life}" / str(local_rank) / "error.json")


class Logs:
    """The files of one launch, and the output on the console."""

    def __init__(self, plan: Launch, folder: str, out: TextIO | None, err: TextIO | None) -> None:
        self._plan = plan
        self._folder = Path(folder).absolute()
        self._consoles = {"stdout": out, "stderr": err}
        self._workers: dict[int, tuple[int, Path]] = {}  # by rank: local rank, and the folder of its attempt

    def begin(self, *, life: int, rank: int, local_rank: int, node: int) -> Mapping[str, str]:
        """Make a worker's folder and files; return their variables for its environment."""
        inside = self._folder / f"node_{node}" if self._plan.nodes > 1 else self._folder
        file = Path(error_file(str(inside), life, local_rank))
        file.parent.mkdir(parents=True, exist_ok=True)
        self._workers[rank] = local_rank, file.parent.parent
        for name, stream in _STREAMS.items():
            if stream in self._written(local_rank):
                (file.parent / f"{name}.log").write_text("")
        for name, needles in self._plan.filters:
            if needles:
                (file.parent.parent / f"filtered_{name}.log").touch()
        return {"TORCHELASTIC_ERROR_FILE": str(file)}

    def take(self, rank: int, time_ns: int, name: str, line: str) -> None:
        """Write a line to its files and the console."""
        local_rank, attempt = self._workers[rank]
        written = _STREAMS[name] in self._written(local_rank)
        teed = _STREAMS[name] in self._of(self._plan.tee, local_rank)
        if written:
            _append(attempt / str(local_rank) / f"{name}.log", line)
        if self._plan.shown is not None and local_rank not in self._plan.shown:
            return
        prefix = self._prefix(rank, local_rank) if teed else ""
        console = self._consoles[name]
        if console is not None and (teed or not written):
            console.write(f"{prefix}{line}\n")
            console.flush()
        needles = dict(self._plan.filters).get(name, ())
        if teed and any(needle in line for needle in needles):
            _append(attempt / f"filtered_{name}.log", f"{prefix}{line}")

    def _prefix(self, rank: int, local_rank: int) -> str:
        if not self._plan.prefix:
            return f"[{self._plan.role}{local_rank}]:"
        names = {"role_name": self._plan.role, "rank": rank, "local_rank": local_rank}
        return Template(self._plan.prefix).safe_substitute(names)

    def _written(self, local_rank: int) -> Std:
        return self._of(self._plan.redirects, local_rank) | self._of(self._plan.tee, local_rank)

    def _of(self, reported: int | Mapping[int, int], local_rank: int) -> Std:
        return Std(reported if isinstance(reported, int) else reported.get(local_rank, 0))


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8", errors="replace") as opened:
        opened.write(f"{line}\n")
