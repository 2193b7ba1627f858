"""Text from anywhere, made safe for a terminal, for HTML and for XML.

An escape sequence in a title or an exception can repaint a terminal; XML can't hold most control characters at all, and
a lone surrogate can't be written as UTF-8. They are shown as Python writes them: `\\x1b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["awkward_character", "escaped", "plain", "repr_of", "text_of"]

# Control characters, surrogates, Unicode's own line ends, characters that change the direction of the text after them,
# and codes that are no characters.
_AWKWARD = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def awkward_character(text: str, allowed: str = "") -> tuple[int, str] | None:
    """The position of the first character that is not plain, from 1, and how Python writes it; None if all are."""
    for match in _AWKWARD.finditer(text):
        if match[0] not in allowed:
            return match.start() + 1, escaped(match[0])
    return None


def plain(text: str, allowed: str = "\n\t") -> str:
    """`text` with every character that is not plain written as an escape, except those in `allowed`."""
    return _AWKWARD.sub(lambda match: match[0] if match[0] in allowed else escaped(match[0]), text)


def escaped(characters: Iterable[str]) -> str:
    """Each character as Python's literals write it: a newline is `\\n`."""
    return "".join(each.encode("unicode_escape", "surrogatepass").decode("ascii") for each in characters)


def text_of(error: BaseException | None) -> str:
    """The text of an exception; or a note that it has none, if its own `__str__` raises."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as other:  # user code, which may raise anything
        return f"<no text: its __str__ raised {type(other).__name__}>"


def repr_of(value: object) -> str:
    """`repr(value)`; or a note that there is none, if its own `__repr__` raises."""
    try:
        return repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as other:  # user code; and Python itself, for endless nesting and numbers without end
        return f"<{type(value).__name__}: its __repr__ raised {type(other).__name__}>"
