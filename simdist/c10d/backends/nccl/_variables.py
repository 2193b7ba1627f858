"""How torch reads a variable of the environment (`getCvarInt`, `getCvarBool`, `getCvarString`, torch 2.13)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from simdist.inside.torch import Place

__all__ = ["Variables", "stoi"]

_YES = ("y", "yes", "1", "t", "true")
_NO = ("n", "no", "0", "f", "false")
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_INT_MAX = 2**31 - 1
_OLD = {"string": Place.OLD_STRING, "number": Place.OLD_NUMBER, "truth": Place.OLD_TRUTH}


class Variables:
    """The variables of a process. `warn` gets torch's warnings: a key (for a warning that is given once), text, place.

    A variable may have older names. The newest name comes first and takes precedence; the values of all must be valid.
    """

    def __init__(self, environ: Mapping[str, str], warn: Callable[[str, str, Place], None]) -> None:
        self._environ = environ
        self._warn = warn

    def warn(self, key: str, text: str, place: Place) -> None:
        """Warn of a variable's setting, once for each key."""
        self._warn(key, text, place)

    def _said(self, kind: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return the names that are set, and their values, the oldest name first."""
        found = [(name, self._environ[name]) for name in reversed(names) if name in self._environ]
        for name, _ in found:
            if name != names[0]:
                text = f"Environment variable {name} is deprecated; use {names[0]} instead"
                self._warn(f"old {kind}", text, _OLD[kind])
        return found

    def text(self, default: str, *names: str) -> str:
        """Return a string."""
        said = self._said("string", names)
        return said[-1][1] if said else default

    def number(self, default: int, *names: str) -> int:
        """Return an integer, read as by C++'s `stoi`.

        Raises:
            RuntimeError: the value has no digits, or too many.
        """
        for name, value in self._said("number", names):
            try:
                default = stoi(value)
            except ValueError:
                raise _invalid(name) from None
        return default

    def truth(self, default: bool, *names: str) -> bool:
        """Return a truth value.

        Raises:
            RuntimeError: the value means neither yes nor no.
        """
        for name, value in self._said("truth", names):
            if value.lower() not in (*_YES, *_NO):
                raise _invalid(name)
            default = value.lower() in _YES
        return default

    def flag(self, name: str) -> bool | None:
        """Return the truth of a variable that is 0 or 1 (`check_env`); other values cause a warning and are ignored."""
        value = self._environ.get(name)
        if value in (None, "0", "1"):
            return None if value is None else value == "1"
        text = f"Ignoring invalid value for boolean flag {name}: {value}valid values are 0 or 1."
        self._warn("", text, Place.NO_FLAG)
        return None


def _invalid(name: str) -> RuntimeError:
    return RuntimeError(f"Invalid value for environment variable: {name}")


def stoi(text: str) -> int:
    """Return the integer at the beginning of a text, as C++'s `stoi` does.

    Raises:
        ValueError: there are no digits, or too many.
    """
    match = _INTEGER.match(text)
    number = int(match[1]) if match else _INT_MAX + 1
    if not -_INT_MAX - 1 <= number <= _INT_MAX:
        raise ValueError("stoi")
    return number
