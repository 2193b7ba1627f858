"""How results and reports look when a notebook or IPython displays them."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Shown"]


class _Printer(Protocol):
    def text(self, text: str, /) -> None: ...


class Shown:
    """Has a text for readers, `str`, which IPython shows in place of all fields."""

    __slots__ = ()

    def __init_subclass__(cls, **rest: object) -> None:
        super().__init_subclass__(**rest)
        # IPython takes the first class that has this or `__repr__`, and every dataclass has the latter.
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:  # IPython's protocol
        printer.text(str(self))
