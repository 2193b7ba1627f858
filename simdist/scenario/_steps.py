"""Counts the steps that a program loses by its restarts."""

from __future__ import annotations

from collections.abc import Sequence

from simdist.result import Event
from simdist.trace import events_of

__all__ = ["lost_steps", "lost_words"]


def lost_steps(events: Sequence[Event]) -> int:
    """Return the most steps that one restart made the ranks repeat, if they name their steps (`simdist.step`).

    A life that names no step has lost nothing: it may have had nothing left to do.
    """
    lost = reached = 0
    life = 0
    first: int | None = None
    for event in events_of(events, "restart", "step"):
        if event.kind == "restart":
            if first is not None:
                lost = max(lost, reached - first)
            life, first = life + 1, None
        elif event.kind == "step":
            step = int(str(event.data["step"]))
            if life and first is None:
                first = step
                lost = max(lost, reached - first)
            reached = max(reached, step)  # the number done
    return lost


def lost_words(lost: int, bound: int) -> str:
    """Return how many steps were lost, and how many may be, in words."""
    return f"{lost} {'step was' if lost == 1 else 'steps were'} lost to a restart, at most {bound}"
