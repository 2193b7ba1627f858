"""The specs of faults' fields, one for Python, scenario files and docs; see `fields_of`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import numbers
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simdist.faults._operations import ALIASES, EFFECTS, OPERATIONS, STORAGE, STORE
from simdist.values import (
    PYTHON,
    Dialect,
    Duration,
    Finding,
    ListOf,
    Maybe,
    Number,
    OneOf,
    Spec,
    Text,
    Truth,
    Unfit,
    Whole,
)

__all__ = ["COMMON", "COUNT", "DELAY", "DEVICE_ERROR", "DISKS", "EXIT_CODE", "GROUPS", "LIFE", "MOMENT", "NAME"]
__all__ += [
    "OFFSET",
    "OPERATION",
    "PART",
    "PERIOD",
    "POINT",
    "PROBABILITY",
    "RANK",
    "SHARE",
    "SHORT_KEYS",
    "SIDE",
    "STEP",
]
__all__ += ["TRUTH", "Field", "Life", "Offset", "Rank", "Share", "fields_of", "file_key", "kind_name", "ranks_in"]


@dataclass(frozen=True, slots=True)
class Rank(Whole):
    """A rank; whether the world has it is reported with the problems of the fault."""


@dataclass(frozen=True, slots=True)
class Life(Spec):
    """A restart round, counted from 0; None, or "every" in a file, for all of them."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> int | None:
        every, word = ("every", '"every"') if dialect.units else (None, "None")
        if value is None if every is None else isinstance(value, str) and value == every:
            return None
        try:
            life: int = Whole(least=0).check(value, dialect)
        except Unfit:
            text = f"expected a life counted from 0, or {word}, found {dialect.found(value)}"
            raise Unfit([Finding((), text)]) from None
        return life


@dataclass(frozen=True, slots=True)
class _Part(Number):
    """A number greater than 0 and at most 1, called by the `noun`."""

    above: float | None = 0
    noun: str = "part"

    def check(self, value: object, dialect: Dialect = PYTHON) -> float:
        number = Number.check(self, value, dialect)
        if number > 1:
            raise Unfit([Finding((), f"{number:g} is no {self.noun}; the most is 1")])
        return number


@dataclass(frozen=True, slots=True)
class Offset(Spec):
    """A duration in one direction or the other: "-3ms" in a file, nanoseconds in Python."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> int:
        back = False
        if isinstance(value, str) and dialect.units:
            back, value = value.startswith("-"), value.removeprefix("-")
        elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
            back, value = value < 0, abs(int(value))
        size_ns: int = Duration().check(value, dialect)
        return -size_ns if back else size_ns


@dataclass(frozen=True, slots=True)
class Share(Number):
    """A number from 0 to 1."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> float:
        number = Number.check(self, value, dialect)
        if not 0 <= number <= 1:
            raise Unfit([Finding((), f"{number:g} is no share; expected a number from 0 to 1")])
        return number


@dataclass(frozen=True, slots=True)
class _Anything(Spec):
    """Any value; the fault's class checks it."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> Any:
        return value


RANK = Rank()
MOMENT = Maybe(Duration())
DELAY = Duration()
PERIOD = Maybe(Duration())  # problems() reports one that is not greater than 0
COUNT = Maybe(Whole())  # likewise
STEP = Maybe(Whole())  # likewise
OPERATION = Maybe(OneOf(OPERATIONS, (*ALIASES, *EFFECTS, STORAGE, STORE), noun="operation"))
POINT = Maybe(Text(title=True))
NAME = Text(title=True)
SIDE = OneOf(("before", "during", "after"))
PROBABILITY = Maybe(_Part(noun="probability"))
PART = _Part(noun="share")
SHARE = Share()
OFFSET = Offset()
LIFE = Life()
EXIT_CODE = Maybe(Whole(least=-(2**31), most=2**31 - 1))  # the codes of `os._exit`
GROUPS = ListOf(ListOf(RANK, of="ranks"), of="groups of ranks")
TRUTH = Truth()
DISKS = OneOf(("own", "empty", "swapped"))
DEVICE_ERROR = OneOf(("ecc", "lost", "oom"))
COMMON = ("name", "after", "optional")  # the fields that every fault has
SHORT_KEYS = {"at_step": "step", "at_point": "point"}  # a scenario file and the fixture `sim` take both words


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a fault: the spec of its values, and its default; `...` if it has none."""

    spec: Spec
    default: Any


def fields_of(kind: type) -> Mapping[str, Field]:
    """Return the fields of a class of faults: first those without a default, last those that all faults have.

    The spec of a field is next to its type, `Annotated[int, RANK]`, or follows from the type: a whole number, a number,
    a text, a truth, each also with `| None`; a whole number whose name ends in `_ns` is a duration. Any other type
    takes any value.
    """
    known = kind.__dict__.get("_described")
    if known is None:
        specs = _specs(kind)
        found = {each.name: Field(specs[each.name], _default(each)) for each in dataclasses.fields(kind)}
        known = dict(sorted(found.items(), key=lambda item: (item[0] in COMMON, item[1].default is not ...)))
        # On the class, not in a cache: classes of a scenario's folder are imported anew for each load.
        kind._described = known  # type: ignore[attr-defined]
    fields: Mapping[str, Field] = known
    return fields


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return ... if field.default_factory is dataclasses.MISSING else field.default_factory()


def _specs(kind: type) -> dict[str, Spec]:
    specs: dict[str, Spec] = {}
    for base in reversed(kind.__mro__):
        for name, hint in _hints(base).items():
            specs[name] = _spec(name, hint)
    return specs


def _hints(base: type) -> Mapping[str, Any]:
    """Return the types of the fields that a class itself adds."""
    names = inspect.get_annotations(base)
    space = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
    found = {}
    for name, hint in names.items():
        found[name] = hint
        if isinstance(hint, str):
            with contextlib.suppress(Exception):  # a name that exists only in the function that defines the class
                found[name] = eval(hint, dict(space), dict(vars(base)))
    return found


def _spec(name: str, hint: Any) -> Spec:
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, Spec):
            return each
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    inner = [part for part in parts if part is not type(None)]
    spec = _PLAIN.get(inner[0]) if len(inner) == 1 and isinstance(inner[0], type) else None
    if spec is None:
        return _Anything()
    if inner[0] is int and name.endswith("_ns"):
        spec = Duration()
    return Maybe(spec) if len(inner) < len(parts) else spec


_PLAIN: Mapping[type, Spec] = {bool: Truth(), int: Whole(), float: Number(), str: Text()}


def file_key(field: str) -> str:
    """Return the key in a scenario file for a field of a fault."""
    return SHORT_KEYS.get(field, field.removesuffix("_ns"))


def kind_name(class_name: str) -> str:
    """Return a class's name as scenario files and events write it: "link_delay"."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", class_name).lower()


def ranks_in(spec: Spec, value: object) -> Iterator[int]:
    """Yield the ranks that a value names, if its spec is one of ranks; the value may be wrong."""
    if isinstance(spec, Maybe):
        yield from ranks_in(spec.spec, value)
    elif isinstance(spec, ListOf) and isinstance(value, list | tuple):
        for item in value:
            yield from ranks_in(spec.each, item)
    elif isinstance(spec, Rank) and isinstance(value, int) and not isinstance(value, bool):
        yield value
