"""Oracles of training: reports of programs by `simdist.state` and `simdist.samples`, and the files on their disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simdist.result import Event
from simdist.scenario._plan import Expectations, Verdict
from simdist.trace import events_of
from simdist.values import brief, rank_text

__all__ = ["judge_training"]

_UNTOLD = "no rank reported its state (simdist.state)"


def judge_training(
    expect: Expectations, events: Sequence[Event], undisturbed: Sequence[Event] | None, folder: str
) -> Iterator[Verdict]:
    """Yield verdicts on states, samples, files and late writes; `folder` is that of the disk."""
    asked = expect.equal_states or expect.same_states_as_without_faults
    reported = len(events_of(events, "state")) if asked else 0
    if expect.equal_states:
        found = _differing_ranks(events) if reported else _UNTOLD
        yield Verdict("equal_states", found is None, found or f"in all of {reported} that ranks reported")
    if expect.same_states_as_without_faults and undisturbed is not None:
        found = _differing_steps(events, undisturbed) if reported else _UNTOLD
        yield Verdict("same_states_as_without_faults", found is None, found or f"all of {reported} that ranks reported")
    if expect.samples_once is not None:
        found = _uneven_samples(events, expect.samples_once)
        yield Verdict("samples_once", found is None, found or f"each of {expect.samples_once} in each epoch")
    if expect.max_files is not None:
        left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if not path.is_dir())
        fine = len(left) <= expect.max_files
        shown = "" if fine else f": {', '.join(left[:3])}{', ...' if len(left) > 3 else ''}"
        yield Verdict("max_files", fine, f"{len(left)}, at most {expect.max_files}{shown}")
    if expect.no_late_writes:
        found = _late_writes(events)
        yield Verdict("no_late_writes", found is None, found or "none")


@dataclass(slots=True)
class _Life:
    """The ranks' reports in one life: for each step the states of each rank, in turn; and its samples."""

    states: dict[tuple[int | None, int], dict[int, Mapping[str, str]]] = field(default_factory=dict)
    samples: dict[int | None, list[tuple[int, int]]] = field(default_factory=dict)
    first_step: int | None = None


def _lives(events: Sequence[Event]) -> list[_Life]:
    lives = [_Life()]
    steps: dict[int, int] = {}
    reported: dict[tuple[int, int | None], int] = {}
    for event in events_of(events, "restart", "step", "state", "samples"):
        life = lives[-1]
        if event.kind == "restart":
            lives.append(_Life())
            steps, reported = {}, {}
        elif event.kind == "step":
            steps[event.rank] = step = int(str(event.data["step"]))
            life.first_step = step if life.first_step is None else min(step, life.first_step)
        elif event.kind == "state":
            here = event.rank, steps.get(event.rank)
            reported[here] = reported.get(here, 0) + 1
            parts: Any = event.data["parts"]
            state = dict(part.split(" ", 1) for part in parts)
            life.states.setdefault((here[1], reported[here]), {})[event.rank] = state
        elif event.kind == "samples":
            here_used: Any = event.data["samples"]
            epoch = int(str(event.data["epoch"]))
            life.samples.setdefault(steps.get(event.rank), []).extend((epoch, each) for each in here_used)
    return lives


def _differing_ranks(events: Sequence[Event]) -> str | None:
    """Return the first place where ranks report different states in the same step; None if there is none."""
    for number, life in enumerate(_lives(events)):
        for (step, _), by_rank in life.states.items():
            first = min(by_rank)
            for rank, state in sorted(by_rank.items()):
                name = _difference(by_rank[first], state)
                if name is not None:
                    return f"{name} differs between ranks {first} and {rank} {_in(step)}{_of(number)}"
    return None


def _differing_steps(events: Sequence[Event], undisturbed: Sequence[Event]) -> str | None:
    """Return where a rank's state first differs from the undisturbed run's, in the same step; None if nowhere."""
    wanted = _lives(undisturbed)[0].states
    for number, life in enumerate(_lives(events)):
        for place, by_rank in life.states.items():
            for rank, state in sorted(by_rank.items()):
                name = _difference(wanted.get(place, {}).get(rank, state), state)
                if name is not None:
                    return f"{name} of rank {rank} is another one than undisturbed {_in(place[0])}{_of(number)}"
    return None


def _uneven_samples(events: Sequence[Event], count: int) -> str | None:
    """Return which samples of an epoch were not used once; None if all `count` of each were.

    Samples from the step on with which the next life begins do not count: that work is undone.
    """
    lives = _lives(events)
    seen: dict[int, dict[int, int]] = {}
    until: float = float("inf")
    for life in reversed(lives):
        for step, samples in life.samples.items():
            if step is None or step < until:
                for epoch, sample in samples:
                    counts = seen.setdefault(epoch, {})
                    counts[sample] = counts.get(sample, 0) + 1
        if life.first_step is not None:
            until = min(until, life.first_step)
    if not seen:
        return "no rank reported samples (simdist.samples)"
    for epoch, counts in sorted(seen.items()):
        often = sorted(sample for sample, times in counts.items() if times > 1)
        if often:
            return f"epoch {epoch}: sample {often[0]} was used {counts[often[0]]} times{_more(often)}"
        if len(counts) != count:
            missing = sorted(set(range(count)) - set(counts))
            text = f", sample {missing[0]} was not{_more(missing)}" if missing else ""
            return f"epoch {epoch}: {len(counts)} samples of {count} were used{text}"
    return None


def _late_writes(events: Sequence[Event]) -> str | None:
    """Return what a process of an earlier life changed; None if none did."""
    late = events_of(events, "late-write")
    if not late:
        return None
    paths = list(dict.fromkeys(str(event.data["path"]) for event in late))
    ranks = rank_text(sorted({event.rank for event in late}))
    return f"{ranks} of life {late[0].data['life']} changed {brief(paths[0])} after the restart{_more(paths)}"


def _difference(left: Mapping[str, str], right: Mapping[str, str]) -> str | None:
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            return name
    return None


def _in(step: int | None) -> str:
    return "before the first step" if step is None else f"in step {step}"


def _of(life: int) -> str:
    return f", after restart {life}" if life else ""


def _more(found: Sequence[object]) -> str:
    return f", and {len(found) - 1} more" if len(found) > 1 else ""
