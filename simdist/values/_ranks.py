"""Ranks, their messages and their programs, as short text."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["number_text", "program_lines", "rank_text", "without_source"]


def rank_text(ranks: Iterable[int]) -> str:
    """ "rank 2", "ranks 0, 1, 3", "ranks 0-5, 7": the ranks in order, each once, runs of three or more folded."""
    ordered = sorted(set(ranks))
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {number_text(ordered) or 'none'}"


def number_text(numbers: Iterable[int]) -> str:
    """ "0-5, 7": the numbers in order, each once, runs of three or more folded."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def without_source(message: str) -> str:
    """`message` without the place in C++, in brackets, that torch and Gloo put first and that varies with the build."""
    return re.sub(r"^\[[^\]\s]+\.\w+:\d+\]\s*", "", message)


def program_lines(started: Iterable[tuple[str, str, int]]) -> tuple[str, ...]:
    """Lines for the starts of programs (name, line, rank): `git, started at train.py:12 by ranks 0-3`."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for name, where, rank in started:
        ranks.setdefault((name, where), []).append(rank)
    return tuple(
        f"{name}, started{f' at {where}' if where else ''} by {rank_text(by)}{_times(by)}"
        for (name, where), by in ranks.items()
    )


def _times(ranks: list[int]) -> str:
    return f", {len(ranks)} times" if len(ranks) > len(set(ranks)) else ""
