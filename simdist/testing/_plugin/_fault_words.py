"""The keywords by which a test gives a fault to `sim`, and their conversion to fields of the fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from simdist.errors import ArgumentError
from simdist.faults import SHORT_KEYS
from simdist.testing._plugin._settings import nanoseconds
from simdist.values import guess_or_list

__all__ = ["CommonWords", "SpanWords", "Time", "TriggerWords", "fields_from"]

Time = str | int  # "50ms", or nanoseconds


class CommonWords(TypedDict, total=False):
    """Keywords of every fault; see `simdist.faults.Fault`."""

    name: str
    after: str
    optional: bool


class TriggerWords(CommonWords, total=False):
    """When a rank is struck, in the words of scenario files; see `simdist.faults.RankFault`.

    `step` and `point` are short for `at_step` and `at_point`.
    """

    at: Time | None
    period: Time | None
    at_step: int | None
    at_point: str | None
    step: int | None
    point: str | None
    op: str | None
    nth: int | None
    every: int | None
    when: Literal["before", "during", "after"]
    probability: float | None
    life: int | None


class SpanWords(CommonWords, total=False):
    """When a fault begins and ends; see `simdist.faults.LastingFault`."""

    start: Time
    until: Time | None


_FIELDS = {short: field for field, short in SHORT_KEYS.items()}
_TIMES = ("at", "period", "start", "until")


def fields_from(method: str, words: Mapping[str, object], known: type) -> dict[str, Any]:
    """Return the keywords of `method` as fields of a fault.

    Raises:
        ArgumentError: a keyword is unknown, or given by both of its names, or a time is invalid.
    """
    fields: dict[str, Any] = {}
    for word, value in words.items():
        if word not in known.__annotations__:  # a TypedDict's annotations include those of its bases
            hint = guess_or_list(word, known.__annotations__)
            raise ArgumentError("sim", [f"{method}() got an unexpected keyword argument {word!r}{hint}"])
        if word in _TIMES:
            fields[f"{word}_ns"] = None if value is None else nanoseconds(value, word)
        elif _FIELDS.get(word) in words:
            raise ArgumentError(
                "sim", [f"{method}() got {word!r} and {_FIELDS[word]!r}, which are one; give one of them"]
            )
        else:
            fields[_FIELDS.get(word, word)] = value
    return fields
