"""The parts of a report, and how many lines each may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from simdist.result._collectives import uneven_collectives
from simdist.result._outcome import Outcome, RankResult, first_to_fail
from simdist.result._shared_modules import shared_lines
from simdist.result._stanzas import Ended, stanza_lines, stanzas_of
from simdist.result._words import how_it_ended
from simdist.values import format_duration, plain

__all__ = ["LINES", "WIDTH", "Report", "report_of"]

LINES = 34  # at most, without the replay, to leave room for the text above the report
WIDTH = 118
_FAULTS = 4
_FINDINGS = 10
_DEADLOCK = 6
_TRACEBACK = 16
_LONGEST = 2000  # letters of a line of the program's


@dataclass(frozen=True, slots=True)
class Report:
    """The lines of a report, part by part.

    Example:
        >>> report = report_of(simdist.run(train, world_size=2, faults=[Crash(rank=1, at_ns=0)]))
        >>> report.headline
        '2 of 2 ranks failed, rank 1 first: was killed by SIGKILL'
        >>> report.faults
        ('fault at 0 ns: rank 1 dies of SIGKILL',)
    """

    headline: str  # how many failed, and how the first of them did
    setting: str
    faults: tuple[str, ...]  # that struck, and that never did
    findings: tuple[str, ...]  # of judges
    deadlock: tuple[str, ...]
    collectives: tuple[str, ...]  # that ranks did not call alike; modules that they share; what was refused
    ranks: tuple[str, ...]
    traceback: tuple[str, ...]  # of the rank to blame, as it printed it
    replay: str

    def lines(self, *, deadlock: bool = True) -> list[str]:
        """All lines but headline, traceback and replay; without `deadlock`, which may be shown elsewhere, too."""
        reported = self.deadlock if deadlock else ()
        return [self.setting, *self.faults, *self.findings, *reported, *self.collectives, *self.ranks][:LINES]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *self.traceback, *([f"replay: {self.replay}"] if self.replay else [])])


def report_of(
    result: Outcome,
    *,
    first: RankResult | None = None,
    tracebacks: Mapping[int, TracebackType] | None = None,
    ended: Ended = how_it_ended,
) -> Report:
    """The report of a run.

    `first` is the rank to blame, if it is not the one that failed first; `tracebacks` show where ranks hang or were
    killed; `ended` returns the words for how a rank ended.
    """
    first = first_to_fail(result.ranks) if first is None else first
    faults = _fault_lines(result)
    findings = [line for finding in result.findings for line in finding.lines()][:_FINDINGS]
    deadlock = result.deadlock
    reported = str(deadlock).splitlines()[:_DEADLOCK] if deadlock is not None else []
    collectives = uneven_collectives(result.events, strict=result.strict)
    blamed = None if first is None else first.exception
    collectives += shared_lines(blamed)
    collectives += [f"not supported, and refused before: {text}" for text in result.refused if text != str(blamed)]
    room = LINES - 1 - len(faults) - len(findings) - len(reported) - len(collectives)
    ranks = stanza_lines(stanzas_of(result, first, tracebacks or {}, ended), first, room, result.replay)
    return Report(
        headline=_headline(result, ended),
        setting=_setting(result),
        faults=_cut(faults),
        findings=_cut(findings),
        deadlock=_cut(reported),
        collectives=_cut(collectives),
        ranks=_cut(ranks),
        traceback=_traceback(first),
        replay=result.replay,
    )


def _headline(result: Outcome, ended: Ended) -> str:
    first = first_to_fail(result.ranks)
    if first is None and result.findings:
        return _found_headline(result)
    if first is None:
        return _idle_headline(sum(not fault.ok for fault in result.faults))
    failed = sum(not rank.ok for rank in result.ranks)
    return f"{failed} of {len(result.ranks)} ranks failed, rank {first.rank} first: {_clipped(ended(first))}"


def _found_headline(result: Outcome) -> str:
    finding = result.findings[0]
    who = f", rank {finding.rank}" if finding.rank >= 0 else ""
    return f"every rank came to its end, but judge {finding.judge} found{who}: {_clipped(finding.problem)}"


def _idle_headline(idle: int) -> str:
    if not idle:
        return "every rank did well"
    who = "a fault waits" if idle == 1 else f"{idle} faults wait"
    return f"every rank did well, but what {who} for did not happen; one that need not strike is given optional=True"


def _setting(result: Outcome) -> str:
    count = len(result.ranks)
    order = f" ({result.policy} order)" if result.policy else ""
    words = [
        f"{count} {'rank' if count == 1 else 'ranks'}",
        *_backend_words(result.backends or ((result.backend,) if result.backend else ())),
        f"seed {result.seed}{order}",
        f"{format_duration(result.virtual_time_ns)} of virtual time",
        *([f"restarts: {result.restarts}"] if result.restarts else []),
    ]
    return ", ".join(words)


def _backend_words(names: Sequence[str]) -> list[str]:
    return [f"{'backend' if len(names) == 1 else 'backends'} {' and '.join(names)}"] if names else []


def _fault_lines(result: Outcome) -> list[str]:
    struck = [event for event in result.events if event.kind == "fault"]
    lines = [f"fault at {format_duration(event.time_ns)}: {event.data.get('text')}" for event in struck]
    more = len(lines) - _FAULTS
    if more > 0:
        lines[_FAULTS:] = [f"and {more} more {'fault' if more == 1 else 'faults'}"]
    return lines + [f"never struck: {fault.call}" for fault in result.faults if not fault.ok][:_FAULTS]


def _traceback(first: RankResult | None) -> tuple[str, ...]:
    if first is None or first.exception is None:
        return ()
    mark = f"[rank{first.rank}]: "
    printed = [line for line in first.stderr.splitlines() if line.startswith(mark)][-_TRACEBACK:]
    lines = [f"    {_clipped(line)}" for line in printed]
    return (f"last stderr of rank {first.rank}:", *map(plain, lines)) if lines else ()


def _clipped(line: str) -> str:
    """A line of the program's, cut if it would fill the screen."""
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}... ({len(line)} letters)"


def _cut(lines: Iterable[str]) -> tuple[str, ...]:
    whole = [plain(line.rstrip()) for line in lines]
    return tuple(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in whole)
