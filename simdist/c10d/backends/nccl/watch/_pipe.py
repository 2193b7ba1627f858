"""TORCH_NCCL_DEBUG_INFO_PIPE_FILE: a write into a rank's pipe makes the rank dump its flight record."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["DumpPipe"]


class DumpPipe:
    """A named pipe of the operating system, which a monitor reads at each of its checks.

    Raises:
        RuntimeError: the pipe can't be made; with torch's text.
    """

    def __init__(self, path: str) -> None:
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise RuntimeError(f"Error removing existing named pipe {path}, Error: {error.strerror}") from None
        try:
            os.mkfifo(path, 0o666)
        except OSError as error:
            raise RuntimeError(f"Error creating named pipe {path}, Error: {error.strerror}") from None
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def asks(self) -> bool:
        """True if something was written into it."""
        if self._file == -1:
            return False
        try:
            return bool(os.read(self._file, 128))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the file; the named pipe stays."""
        if self._file != -1:
            os.close(self._file)
            self._file = -1
