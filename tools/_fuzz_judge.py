"""Judge a run of a random program under a random plan, and find the smallest case that is still wrong.

A run is wrong if simdist says that it is broken (an internal error, a stall, an endless poll), if a rank gets an
exception that no program should see from simdist, if the run takes too long, if a second run differs in anything, or if
it leaves something behind. Ranks that time out, disagree, die or hang are not wrong.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

import simdist
from simdist.errors import LivelockError, SimdistError, StrictError
from tools._fuzz_plans import Plan
from tools._fuzz_programs import Program
from tools._fuzz_statements import perform

__all__ = ["LONGEST_S", "Case", "Finding", "Tally", "host_state", "judge", "shrink"]

LONGEST_S = 20.0  # processor time, so that a busy machine is no finding
_OURS = str(Path(str(simdist.__file__)).parent)
# The errors that simdist may raise on a rank on purpose: with torch's and Gloo's texts, and those of strict runs.
_MEANT = (RuntimeError, ValueError, TypeError, NotImplementedError, SimdistError, OSError)
_STATUSES = ("returned", "exited", "raised", "killed", "hung")


@dataclass(frozen=True)
class Case:
    """A program and a plan."""

    program: Program
    plan: Plan

    def text(self) -> str:
        """Return both as text for a report."""
        return f"{self.plan}\n{self.program.text()}"


@dataclass(frozen=True)
class Finding:
    """Something wrong. While a case is made smaller, two findings of the same `kind` count as the same bug."""

    kind: str
    text: str


@dataclass
class Tally:
    """Counts of what has been run so far."""

    runs: int = 0
    operations: int = 0
    events: int = 0
    restarts: int = 0
    struck: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def note(self, result: simdist.RunResult, seconds: float) -> None:
        """Count a run."""
        self.runs += 1
        self.slowest_s = max(self.slowest_s, seconds)
        self.restarts += result.restarts
        for rank in result.ranks:
            self.statuses[rank.status] += 1
            self.operations += rank.operations
            if rank.exception is not None:
                self.exceptions[type(rank.exception).__name__] += 1
        self.events += len(result.events)
        self.struck += sum(event.kind == "fault" for event in result.events)

    def text(self) -> str:
        """Return the counts in a few lines."""
        ranks = sum(self.statuses.values())
        shares = [f"{name} {self.statuses[name]} ({self.statuses[name] / max(1, ranks):.0%})" for name in _STATUSES]
        common = ", ".join(f"{name} {count}" for name, count in self.exceptions.most_common(8))
        return (
            f"{self.runs} runs, {ranks} ranks: {', '.join(shares)}\n"
            f"{self.operations} operations, {self.events} events, {self.struck} faults struck, {self.restarts} "
            f"restarts, the slowest run took {self.slowest_s:.1f} s\n"
            f"exceptions: {common}"
        )


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Exclude existing objects from garbage collection: collecting all of torch takes longer than most cases."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@only_new_garbage()
def judge(case: Case, tally: Tally | None = None, *, turns: int = 2) -> Finding | None:
    """Run a case `turns` times; returns the first thing that is wrong with it."""
    first: tuple[Any, ...] | None = None
    for turn in range(turns):
        threads, modes = threading.active_count(), host_state()
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = simdist.run(
                    functools.partial(perform, case.program), record_results=True, **case.plan.arguments()
                )
        except LivelockError as error:
            # A rank that polls for what never arrives; the verdict has to be the same each time.
            seen: tuple[Any, ...] = ("livelock", str(error).splitlines()[0])
        except Exception as error:
            return Finding(f"{type(error).__name__} of the run", "".join(traceback.format_exception(error))[-6000:])
        else:
            seconds = time.process_time() - begin
            if tally is not None:
                tally.note(result, seconds)
            if seconds > LONGEST_S:
                return Finding("too long", f"a run took {seconds:.1f} s of processor time")
            wrong = _wrong_exception(result)
            if wrong is not None:
                return wrong
            seen = _shown(result)
        if threading.active_count() != threads:
            return Finding("thread left", str([thread.name for thread in threading.enumerate()]))
        if host_state() != modes:
            return Finding("state left", f"{modes} before, {host_state()} after")
        if first is None:
            first = seen
        elif seen != first:
            parts = [f"{one!r}\n{other!r}" for one, other in zip(first, seen, strict=False) if one != other]
            return Finding("differs", f"turn {turn}: " + "\n".join(parts)[:6000])
        del seen
        if turn % 2 == 0:
            gc.collect()
            _stir(turn)
    return None


def _stir(turn: int) -> None:
    """Leave other values in freed memory."""
    held = [torch.full((size,), turn + 0.25) for size in (1, 2, 3, 4, 7, 8, 16, 33, 100, 1000, 5000) for _ in range(4)]
    del held


def host_state() -> tuple[Any, ...]:
    """Return the state of the host program that a world replaces and has to restore."""
    from torch.distributed import distributed_c10d

    return (
        time.sleep.__module__,
        sys.stdout is sys.__stdout__,
        id(distributed_c10d._world),
        distributed_c10d.is_initialized(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch._C._len_torch_dispatch_stack(),
    )


def _shown(result: simdist.RunResult) -> tuple[Any, ...]:
    """Return everything that must be the same in every run."""
    ranks = [
        (r.status, r.value, r.exit_code, r.ended_ns, r.operations, r.waiting, repr(r.exception), r.stdout, r.where)
        for r in result.ranks
    ]
    return (result.digest, result.virtual_time_ns, result.restarts, str(result.deadlock), *ranks)


def _wrong_exception(result: simdist.RunResult) -> Finding | None:
    """Find an exception that simdist raised but not on purpose, or one whose text shows an address."""
    for rank in result.ranks:
        error = rank.exception
        if error is None:
            continue
        where = _innermost(error.__traceback__)
        meant = isinstance(error, _MEANT) and not isinstance(error, NameError | RecursionError)
        if where is not None and not meant:
            text = "".join(traceback.format_exception(error))
            return Finding(f"{type(error).__name__} at {where}", text[-6000:])
        if " at 0x" in str(error) and not isinstance(error, StrictError):
            return Finding("address", str(error)[:2000])
    return None


def _innermost(trace: TracebackType | None) -> str | None:
    """Return the innermost line of simdist, below the program, that an exception passed; None if there is none."""
    names = []
    while trace is not None:
        names.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    below = itertools.dropwhile(lambda place: place[0].startswith(_OURS), names)  # without our calls above the program
    ours = [place for place in below if place[0].startswith(_OURS)]
    return f"{Path(ours[-1][0]).name}:{ours[-1][1]}" if ours else None


def shrink(case: Case, finding: Finding, *, deadline_s: float, say: Callable[[str], None] = lambda _: None) -> Case:
    """Return the smallest case, of those found before the deadline, that shows a finding of the same kind."""
    end = time.perf_counter() + deadline_s
    turns = 4 if finding.kind == "differs" else 2

    def still(smaller: Case) -> bool:
        found = judge(smaller, turns=turns)
        return found is not None and found.kind == finding.kind

    changed = True
    while changed and time.perf_counter() < end:
        changed = False
        candidates = [Case(case.program.without(index), case.plan) for index in range(len(case.program.statements))]
        candidates += [Case(case.program, plan) for plan in case.plan.simpler()]
        for smaller in candidates:
            if time.perf_counter() > end:
                break
            if still(smaller):
                case, changed = smaller, True
                say(f"smaller: {len(case.program.statements)} statements, {len(case.plan.faults)} faults")
                break
    return case
