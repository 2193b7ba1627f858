"""Text from anywhere, made safe for a terminal, for HTML and for XML.

An escape sequence in a title or an exception can repaint a terminal; XML can't hold most control characters at all, and
a lone surrogate can't be written as UTF-8. They are shown as Python writes them: `\\x1b`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

__all__ = ["awkward_character", "escaped", "plain", "text_of"]

# Beside control characters and surrogates: line ends of their own, and what turns the direction of the text after it.
_ODD = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")


def awkward_character(text: str, allowed: str = "") -> tuple[int, str] | None:
    """Where `text` has the first character that is not plain, counted from 1, and how Python writes it; else None."""
    if text.isascii() and text.isprintable():
        return None
    for position, character in enumerate(text, start=1):
        if character not in allowed and _is_awkward(character):
            return position, escaped(character)
    return None


def plain(text: str, allowed: str = "\n\t") -> str:
    """`text` with every character that is not plain written as an escape, but for those in `allowed`."""
    if awkward_character(text, allowed) is None:
        return text
    return "".join(escaped(each) if each not in allowed and _is_awkward(each) else each for each in text)


def escaped(characters: Iterable[str]) -> str:
    """Each character as Python's literals write it: a newline is `\\n`."""
    return "".join(each.encode("unicode_escape", "surrogatepass").decode("ascii") for each in characters)


def text_of(error: BaseException) -> str:
    """What the exception says; or that it can't say it, where its own `__str__` raises."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as other:  # user code, which may raise anything
        return f"<no text: its __str__ raised {type(other).__name__}>"


def _is_awkward(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _ODD
