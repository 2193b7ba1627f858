"""Small wordings that problems, evidence and reports share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["found", "guess", "guess_or_list", "rank_text", "shortened", "without_source"]


def guess(word: str, known: Iterable[str]) -> str:
    """The text "; did you mean 'x'?" if one of `known` is close to `word`, else nothing."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def guess_or_list(word: str, known: Iterable[str]) -> str:
    """As `guess`; with nothing close, all of `known`."""
    names = list(known)
    return guess(word, names) or f"; known: {', '.join(names)}"


def found(value: object) -> str:
    """What `value`, as TOML gave it, is in plain words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {shortened(repr(value), 60)}"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return f"the {type(value).__name__} {value}"


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


def shortened(text: str, length: int) -> str:
    """`text` on one line and within `length` characters; what is left out shows as "..."."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def without_source(message: str) -> str:
    """`message` without the place in C++ that torch and Gloo put before it in brackets, which varies with the build."""
    return re.sub(r"^\[[^\]\s]+\.\w+:\d+\]\s*", "", message)
