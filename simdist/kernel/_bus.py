"""The one seam for everything that watches or interferes.

Before an effect happens, the layer that causes it announces a typed, frozen event and acts on the verdict. An
interceptor subscribes to one event type; the first verdict that is not `PASS` decides. With no interceptor for a type
the layer skips even building the event: it asks `wants` first, a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["PASS", "Bus", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an announced effect.

    `delay_ns` holds it back; `drop` loses it; `strike` is called before, during or after it (`when`), and may kill or
    stop the very task that causes it; `error` is raised in its place, after a delay and a strike before it.
    """

    delay_ns: int = 0
    drop: bool = False
    error: BaseException | None = None
    strike: Callable[[], None] | None = None
    when: Literal["before", "during", "after"] = "before"


PASS = Verdict()

Interceptor = Callable[[Any], Verdict]


class Bus:
    """Announcements and those who judge them."""

    def __init__(self) -> None:
        self._interceptors: dict[type, list[Interceptor]] = {}
        self.active = False  # true once anyone intercepts anything

    def intercept(self, kind: type, interceptor: Interceptor) -> None:
        """Ask `interceptor` about every announced event of exactly the type `kind`, after those already there."""
        self._interceptors.setdefault(kind, []).append(interceptor)
        self.active = True

    def wants(self, kind: type) -> bool:
        """True if anyone judges events of this type."""
        return kind in self._interceptors

    def announce(self, event: object) -> Verdict:
        """Put `event` to its interceptors; the first verdict other than `PASS` is the answer."""
        for interceptor in self._interceptors.get(type(event), ()):
            verdict = interceptor(event)
            if verdict is not PASS:
                return verdict
        return PASS
