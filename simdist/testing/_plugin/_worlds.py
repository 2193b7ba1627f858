"""The worlds of one test: opened here, and kept until the test's report is made."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Protocol, TextIO

import pytest

from simdist.faults import Fault
from simdist.result import RunResult, report_of
from simdist.testing._plugin._debugging import remember_streams
from simdist.testing._plugin._files import write_files
from simdist.testing._plugin._frames import traceback_of, without_internals
from simdist.testing._plugin._settings import Settings, item_settings, policy_for, seed_of
from simdist.testing._plugin._surroundings import pytest_on_ranks
from simdist.testing._plugin._verdict import ended, failure_of, primary_of
from simdist.world import World, WorldSpec

__all__ = ["Record", "UnderWay", "Worlds", "add_to_report", "replay_command", "without_seed", "worlds_of"]

_CAPTURING = ("capsys", "capsysbinary", "capteesys", "capfd", "capfdbinary")


@dataclass(slots=True)
class Record:
    """One world: its settings and its result, which is None until it ends."""

    spec: WorldSpec
    result: RunResult | None = None
    tracebacks: dict[int, TracebackType] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class UnderWay(Protocol):
    """A running world that the test drives: `LiveWorld`."""

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def max_restarts(self) -> int:
        """The maximum number of restarts of all ranks."""
        ...

    @property
    def faults(self) -> Sequence[Fault]:
        """The faults that were given to it."""
        ...

    def bring_in(self, fault: Fault) -> None:
        """Give the world a fault now."""
        ...

    def lift(self, fault: Fault) -> None:
        """End a fault now."""
        ...

    def close(self) -> None:
        """End the world at the present time."""
        ...


class Worlds:
    """All worlds of one test, in order."""

    def __init__(self, item: pytest.Function) -> None:
        self.item = item
        self.settings: Settings = item_settings(item)
        self.seed = seed_of(item)
        self.full_trace = bool(item.config.getoption("fulltrace", False))
        self.drives = "sim" in item.fixturenames  # the test drives worlds; else its body runs on each rank
        self.records: list[Record] = []
        self.live: UnderWay | None = None
        self.notes: list[str] = []
        self.schedule = 0  # the number of the schedule that is explored; 0 is the usual one

    def open(
        self,
        call: Callable[[int], object],
        settings: Settings,
        *,
        seed: int,
        faults: Sequence[Fault],
        argv: Sequence[str] | None = None,
    ) -> tuple[World, Record, contextlib.ExitStack]:
        """Start a world; the caller runs it, and closes the returned stack."""
        record: Record

        def keep(frames: Mapping[int, FrameType]) -> None:
            found = {rank: traceback_of(frame) for rank, frame in frames.items()}
            record.tracebacks.update({rank: trace for rank, trace in found.items() if trace is not None})

        def noting_exits(rank: int) -> object:
            try:
                return call(rank)
            except SystemExit as leaving:
                if leaving.__traceback__ is not None:
                    record.tracebacks[rank] = leaving.__traceback__
                raise

        spec = WorldSpec(
            call=noting_exits,
            world_size=settings.world_size,
            backend=settings.backend,
            seed=seed,
            cluster=settings.cluster_for(settings.world_size),
            faults=tuple(faults),
            max_restarts=settings.max_restarts,
            env=settings.env,
            start_time=settings.start_time,
            isolate=settings.isolate,
            share=settings.share,
            program_ns=settings.program_ns,
            argv=argv,
            policy=policy_for(settings.policy, seed),
            strict=settings.strict,
            judges=settings.judges,
            values=settings.values,
            stall_s=settings.stall_s,
            echo=self._echo(),
            replay=f"{replay_command(self.item, self.seed)}{self._exploring}",
            on_frames=keep,
        )
        record = Record(spec)
        world = World(spec)
        with contextlib.ExitStack() as stack:
            stack.enter_context(pytest_on_ranks())
            world.start()
            stack.callback(world.close)
            remember_streams(world.runtime)
            if self.item.config.getoption("trace", False):
                world.runtime.simulation.watched = False  # pytest's --trace: a person is at the keyboard
            self.records.append(record)
            return world, record, stack.pop_all()

    def failure_of(self, record: Record) -> BaseException | None:
        """Return the exception for a world; None if it passed. It has the user's frames only, unless `--full-trace`."""
        assert record.result is not None
        failure = failure_of(record.result, record.tracebacks)
        if isinstance(failure, pytest.fail.Exception) and failure.__traceback__ is None:
            failure.pytrace = self.drives  # else there is no line of the test to show
        if failure is None or self.full_trace:
            return failure
        return without_internals(failure)

    def leave(self) -> None:
        """End the running world, if there is one: the test is over."""
        if self.live is not None:
            self.live.close()

    def ended(self, record: Record, result: RunResult) -> None:
        """Called when a world has ended."""
        record.result = result
        for stream in ("stdout", "stderr"):
            for rank in result.ranks:
                text = getattr(rank, stream)
                if self._passes_on and text and not text.endswith("\n"):
                    getattr(sys, stream).write(text.rpartition("\n")[2])  # the last line had no end yet
        write_files(self.item, self.seed, self.records.index(record), result)

    @property
    def _exploring(self) -> str:
        return f" --simdist-explore={self.schedule}" if self.schedule else ""

    @property
    def _passes_on(self) -> bool:
        """True if the test reads its ranks' output with one of pytest's fixtures."""
        return self.drives and any(name in self.item.fixturenames for name in _CAPTURING)

    def _echo(self) -> Callable[[int, int, str, str], None] | None:
        streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        if self._passes_on:
            return lambda rank, time_ns, stream, line: _write(streams[stream], line)
        if self.item.config.getoption("capture") in ("no", "tee-sys"):
            return lambda rank, time_ns, stream, line: _write(streams[stream], f"[rank {rank}] {line}")
        return None


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")


