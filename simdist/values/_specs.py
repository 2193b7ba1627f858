"""Specs: what one value has to be."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import math
import numbers
import os
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from simdist.values._plain import awkward_character
from simdist.values._units import LONGEST_NS, parse_bandwidth, parse_duration, parse_size
from simdist.values._words import brief, found, guess, place, shown

__all__ = ["FILE", "JSON", "PYTHON", "WORLD_SIZE", "Bandwidth", "Dialect", "Duration", "Either", "Environment"]
__all__ += ["Finding", "Function", "Instance", "ListOf", "Maybe", "Moment", "Number", "OneOf", "Size", "Spec"]
__all__ += ["TableOf", "Text", "Truth", "Unfit", "Whole", "findings_of", "items_of", "settle_fields", "specs_of"]

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words for a value and for what it should be, in the language in which the user wrote it."""

    found: Callable[[object], str]
    text: str
    truth: str
    list: str
    table: str
    units: bool  # durations and bandwidths are texts with a unit, or plain counts


FILE = Dialect(found, "a text in quotes", "true or false", "a list", "a table", units=True)
JSON = Dialect(found, "a text", "true or false", "a list", "a table", units=False)
PYTHON = Dialect(shown, "a text", "True or False", "a sequence", "a mapping", units=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where inside the value."""

    path: _Path
    text: str


class Unfit(ValueError):
    """The error of a value that is not what it has to be. `findings` says why."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(self.findings)

    def __str__(self) -> str:
        return "; ".join(finding.text for finding in self.findings)


def _unfit(text: str) -> Unfit:
    return Unfit([Finding((), text)])


class Spec(ABC):
    """What one value has to be."""

    @abstractmethod
    def check(self, value: object, dialect: Dialect = PYTHON) -> object:
        """The value as plain data: Python's own numbers, tuples for lists.

        Raises:
            Unfit: it is something else.
        """


def findings_of(spec: Spec, value: object, dialect: Dialect = PYTHON) -> tuple[Finding, ...]:
    """What is wrong with the value; nothing if it fits."""
    try:
        spec.check(value, dialect)
    except Unfit as unfit:
        return unfit.findings
    return ()


def specs_of(described: type) -> Mapping[str, Spec]:
    """The specs at the fields of a dataclass, written as `Annotated[int, Whole(least=0)]`."""
    return _specs_of(described)


def settle_fields(described: object) -> list[str]:
    """Replace each field of a frozen object, unless it is the default, by what its spec returns; returns problems."""
    kind: type = type(described)
    problems: list[str] = []
    for name, spec, default in _with_defaults(kind):
        value = getattr(described, name)
        if value is default:
            continue
        try:
            object.__setattr__(described, name, spec.check(value))
        except Unfit as unfit:
            problems += [f"{place((name, *finding.path))}: {finding.text}" for finding in unfit.findings]
    return problems


@functools.cache
def _with_defaults(described: type) -> tuple[tuple[str, Spec, Any], ...]:
    defaults = {field.name: field.default for field in dataclasses.fields(described)}
    return tuple((name, spec, defaults[name]) for name, spec in _specs_of(described).items())


@functools.cache
def _specs_of(described: Any) -> Mapping[str, Spec]:
    hints = typing.get_type_hints(described, include_extras=True)
    return {
        name: spec
        for name, hint in hints.items()
        for spec in getattr(hint, "__metadata__", ())
        if isinstance(spec, Spec)
    }


@dataclass(frozen=True, slots=True)
class Whole(Spec):
    """A whole number of Python or numpy, but not True or False."""

    least: int | None = None
    most: int = 2**63 - 1  # TOML's own integers end here
    why: str = ""  # the reason for `most`

    def check(self, value: object, dialect: Dialect = PYTHON) -> int:
        # First the quick test for an int: recognizing a number of another kind takes longer.
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
            raise _unfit(f"expected a whole number, found {dialect.found(value)}")
        number = int(value)
        if self.least is not None and number < self.least:
            raise _unfit(f"{brief(number)} is too small; the least is {self.least}")
        if number > self.most:
            raise _unfit(f"{brief(number)} is too large; the most is {self.most}{self.why}")
        if self.least is None and number < -self.most:
            raise _unfit(f"{brief(number)} is too small; the least is {-self.most}")
        return number


# By default Linux maps no more threads than this into a process.
WORLD_SIZE = Whole(least=1, most=2**15, why=", for each rank is a thread of this process")


@dataclass(frozen=True, slots=True)
class Number(Spec):
    """A finite number, greater than `above`, and no less than `least`."""

    above: float | None = None
    least: float | None = None

    def check(self, value: object, dialect: Dialect = PYTHON) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise _unfit(f"expected a number, found {dialect.found(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _unfit(f"expected a finite number, found {dialect.found(value)}")
        if self.above is not None and number <= self.above:
            raise _unfit(f"{number:g} is too small; it must be greater than {self.above:g}")
        if self.least is not None and number < self.least:
            raise _unfit(f"{number:g} is too small; the least is {self.least:g}")
        return number


@dataclass(frozen=True, slots=True)
class Truth(Spec):
    """True or False."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> bool:
        if not isinstance(value, bool):
            raise _unfit(f"expected {dialect.truth}, found {dialect.found(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Text(Spec):
    """A text; a `title` has no control characters."""

    title: bool = False

    def check(self, value: object, dialect: Dialect = PYTHON) -> str:
        if not isinstance(value, str):
            raise _unfit(f"expected {dialect.text}, found {dialect.found(value)}")
        awkward = awkward_character(value) if self.title else None
        if awkward is not None:
            raise _unfit(f"control character '{awkward[1]}' at position {awkward[0]}; expected one line of plain text")
        return value


@dataclass(frozen=True, slots=True)
class OneOf(Spec):
    """One of a few texts, which name a `noun`. `more` are valid too, but are not listed in the error."""

    known: tuple[str, ...]
    more: tuple[str, ...] = ()
    noun: str = ""

    def check(self, value: object, dialect: Dialect = PYTHON) -> str:
        if not isinstance(value, str):
            expected = f"the name of an {self.noun}" if self.noun else " or ".join(map(repr, self.known))
            raise _unfit(f"expected {expected}, found {dialect.found(value)}")
        if value not in self.known and value not in self.more:
            what = f"{self.noun} {brief(value)}" if self.noun else brief(value)
            hint = guess(value, (*self.known, *self.more)) or f"; known: {', '.join(self.known)}"
            raise _unfit(f"unknown {what}{hint}")
        return value


@dataclass(frozen=True, slots=True)
class Duration(Spec):
    """A time or a duration: "3ms" in a file, nanoseconds in Python."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> int:
        if not dialect.units:
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise _unfit(f"expected nanoseconds, a whole number, found {dialect.found(value)}")
            time_ns = int(value)
            if time_ns < 0:
                raise _unfit(f"{brief(time_ns)} ns lies before the start")
            if time_ns >= LONGEST_NS:
                raise _unfit(f"{brief(time_ns)} ns is longer than virtual time can be (292 years)")
            return time_ns
        try:
            return parse_duration(value)
        except ValueError as error:
            raise _unfit(str(error)) from None


@dataclass(frozen=True, slots=True)
class Moment(Spec):
    """A date, or a date and a time, from 1970 to 2099, in UTC unless it has a zone; `check` returns an aware one."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> datetime.datetime:
        if not isinstance(value, datetime.date):
            raise _unfit(f"expected a date or a date and a time, found {dialect.found(value)}")
        moment = value
        if not isinstance(moment, datetime.datetime):
            moment = datetime.datetime(value.year, value.month, value.day)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        try:
            moment = moment.astimezone(datetime.UTC)
        except OverflowError:  # in the first or the last year that Python supports
            raise _unfit(f"{value} lies too far from today; expected a year from 1970 to 2099") from None
        if not 1970 <= moment.year < 2100:
            raise _unfit(f"{value} lies too far from today; expected a year from 1970 to 2099")
        return moment


@dataclass(frozen=True, slots=True)
class Bandwidth(Spec):
    """A bandwidth: "25Gbit/s" in a file, bytes per second in Python."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> int:
        if not dialect.units:
            return Whole(least=1).check(value, dialect)
        try:
            return parse_bandwidth(value)
        except ValueError as error:
            raise _unfit(str(error)) from None


@dataclass(frozen=True, slots=True)
class Size(Spec):
    """An amount of memory: "80GiB" in a file, bytes in Python."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> int:
        if not dialect.units:
            return Whole(least=1).check(value, dialect)
        try:
            return parse_size(value)
        except ValueError as error:
            raise _unfit(str(error)) from None


@dataclass(frozen=True, slots=True)
class Either(Spec):
    """A value of another spec, or one of a few words."""

    words: tuple[str, ...]
    spec: Spec

    def check(self, value: object, dialect: Dialect = PYTHON) -> object:
        if not isinstance(value, str):
            return self.spec.check(value, dialect)
        if value not in self.words:
            words = " or ".join(map(repr, self.words))
            raise _unfit(f"{brief(value)} is no number; expected one, or {words}{guess(value, self.words)}")
        return value


@dataclass(frozen=True, slots=True)
class Maybe(Spec):
    """None, or a value of `spec`. Files have no None; there the word `none`, if any, stands for it."""

    spec: Spec
    none: str = ""

    def check(self, value: object, dialect: Dialect = PYTHON) -> object:
        if value is None or (dialect.units and self.none and isinstance(value, str) and value == self.none):
            return None
        return self.spec.check(value, dialect)


@dataclass(frozen=True, slots=True)
class ListOf(Spec):
    """Any number of values in order, each of the spec `each`; `check` returns a tuple."""

    each: Spec
    of: str = ""  # what they are, in the plural

    def check(self, value: object, dialect: Dialect = PYTHON) -> tuple[object, ...]:
        items = items_of(value)
        if items is None:
            of = f" of {self.of}" if self.of else ""
            raise _unfit(f"expected {dialect.list}{of}, found {dialect.found(value)}")
        checked, findings = [], []
        for index, item in enumerate(items):
            try:
                checked.append(self.each.check(item, dialect))
            except Unfit as unfit:
                findings += [Finding((index, *finding.path), finding.text) for finding in unfit.findings]
        if findings:
            raise Unfit(findings)
        return tuple(checked)


def items_of(value: object) -> tuple[object, ...] | None:
    """The items of a sequence or an iterator; None if `value` is neither, or is a text or a mapping."""
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        return None
    try:
        return tuple(value)
    except Exception:  # such as an array without dimensions
        return None


@dataclass(frozen=True, slots=True)
class TableOf(Spec):
    """A mapping from texts to values of the spec `each`; `check` returns a dict."""

    each: Spec

    def check(self, value: object, dialect: Dialect = PYTHON) -> dict[str, object]:
        if not isinstance(value, Mapping):
            raise _unfit(f"expected {dialect.table}, found {dialect.found(value)}")
        checked, findings = {}, []
        for key, item in value.items():
            if not isinstance(key, str):
                findings.append(Finding((), f"expected texts as keys, found {dialect.found(key)}"))
                continue
            try:
                checked[key] = self.each.check(item, dialect)
            except Unfit as unfit:
                findings += [Finding((key, *finding.path), finding.text) for finding in unfit.findings]
        if findings:
            raise Unfit(findings)
        return checked


@dataclass(frozen=True, slots=True)
class Environment(Spec):
    """An environment for the operating system: names and values are texts without NUL, names have no "="."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> dict[str, str]:
        table = {name: str(text) for name, text in TableOf(Text()).check(value, dialect).items()}
        findings = []
        for name, text in table.items():
            if not name or "=" in name:
                findings.append(Finding((name or '""',), "is no name of a variable: it is empty or has a '='"))
            for what, part in (("name", name), ("value", text)):
                if "\0" in part:
                    findings.append(Finding((name,), f"its {what} has a NUL character, which no environment can hold"))
                elif not _encodable(part):
                    findings.append(Finding((name,), f"its {what} has a character that no environment can hold"))
        if findings:
            raise Unfit(findings)
        return table


@dataclass(frozen=True, slots=True)
class Function(Spec):
    """Something to call."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> Callable[..., object]:
        if not callable(value):
            raise _unfit(f"expected a function, found {dialect.found(value)}")
        called = value.func if isinstance(value, functools.partial) else value
        code = getattr(called, "__code__", None)
        if isinstance(code, CodeType):
            self._check_kind(code)
        return value

    @staticmethod
    def _check_kind(code: CodeType) -> None:
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise _unfit(f"expected an ordinary function, in which asyncio.run may be called; {code.co_name} is async")
        if code.co_flags & inspect.CO_GENERATOR:
            raise _unfit(f"expected an ordinary function; {code.co_name} has a yield, so a call only makes a generator")


@dataclass(frozen=True, slots=True)
class Instance(Spec):
    """An object of the class that `kind` returns; `kind` is called only if there is a value."""

    kind: Callable[[], type]
    expected: str

    def check(self, value: object, dialect: Dialect = PYTHON) -> object:
        if not isinstance(value, self.kind()):
            raise _unfit(f"expected {self.expected}, found {dialect.found(value)}")
        return value


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
