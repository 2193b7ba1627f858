"""Small wordings that all messages about input share."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence

from simdist.values._plain import plain

__all__ = ["brief", "found", "guess", "guess_or_list", "place", "shortened", "shown"]

_LENGTH = 60  # of a value in a message
_LONGEST_GUESS = 100  # letters of a word for which a similar one is looked for


def guess(word: str, known: Iterable[str]) -> str:
    """The text "; did you mean 'x'?" if one of `known` is close to `word`, or has a part more or less, else ""."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6) if len(word) <= _LONGEST_GUESS else []
    close = close or [name for name in names if word and (name.startswith(f"{word}_") or word.startswith(f"{name}_"))]
    return f"; did you mean {close[0]!r}?" if close else ""


def guess_or_list(word: str, known: Iterable[str]) -> str:
    """As `guess`; a list of all `known` if none is close."""
    names = list(known)
    return guess(word, names) or f"; known: {', '.join(names)}"


def found(value: object) -> str:
    """A description of a `value` that TOML or JSON has returned, in plain words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {brief(value)}"
    if isinstance(value, int | float):
        return f"the number {brief(value)}"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return f"the {type(value).__name__} {shortened(plain(str(value)), _LENGTH)}"


def shown(value: object) -> str:
    """A description of a `value` for Python's users: "the text 'x'", "the number 1.5", "the list ['crash']"."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return f"the text {brief(value)}"
    if isinstance(value, int | float):
        return f"the number {brief(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"the {type(value).__name__} {brief(value)}"


def place(path: Sequence[str | int]) -> str:
    """A path as the readers of a file or of a call write it: `faults[1].rank`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in path if part != ""]
    return "".join(parts).removeprefix(".")


def shortened(text: str, length: int) -> str:
    """`text` on one line and within `length` characters; "..." stands for the part that is cut."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def brief(value: object) -> str:
    """`repr(value)` on one line of plain text, at most 60 letters, without addresses; it never raises."""
    if isinstance(value, str) and len(value) > 2 * _LENGTH:
        value = value[: 2 * _LENGTH]
    try:
        text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # user code may raise anything, and Python does for numbers of too many digits
        if isinstance(value, int):
            return f"{'-' if value < 0 else ''}(more than {sys.get_int_max_str_digits():,} digits)"
        return "(its __repr__ raises)"
    return shortened(plain(re.sub(r" at 0x[0-9a-f]+", "", text), ""), _LENGTH)


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_]+", part) else f'"{shortened(plain(part, ""), _LENGTH)}"'