_KEY = pytest.StashKey[Worlds]()


def worlds_of(item: pytest.Function) -> Worlds:
    """Return the worlds of a test."""
    if _KEY not in item.stash:
        item.stash[_KEY] = Worlds(item)
    return item.stash[_KEY]


def replay_command(item: pytest.Item, seed: int) -> str:
    """Return the command that runs this one test again, with this seed."""
    path, *names = without_seed(item, seed).split("::")
    # pytest's own `cwd_relative_nodeid` fails on workers of pytest-xdist, where the folder is a text.
    path = os.path.relpath(item.config.rootpath / path, item.config.invocation_params.dir)
    return f"pytest {shlex.quote('::'.join([path, *names]))} --simdist-seed={seed}"


def without_seed(item: pytest.Item, seed: int) -> str:
    """Return the node id that the test has when the command line gives the seed."""
    nodeid = str(item.nodeid)
    parameters = getattr(item, "callspec", None)
    if parameters is not None and "simdist_seed" in parameters.params:
        base = nodeid.removesuffix(f"seed{seed}]")  # the last of the parameters, or the only one
        nodeid = f"{base[:-1]}]" if base.endswith("-") else base.removesuffix("[")
    return nodeid


def _lines(result: RunResult, tracebacks: Mapping[int, TracebackType]) -> list[str]:
    """Return the report of a world; where a rank hangs in a deadlock, the failure above it is the deadlock itself."""
    first = primary_of(result)
    report = report_of(result, first=first, tracebacks=tracebacks, ended=ended)
    return report.lines(deadlock=first is None or first.status != "hung")


def add_to_report(item: pytest.Item, report: pytest.TestReport) -> None:
    """Below a failure, add how the ranks of the last world ended; to a passing test, add what they printed."""
    worlds = item.stash.get(_KEY, None)
    if worlds is None or not worlds.records:
        return
    record = worlds.records[-1]
    reported: Any = report.longrepr
    if report.failed and hasattr(reported, "addsection"):
        lines = [] if record.result is None else _lines(record.result, record.tracebacks)  # else it was given up
        lines += [*record.notes, *worlds.notes, f"replay: {record.spec.replay}"]
        reported.addsection("simdist", "\n".join(lines), "-")
    elif record.result is not None:
        for rank in record.result.ranks:
            for name, text in (("stdout", rank.stdout), ("stderr", rank.stderr)):
                if text:
                    report.sections.append((f"Captured {name} of rank {rank.rank}", text))
    del item.stash[_KEY]
