"""The call of a function's sweep, as text that repeats one of its crashes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simdist.faults import Fault

__all__ = ["Call", "call_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """`simdist.sweep(function, **given)`. `module` has the `function`; None if the function can't be found by its name.

    `given` are the arguments as Python text, "..." for values without one.
    """

    module: str | None
    function: str
    given: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """True if Python can run it as it stands here."""
        return self.module is not None and "..." not in self.given.values()

    def text(self, faults: Sequence[Fault]) -> str:
        """Return the call that tries only these faults."""
        function = self.function if self.module in (None, "__main__") else f"{self.module}.{self.function}"
        return self.with_function(function, faults)

    def with_function(self, function: str, faults: Sequence[Fault]) -> str:
        """Return the same call, with the function by another name."""
        arguments = [function, *(f"{name}={text}" for name, text in self.given.items()), f"only={list(faults)!r}"]
        return f"simdist.sweep({', '.join(arguments)})"


def call_of(function: Callable[..., object], given: Mapping[str, object]) -> Call:
    """Return the call of a sweep with these arguments."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", None)
    return Call(None if "<" in name else module, name, {key: _text(value) for key, value in given.items()})


def _text(value: Any) -> str:
    hosts = getattr(value, "hosts", None)
    if hosts is not None:
        import simdist

        size = len(value.placement)
        usual = repr(simdist.cluster.make(size, hosts=len(hosts))) == repr(value)
        return f"simdist.cluster.make({size}, hosts={len(hosts)})" if usual else "..."
    text = repr(value)
    return "..." if text.startswith("<") or re.search(r" at 0x[0-9a-f]+>", text) else text
