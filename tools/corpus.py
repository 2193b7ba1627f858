"""How many real bugs are found blind: the programs of `tests/corpus`, with judges off, on, and on other schedules.

    python tools/corpus.py                  # a table; exit code 1 if a bug is missed or a fixed program reported
    python tools/corpus.py replicas nobody  # entries with one of these words in their name, file or source
    python tools/corpus.py --seeds 20       # the fixed programs with so many seeds, each in a strict world too
    python tools/corpus.py --shrink         # the smallest run of each bug, repeated by its token and by its test

No fault is injected, and nothing is said of the bug. "off" is what the run itself shows; "on" is what judges,
`simdist.agree` and `simdist.resume` add; "right" says whether the finding names the rank and the line. "schedules" is
what judges find in the first of so many runs with seeds of the random policy in which anything is found.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.corpus import ENTRIES, Entry, outcome_of
from tools._corpus_shrinking import can_be_shrunk, shrink

__all__ = ["SCHEDULES", "Row", "main", "rows_of"]

SCHEDULES = 8  # number of seeds of the random policy


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one entry. `false_alarm` is what was reported of the fixed program, with its seed."""

    entry: Entry
    off: str
    on: str
    schedules: str
    right: bool
    false_alarm: str

    @property
    def ok(self) -> bool:
        """True if the right finder found the bug, named its place, and reported nothing of the fixed program."""
        return self.on == self.entry.finder and self.right and not self.false_alarm

    def line(self) -> str:
        """Return one line of the table."""
        right = "NO" if not self.right else "yes" if self.entry.names_a_place else "-"
        alarm = f"  FALSE ALARM: {self.false_alarm}" if self.false_alarm else ""
        missed = "" if self.on == self.entry.finder else f"  EXPECTED: {self.entry.finder}"
        found = f"{self.off or '-':<8} {self.on or '-':<12} {self.schedules or '-':<12}"
        return f"{self.entry.name:<51} {found} {right:<6} {self.entry.source}{missed}{alarm}"


def rows_of(entries: Sequence[Entry], seeds: int = 1) -> list[Row]:
    """Run entries, and the fixed programs with `seeds` seeds each."""
    return [_row(entry, seeds) for entry in entries]


def _row(entry: Entry, seeds: int) -> Row:
    off = outcome_of(entry, buggy=True, judges=False)
    on = outcome_of(entry, buggy=True, judges=True)
    found = (outcome_of(entry, buggy=True, judges=True, seed=seed) for seed in range(1, SCHEDULES + 1))
    schedules = next((each.by for each in found if each.by), "")
    alarm = ""
    for seed, strict in itertools.product(range(seeds), (False, True)):
        settings = {**entry.settings, "strict": True} if strict else entry.settings
        fixed = outcome_of(replace(entry, settings=settings), buggy=False, judges=True, seed=seed)
        if fixed.by:
            how = ", strict" if strict else ""
            alarm = f"{fixed.by} with seed {seed}{how}: {' '.join(fixed.text.split())[:300]}"
            break
    return Row(entry, off.by, on.by, schedules, on.right, alarm)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or the smallest runs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of names, files or sources; default: all entries")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the fixed programs")
    parser.add_argument("--shrink", action="store_true", help="make each bug's run smaller, and repeat that")
    options = parser.parse_args(arguments)
    chosen = [
        entry
        for entry in ENTRIES
        if not options.words
        or any(word in f"{entry.program.__module__} {entry.name} {entry.source}" for word in options.words)
    ]
    return _shrink(chosen) if options.shrink else _look(chosen, options.seeds)


def _shrink(chosen: Sequence[Entry]) -> int:
    smallest = []
    for entry in filter(can_be_shrunk, chosen):
        smallest.append(shrink(entry))
        print(smallest[-1].line(), flush=True)
    good = sum(not each.problem for each in smallest)
    print(f"{len(smallest)} programs: nothing can be left out, and token and test fail alike, for {good}")
    return 0 if good == len(smallest) else 1


def _look(chosen: Sequence[Entry], seeds: int) -> int:
    print(f"{'program':<51} {'off':<8} {'on':<12} {'schedules':<12} {'right':<6} source")
    rows = []
    for entry in chosen:
        rows.append(_row(entry, seeds))
        print(rows[-1].line(), flush=True)
    silent = [row for row in rows if row.entry.is_silent]
    placed = [row for row in rows if row.entry.names_a_place]
    print(
        f"{len(rows)} programs, {len(silent)} of them silent: "
        f"found with judges off {sum(bool(row.off) for row in rows)}, "
        f"on {sum(bool(row.on) for row in rows)}, "
        f"on other schedules {sum(bool(row.schedules) for row in rows)}; "
        f"rank and line right for {sum(row.right and bool(row.on) for row in placed)} of the {len(placed)} that "
        "have to name one; "
        f"false alarms {sum(bool(row.false_alarm) for row in rows)}"
    )
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
