"""Small wordings that evidence and reports share."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["rank_text", "without_source"]


def rank_text(ranks: Iterable[int]) -> str:
    """ "rank 2", "ranks 0-3", "ranks 0, 2-5": the ranks in order, runs folded."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text or 'none'}"


def without_source(message: str) -> str:
    """`message` without the place in C++ that torch and Gloo put before it in brackets, which varies with the build."""
    return re.sub(r"^\[[^\]\s]+\.\w+:\d+\]\s*", "", message)
