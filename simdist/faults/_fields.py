"""What the fields of faults have to be, once for Python and for scenario files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simdist.faults._operations import ALIASES, OPERATIONS
from simdist.values import (
    PYTHON,
    Dialect,
    Duration,
    Finding,
    ListOf,
    Maybe,
    OneOf,
    Spec,
    Truth,
    Unfit,
    Whole,
    findings_of,
    given_specs,
    specs_of,
)

__all__ = ["DELAY", "EXIT_CODE", "GROUPS", "LIFE", "MOMENT", "NUMBER", "OPERATION", "RANK", "SIDE", "TRUTH"]
__all__ += ["Checked", "Life", "file_key"]


@dataclass(frozen=True, slots=True)
class Life(Spec):
    """A restart round, counted from 0; None, or "every" in a file, for all of them."""

    def check(self, value: Any, dialect: Dialect = PYTHON) -> int | None:
        every, word = ("every", '"every"') if dialect.units else (None, "None")
        if value is None if every is None else isinstance(value, str) and value == every:
            return None
        try:
            life: int = Whole(least=0).check(value, dialect)
        except Unfit:
            text = f"expected a life counted from 0, or {word}, found {dialect.found(value)}"
            raise Unfit([Finding((), text)]) from None
        return life


RANK = Whole()  # whether the world has it is for `problems_of` to say
MOMENT = Maybe(Duration())
DELAY = Duration()
NUMBER = Maybe(Whole())
OPERATION = Maybe(OneOf(OPERATIONS, tuple(ALIASES), noun="operation"))
SIDE = OneOf(("before", "during", "after"))
LIFE = Life()
EXIT_CODE = Maybe(Whole(least=-(2**31), most=2**31 - 1))  # what `os._exit` takes
GROUPS = ListOf(ListOf(RANK, of="ranks"), of="groups of ranks")
TRUTH = Truth()


class Checked:
    """A fault whose fields have specs. Numbers of numpy become Python's, lists tuples; what does not fit stays.

    It is told when the fault is given to a world, with all other problems.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, spec, value in given_specs(self):
            with contextlib.suppress(Unfit):
                object.__setattr__(self, name, spec.check(value))

    def misfits(self) -> Mapping[str, tuple[Finding, ...]]:
        """What is wrong with each field by itself; fields that are fine are left out."""
        found = {name: findings_of(spec, getattr(self, name)) for name, spec in specs_of(type(self)).items()}
        return {name: findings for name, findings in found.items() if findings}


def file_key(field: str) -> str:
    """The key in a scenario file for a field of a fault."""
    return {"at_step": "step"}.get(field, field.removesuffix("_ns"))
