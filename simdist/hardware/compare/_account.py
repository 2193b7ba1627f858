"""The outcome of a run, point by point, in words that do not depend on when and where it ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simdist.result import Event, RankResult, RunResult
from simdist.scenario import without_source
from simdist.values import text_of

__all__ = ["Account", "account_of", "in_virtual_time", "template"]

_ADDRESS = re.compile(r"(remote=)?\[?(\d{1,3}(\.\d{1,3}){3}|[0-9a-fA-F:]*::[0-9a-fA-F:]*)\]?(:\d+)?(\$\d+)?")
_MILLISECONDS = re.compile(r"(\d+)( ?ms\b| milliseconds\b)")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)( ?s\b| ?secs?\b| seconds\b)")
_PORT = re.compile(r"(port:? ?)\d+")
_POINTER = re.compile(r"0x[0-9a-fA-F]{6,}")
_SOURCE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|h|hpp|cu):\d+\] ?")

Operation = tuple[object, ...]


def template(message: str, scale: float = 1.0) -> str:
    """Return the text without parts that differ from run to run: addresses, ports, pointers, source lines of C++.

    Durations in milliseconds and seconds stay, divided by `scale` into virtual time.
    """
    text = without_source(message).split("\nException raised from")[0]
    text = _POINTER.sub("0x...", _PORT.sub(r"\1<port>", _ADDRESS.sub("<address>", _SOURCE.sub("", text))))
    return " ".join(in_virtual_time(text, scale).split())


def in_virtual_time(text: str, scale: float) -> str:
    """Return the text with its durations in milliseconds and seconds divided by `scale`."""
    if scale == 1.0:
        return text
    text = _MILLISECONDS.sub(lambda found: f"{round(int(found[1]) / scale)}{found[2]}", text)
    return _SECONDS.sub(lambda found: f"{float(found[1]) / scale:g}{found[2]}", text)


@dataclass(frozen=True, slots=True)
class Account:
    """One run as the comparison sees it, by rank; operations, results and errors by rank and life.

    `cut` names the lives that the launcher ended: how far they got depends on real time.
    """

    outcomes: Mapping[int, str]
    exceptions: Mapping[int, str]
    values: Mapping[int, object]
    operations: Mapping[tuple[int, int], Sequence[Operation]]
    results: Mapping[tuple[int, int], Mapping[Operation, int]]
    errors: Mapping[tuple[int, int], Mapping[Operation, str]]
    steps: Mapping[tuple[int, int], Sequence[int]]
    faults: Sequence[str]
    restarts: int
    cut: frozenset[tuple[int, int]]
    state: Mapping[str, str]
    lasted_ns: Mapping[int, int]


def account_of(result: RunResult, state: Mapping[str, str], scale: float = 1.0) -> Account:
    """Read a run, simulated or real; `scale` is real seconds per virtual second."""
    book = _Book(scale)
    for event in result.events:
        book.read(event)
    last = result.restarts
    struck = {(rank, life) for fault in result.faults for rank, life, how in fault.ended if how != "hung"}
    ended_by_launcher = {key for key in book.operations if key[1] < last and key not in struck}
    ended_by_launcher |= {(rank.rank, last) for rank in result.ranks if rank.exit_code == -15}
    return Account(
        outcomes={rank.rank: _outcome(rank) for rank in result.ranks},
        exceptions={r.rank: _exception(r, scale) for r in result.ranks if r.exception is not None},
        values={rank.rank: rank.value for rank in result.ranks if rank.status == "returned"},
        operations=book.operations,
        results=book.results,
        errors=book.errors,
        steps=book.steps,
        faults=sorted(book.faults),
        restarts=result.restarts,
        cut=frozenset(ended_by_launcher),
        state=dict(state),
        lasted_ns={rank.rank: rank.ended_ns for rank in result.ranks},
    )


def _outcome(rank: RankResult) -> str:
    if rank.status == "killed":
        return f"killed by signal {-(rank.exit_code or 0)}"
    if rank.status == "exited":
        return f"exited with code {rank.exit_code}"
    return rank.status


def _exception(rank: RankResult, scale: float) -> str:
    return f"{type(rank.exception).__name__}: {template(text_of(rank.exception), scale)}"


class _Book:
    """The events of a run, sorted by rank and life."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._life: dict[int, int] = {}
        self.operations: dict[tuple[int, int], list[Operation]] = {}
        self.results: dict[tuple[int, int], dict[Operation, int]] = {}
        self.errors: dict[tuple[int, int], dict[Operation, str]] = {}
        self.steps: dict[tuple[int, int], list[int]] = {}
        self.faults: list[str] = []

    def read(self, event: Event) -> None:
        data: Mapping[str, Any] = event.data
        if event.kind == "start":
            self._life[event.rank] = int(data["life"])
            key = (event.rank, self._life[event.rank])
            self.operations.setdefault(key, [])
            for table in (self.results, self.errors):
                table.setdefault(key, {})
            self.steps.setdefault(key, [])
            return
        if event.kind == "fault":
            self.faults.append(f"{data['text']} (life {data['life']})")
            return
        if event.rank < 0 or event.rank not in self._life:
            return
        key = (event.rank, self._life[event.rank])
        if event.kind == "issue":
            names = ("op", "group", "seq", "nbytes", "dtype", "shape", "peer")
            self.operations[key].append(tuple(_plain(data[name]) for name in names))
        elif event.kind == "result":
            self.results[key][_named(data)] = int(data["crc"])
        elif event.kind == "error":
            self.errors[key][_named(data)] = f"{data['error']}: {template(str(data['message']), self._scale)}"
        elif event.kind == "step":
            self.steps[key].append(int(data["step"]))


def _named(data: Mapping[str, Any]) -> Operation:
    return str(data["op"]), str(data["group"]), int(data["seq"])


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
