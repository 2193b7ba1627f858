"""The results of a sweep in a file, from which an interrupted sweep continues.

The file has one line of JSON for each crash, written as soon as its result is known; an incomplete last line is
ignored. The first line identifies the sweep: by its points and its command.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from simdist.errors import ArgumentError
from simdist.sweeps._failure import Failure, Tried
from simdist.sweeps._points import Case, Point
from simdist.sweeps._tries import Tries

__all__ = ["Kept"]


class Kept:
    """The file `path`, which need not exist yet. Each crash has a number in it.

    Raises:
        ArgumentError: the file exists, and belongs to another sweep, or to none.
    """

    def __init__(self, path: str, points: Sequence[Point], tries: Tries, called: str) -> None:
        whole = hashlib.blake2b(repr((list(points), tries, called)).encode(errors="surrogateescape"), digest_size=16)
        head = {"simdist sweep": whole.hexdigest()}
        there = Path(path).exists() and Path(path).stat().st_size > 0
        lines: list[Any] = list(_lines(path)) if there else [head]
        if not lines or lines[0] != head:
            problem = f"keep: {path} is of another sweep, or of no sweep; remove it, or name another file"
            raise ArgumentError("a sweep", [problem])
        self._found: dict[int, Any] = {int(each["crash"]): each for each in lines[1:]}
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed at the exit
        for each in (head, *lines[1:]):
            self._write(each)

    def get(self, number: int, case: Case) -> Tried | None:
        """Return the result of a crash; None if it was not tried yet."""
        found = self._found.get(number)
        if found is None:
            return None
        failure = None
        if found["failure"] is not None:
            left, problems, replay = found["failure"]
            failure = Failure(case, tuple((p, t) for p, t in left), tuple((n, t) for n, t in problems), replay)
        return Tried(failure, found["begun"], tuple((name, held) for name, held in found.get("sometimes", ())))

    def put(self, number: int, tried: Tried) -> None:
        """Write the result of a crash."""
        failure = tried.failure
        said = None if failure is None else [failure.left, failure.problems, failure.replay]
        self._write({"crash": number, "failure": said, "begun": tried.begun, "sometimes": tried.sometimes})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def _lines(path: str) -> Iterator[Any]:
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return
        yield found
