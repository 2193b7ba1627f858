"""Standard streams that know which rank is writing."""

from __future__ import annotations

import io
import sys
import zlib
from typing import Any

from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, current_process, current_runtime

__all__ = ["RankStream", "install"]


class _Bytes(io.RawIOBase):
    """The `buffer` of a rank's stream."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


class RankStream(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr`: a rank's text goes to its process, all other to the original."""

    def __init__(self, name: str, original: Any) -> None:
        self._name = name
        self._original = original

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        """UTF-8 for a rank."""
        return "utf-8" if current_process() is not None else str(getattr(self._original, "encoding", "utf-8"))

    @property
    def buffer(self) -> Any:
        """A binary stream with the same destination."""
        return _Bytes(self) if current_process() is not None else self._original.buffer

    def write(self, text: str) -> int:
        """Write `text`; a killed rank writes nothing, and neither does one whose world is over."""
        process = current_process()
        if process is None:
            return int(self._original.write(text))
        task = process.simulation.current
        if process.running and text and task is not None and not task.doomed:
            self._write(process, text)
        return len(text)

    def flush(self) -> None:
        """Flush the original; a rank's lines are never held back."""
        if current_process() is None:
            self._original.flush()

    def isatty(self) -> bool:
        """False for a rank: its output is captured."""
        return current_process() is None and bool(self._original.isatty())

    def fileno(self) -> int:
        """The original's; a rank has none."""
        if current_process() is not None:
            raise io.UnsupportedOperation("fileno")
        return int(self._original.fileno())

    def writable(self) -> bool:
        """Always."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def _write(self, process: SimProcess, text: str) -> None:
        runtime = current_runtime()
        assert runtime is not None
        simulation = runtime.simulation
        lines = getattr(process, self._name)
        *complete, rest = (process.partial[self._name] + text).split("\n")
        for line in complete:
            lines.append(line + "\n")
            data = line.encode("utf-8", "replace")
            simulation.events.add((simulation.now_ns, "output", process.rank, self._name, len(data), zlib.crc32(data)))
            if runtime.echo is not None:
                try:
                    runtime.echo(process.rank, simulation.now_ns, self._name, line)
                except BaseException as error:  # of the host program, and nothing that this rank may catch
                    simulation.abort(error)
        process.partial[self._name] = rest


def install(patches: Patches) -> None:
    """Replace both streams."""
    patches.replace(sys, "stdout", RankStream("stdout", sys.stdout))
    patches.replace(sys, "stderr", RankStream("stderr", sys.stderr))
