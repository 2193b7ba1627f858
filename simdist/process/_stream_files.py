"""A file behind a stream of a rank."""

from __future__ import annotations

import codecs
import os
import tempfile

__all__ = ["Descriptor"]

_PART = 1 << 16


class Descriptor:
    """A nameless file that C code and child programs write to, and whose text is read as it grows."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.number = os.memfd_create("simdist")
        else:
            with tempfile.TemporaryFile() as file:
                self.number = os.dup(file.fileno())
        self._read = 0  # bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """What has been written since the last call."""
        parts = []
        while data := os.pread(self.number, _PART, self._read):
            self._read += len(data)
            parts.append(self._decoder.decode(data))
        return "".join(parts)

    def close(self) -> None:
        """Close the file; text that was not read is lost."""
        os.close(self.number)
