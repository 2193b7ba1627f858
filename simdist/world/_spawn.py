"""The context that `simdist.spawn` returns, after `torch.multiprocessing.spawn.ProcessContext`."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from simdist.result import RankResult, RunResult, report_of
from simdist.world._spec import WorldSpec
from simdist.world._world import World

__all__ = ["SpawnContext"]

_FIRST_PID = 1000


class SpawnContext:
    """A world that has not run yet. `result` is its result, once it has.

    The output of the processes appears, line by line, in the streams of the process that joins them.
    """

    def __init__(self, spec: WorldSpec) -> None:
        self._spec = spec
        self.result: RunResult | None = None

    def pids(self) -> list[int]:
        """The simulated processes' ids."""
        return [_FIRST_PID + rank for rank in range(self._spec.world_size)]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Run the world to its end; `timeout` and `grace_period` mean nothing in virtual time. Always True.

        Raises:
            ProcessRaisedException: a process raised.
            ProcessExitedException: a process exited with another code than 0.
            RunFailedError: all did well, but a fault that is not optional never struck.
        """
        if self.result is None:
            self.result = World(replace(self._spec, echo=_to_streams())).run()
        failed = self.result.first_failure()
        if failed is not None:
            error = _exception(failed)
            error.add_note(str(report_of(self.result)))  # the text itself is torch's
            raise error
        self.result.raise_for_failure()
        return True


def _to_streams() -> Callable[[int, int, str, str], None]:
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    def echo(rank: int, time_ns: int, name: str, line: str) -> None:
        stream = streams[name]
        if stream is not None:  # None for a program without a console
            stream.write(f"{line}\n")
            stream.flush()

    return echo


def _exception(failed: RankResult) -> Exception:
    pid = _FIRST_PID + failed.rank
    if failed.exception is not None:
        text = "".join(traceback.format_exception(failed.exception))
        message = f"\n\n-- Process {failed.rank} terminated with the following error:\n{text}"
        return ProcessRaisedException(message, failed.rank, pid)
    code = failed.exit_code
    if code is None:
        message = f"process {failed.rank} hangs in {failed.waiting}"
        return ProcessExitedException(message, failed.rank, pid, exit_code=1)
    if code < 0:
        name = signal.Signals(-code).name
        message = f"process {failed.rank} terminated with signal {name}"
        return ProcessExitedException(message, failed.rank, pid, exit_code=code, signal_name=name)
    message = f"process {failed.rank} terminated with exit code {code}"
    return ProcessExitedException(message, failed.rank, pid, exit_code=code)
