"""The probable cause of a line that did something else, from its source and its results."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from simdist.determinism._compare import Difference
from simdist.determinism._describe import ADDRESS
from simdist.determinism._slice import Origin
from simdist.determinism._source import Statement, source_line, statement_at
from simdist.determinism._suspects import makes_set, suspect

__all__ = ["Cause", "cause_of", "cause_of_file"]


@dataclass(frozen=True, slots=True)
class Cause:
    """The likely cause, in words; the line; and the values that it gave to `name`, if any, in either run.

    `advice` says how to make it deterministic. `way` are the places through which it reached the event.
    """

    kind: str
    advice: str
    file: str
    line: int
    rank: int = -1
    name: str = ""
    values: tuple[str, str] = ("", "")
    way: tuple[tuple[str, int], ...] = ()

    @property
    def source(self) -> str:
        """The line itself."""
        return source_line(self.file, self.line)


_STATE = ("state left by an earlier run in this process", "set it at the start of the program")
_THREAD = ("a thread outside the simulation", "ranks must not look at what other threads do")
_SET = ("the order of a set", "sort it")
_GARBAGE = ("when garbage is collected", "let nothing depend on it: close things yourself")
_UNKNOWN = ("not known: the line does something else although what it reads is the same", "look at what it calls")


def cause_of(origin: Origin, difference: Difference, threads: tuple[str, ...], *, other_process: bool) -> Cause:
    """The cause that `origin` shows, or else the first event that differs.

    `other_process`: only one of the two runs was in a fresh process.
    """
    step = origin.one
    statement = statement_at(step.file, step.line)
    one, other = origin.values
    if origin.from_outside:
        kind, advice = _STATE if other_process else _from_outside(statement, threads)
    else:
        here = [step, *(at for at in origin.way if (at.file, at.line) == (step.file, step.line))]
        read = [text for at in here for text in at.before.values()]  # a comprehension is a call of its own
        kind, advice = _reported(step.line, statement, one, other, read)
        if ":" in origin.name and not _assigns(statement, origin.name.rpartition(":")[2]):
            kind, advice = _from_outside(statement, threads)  # it changed while the line only read it
    if (kind, advice) == _UNKNOWN:
        for version in (difference.one, difference.other):
            if version.site is not None and version.site[2].rpartition(".")[2] == "__del__":
                return Cause(*_GARBAGE, *version.site[:2], version.rank)
    way = [(at.file, at.line) for at in (step, *origin.way)]
    places = tuple(place for index, place in enumerate(way) if index == 0 or place != way[index - 1])
    name = origin.name.rpartition(":")[2].lstrip("^")
    return Cause(kind, advice, step.file, step.line, origin.rank, name, (one, other), places)


def cause_of_file(file: str, line: int, rank: int, values: tuple[str, str]) -> Cause:
    """The cause "a file left over": one run finds a file or folder that the other does not."""
    advice = "write into a fresh folder in each run"
    return Cause("a file left over", advice, file, line, rank, "", values)


def _from_outside(statement: Statement, threads: tuple[str, ...]) -> tuple[str, str]:
    """The cause of a value that nothing in the trace has written: a call on the line, or a thread beside the ranks."""
    return suspect(statement) or (_THREAD if threads else _UNKNOWN)


def _assigns(statement: Statement, name: str) -> bool:
    stores = [node for node in statement.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    calls = any(isinstance(node, ast.Call) for node in statement.nodes)
    return calls or any(node.id == name for node in stores)


def _reported(line: int, statement: Statement, one: str, other: str, read: Iterable[str]) -> tuple[str, str]:
    by_call = suspect(statement, line) or suspect(statement)
    if by_call is not None:
        return by_call
    if any("weakref" in text for text in read):
        return _GARBAGE
    if any("set{" in text for text in read) or makes_set(statement):
        return _SET
    if ADDRESS.search(one) and ADDRESS.sub("", one) == ADDRESS.sub("", other):
        return "an address in a text", "do not print objects that have no text of their own"
    return _UNKNOWN
