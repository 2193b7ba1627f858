"""What a record is: a frozen class with named fields, and its packed form, a plain tuple.

Millions are made, and nearly all are only digested and kept. So a layer makes the packed form directly,
`(time_ns, kind, rank, *values)`, by a function that has the parameters of the class; an instance of the class is made
when code reads fields by name. Measured with Python 3.11: `marshal`, on which the digest rests, refuses every subclass
of tuple; and the garbage collector looks at a plain tuple of numbers and texts once, but at an instance of a class as
long as it is kept.

Invariants: values are None, bool, int, float, str, bytes and plain tuples of these, so that equal runs have equal
digests in every process. A name means the same in every kind. Records of one kind differ at most in fields at the end.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, ParamSpec, TypeVar, dataclass_transform

from simdist.values import Spec

__all__ = ["Packed", "Record", "fields_of", "kinds", "packer", "record", "specs", "unpacked"]

Packed = tuple[int, str, int, *tuple[object, ...]]
"""A record as the log keeps it: (time_ns, kind, rank, *values)."""


@dataclass(frozen=True, slots=True)
class Record:
    """Something that happened in a run: to a rank, or with rank -1 to no particular one.

    Example:
        >>> from simdist.records import Slept, slept, unpacked
        >>> slept(5, 0, 1_000)
        (5, 'sleep', 0, 1000)
        >>> unpacked(slept(5, 0, 1_000))
        Slept(time_ns=5, rank=0, duration_ns=1000)
    """

    kind: ClassVar[str] = ""  # as events, files and traces name it

    time_ns: int
    rank: int

    @property
    def packed(self) -> Packed:
        """The record as the log keeps it."""
        time_ns, rank, *values = (getattr(self, each.name) for each in dataclasses.fields(self))
        return (time_ns, self.kind, rank, *values)


_Kind = TypeVar("_Kind", bound=Record)
_Fields = ParamSpec("_Fields")
_COMMON = len(dataclasses.fields(Record))
_classes: dict[str, dict[int, type[Record]]] = {}  # by kind, then by the length of the packed form
_fields: dict[type[Record], Mapping[str, Spec]] = {}  # what `fields_of` has found


@dataclass_transform(frozen_default=True)
def record(kind: str) -> Callable[[type[_Kind]], type[_Kind]]:
    """Decorate the class of the records of a kind. A subclass with more fields at the end may be of the same kind."""

    def describe(cls: type[_Kind]) -> type[_Kind]:
        made = dataclass(frozen=True, slots=True)(cls)
        made.kind = kind
        _classes.setdefault(kind, {})[1 + len(dataclasses.fields(made))] = made
        return made

    return describe


def packer(made: Callable[_Fields, Record]) -> Callable[_Fields, Packed]:
    """The function that makes records of this class, packed. It has the parameters of the class."""
    kind = typing.cast("type[Record]", made)
    first, *others = (each.name for each in dataclasses.fields(kind))
    # Compiled, as `collections.namedtuple` does it: a call and a tuple are all that a record costs.
    source = f"lambda {', '.join((first, *others))}: ({', '.join((first, repr(kind.kind), *others))})"
    function: Callable[_Fields, Packed] = eval(source, {})  # the names are fields of a class, so they are safe
    return function


def unpacked(packed: Packed) -> Record:
    """The record that was packed.

    Raises:
        KeyError: there is no such kind, or it has another number of fields.
    """
    time_ns, kind, *rest = packed
    made: Callable[..., Record] = _classes[kind][len(packed)]
    return made(time_ns, *rest)


def kinds() -> Mapping[str, tuple[type[Record], ...]]:
    """The classes of every kind of record, those with fewer fields first."""
    return {kind: tuple(made for _, made in sorted(found.items())) for kind, found in _classes.items()}


def fields_of(kind: type[Record]) -> Mapping[str, Spec]:
    """The names of the values of a class's records, in their order, and the spec of each, which also holds in files."""
    known = _fields.get(kind)
    if known is None:
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [each.name for each in dataclasses.fields(kind)][_COMMON:]
        known = {name: next(each for each in hints[name].__metadata__ if isinstance(each, Spec)) for name in names}
        _fields[kind] = known
    return known


def specs() -> Mapping[str, Spec]:
    """The spec of the values of every name: a name means the same in every kind."""
    return {name: spec for found in kinds().values() for name, spec in fields_of(found[-1]).items()}
