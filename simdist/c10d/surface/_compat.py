"""Names and signatures that differ between torch versions. All versions from 2.11 on are supported."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeGuard

import torch
import torch.distributed as dist

from simdist.errors import InternalError, UnsupportedError
from simdist.inside import torch as inside

__all__ = ["REDUCE_NAMES", "ProcessGroup", "Store", "Work", "is_duration", "reduce_name", "said_by", "timeout_ns"]
__all__ += ["whole_ms", "without_news"]

ProcessGroup: Any = dist.ProcessGroup
Store = inside.Store
Work = inside.Work

REDUCE_NAMES: dict[object, str] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


def reduce_name(operation: object) -> str:
    """Return the name of a reduce operation, a `ReduceOp` or its enum; "premul_sum" if it is not in the table."""
    kind = getattr(operation, "op", operation)  # a ReduceOp holds its enum there
    return REDUCE_NAMES.get(kind, "premul_sum")


_UNSET = timedelta(0)


def timeout_ns(options: object, default_ns: int) -> int:
    """Return the timeout of `options`; the group's if they have none, or leave it unset (a negative duration)."""
    timeout = getattr(options, "timeout", None)
    return default_ns if timeout is None or timeout < _UNSET else round(timeout.total_seconds() * 1e9)


def is_duration(value: object) -> TypeGuard[timedelta | float]:
    """True if torch's C++ takes a value as a duration: a timedelta, or seconds as a float, but not as an int."""
    return isinstance(value, timedelta | float)


def whole_ms(value: timedelta | float) -> timedelta:
    """Return a duration as C++ converts it: to whole milliseconds. NaN and too large values become negative."""
    if isinstance(value, timedelta):
        if not value.microseconds % 1000:
            return value
        return timedelta(milliseconds=int(value / timedelta(milliseconds=1)))
    return timedelta(milliseconds=int(value * 1e3)) if math.isfinite(value) and abs(value) < _MOST_S else timedelta.min


_MOST_S = timedelta.max.total_seconds()
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


_NOBODYS = "simdist_asks_for_words"  # a keyword that no function of torch takes


def said_by(function: Callable[..., object], *args: object, **kwargs: object) -> TypeError:
    """Return the error with which a function of torch's C++ refuses arguments of wrong types, without addresses.

    The function never runs: it also gets a keyword that it does not have, and pybind checks all arguments before it
    calls.
    """
    try:
        function(*args, **kwargs, **{_NOBODYS: None})
    except TypeError as error:
        said = str(error).replace(f", {_NOBODYS}=None", "").replace(f"; kwargs: {_NOBODYS}=None", "")
        return TypeError(_ADDRESS.sub("", said))
    raise InternalError(f"{function!r} takes any keyword")


def without_news(made: Any, known: Sequence[str], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return a constructor's arguments without those that are new in a later torch and have a false value.

    `known` are the arguments that simdist knows. An argument that the class's documentation does not name stays, so
    that torch refuses it.

    Raises:
        UnsupportedError: a new argument has a true value.
    """
    documented = made.__init__.__doc__ or ""
    kept = {}
    for name, value in kwargs.items():
        if name in known or not re.search(rf"\b{re.escape(name)}: ", documented):
            kept[name] = value
        elif value:
            raise UnsupportedError(
                f"{made.__name__}({name}={value!r}) is new in torch {torch.__version__} and not simulated; leave it out"
            )
    return kept
