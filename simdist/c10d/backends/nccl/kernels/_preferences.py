"""NCCL's own variables that limit its choice (NCCL_ALGO, NCCL_PROTO, channels, threads, buffers), and its errors.

A list names the allowed values for all functions, or after `^` the forbidden ones. Further entries, after `;`, are for
one function: `NCCL_ALGO=ring,tree;allreduce:tree` (graph/tuning.cc of NCCL 2.29.7). A function without an allowed value
fails when it is called; unknown words fail when a communicator is made. Numbers of channels limit over how many
channels a call's bytes are spread, but do not change the bandwidth in NCCL's model (graph/connect.cc). So do threads:
each needs its share of the bytes before another channel is used. Buffers limit how much of a chunk goes around at once
(init.cc).

In doubt: a real NCCL whose ranks have different values hangs or mixes data up; here such values are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simdist.c10d.backends.nccl._errors import nccl_error
from simdist.c10d.calls import KERNELS
from simdist.errors import UnsupportedError
from simdist.inside.torch import NCCL, NcclPlace

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._options import NcclConfig
    from simdist.c10d.calls._operation import Operation

__all__ = ["Preferences", "preferences"]

_FUNCTIONS = {name: function for name, function in KERNELS.items() if name != "barrier"}
_ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
_SWITCHES = frozenset(("collnetdirect", "nvls", "pat"))
_POSSIBLE = {name: frozenset(("ring",)) for name in _FUNCTIONS}
_POSSIBLE |= dict.fromkeys(("all_gather", "reduce_scatter"), _SWITCHES | {"ring"})
_POSSIBLE["all_reduce"] = frozenset(_ALGORITHMS) - {"pat"}
_SIMULATED = frozenset(("ring", "tree"))
_CHANNELS = 64  # at most
_LISTS = ("NCCL_ALGO", "NCCL_PROTO")
_NUMBERS = (
    *("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
)
_THREADS = {"ll": ("NCCL_NTHREADS", 64, 512), "ll128": ("NCCL_LL128_NTHREADS", 160, 640)}  # at least, at most
_THREADS["simple"] = _THREADS["ll"]
_BUFFERS = {"ll": "NCCL_LL_BUFFSIZE", "ll128": "NCCL_LL128_BUFFSIZE", "simple": "NCCL_BUFFSIZE"}
_THRESHOLDS = "NCCL_THREAD_THRESHOLDS"
_SIZES = ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS", *_BUFFERS.values())
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)")
_LONGS = re.compile(r"(?:\s*[+-]?\d+)*")  # as sscanf reads them
_TYPES = {
    "int8": "Int8",
    "int32": "Int32",
    "int64": "Int64",
    "float16": "Float16",
    "float32": "Float32",
    "float64": "Float64",
    "bfloat16": "Bfloat16",
    "float8_e4m3fn": "Float8e4m3",
    "float8_e5m2": "Float8e5m2",
}
Lists = Mapping[str, frozenset[str]]  # the allowed values, by operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The settings of a rank's environment and its group's config; None where nothing is set.

    Example:
        >>> found = Preferences.read({"NCCL_ALGO": "ring;allreduce:^ring", "NCCL_MAX_NCHANNELS": "2"})
        >>> found.allows("broadcast", "ring", "ll"), found.allows("all_reduce", "ring", "ll"), found.channels(12)
        (True, False, 2)
    """

    algorithms: Lists | None = None
    protocols: Lists | None = None
    least: int = 0  # channels
    most: int = _CHANNELS
    said: str = ""  # the lists, as NCCL prints them in its errors
    sizes: tuple[tuple[str, int], ...] = ()  # of threads and buffers, by variable
    thresholds: tuple[int, ...] = ()  # bytes for each thread: a tree's by protocol, and a ring's

    @classmethod
    def read(cls, environ: Mapping[str, str], config: type | NcclConfig | None = None) -> Preferences:
        """Read `environ` and the config of a group.

        Raises:
            DistBackendError: a list has a word that NCCL does not know; with NCCL's text.
        """
        said = "".join(f" {name} was set to {environ[name]}." for name in _LISTS if name in environ)
        numbers = {name: number for name in _NUMBERS if (number := _number(environ.get(name, ""))) is not None}
        least = numbers.get("NCCL_MIN_NCHANNELS", numbers.get("NCCL_MIN_NRINGS", 0))
        most = numbers.get("NCCL_MAX_NCHANNELS", numbers.get("NCCL_MAX_NRINGS", _CHANNELS))
        blocks = [getattr(config, "min_ctas", 0), getattr(config, "max_ctas", 0)]
        for place, name in enumerate(("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
            if numbers.get(name, 0) > 0:
                blocks[place] = numbers[name]
        lowest, highest = (each if each > 0 else None for each in blocks)
        return cls(
            algorithms=_parsed(environ.get("NCCL_ALGO"), _ALGORITHMS),
            protocols=_parsed(environ.get("NCCL_PROTO"), _PROTOCOLS),
            least=min(max(least, lowest or 0, 0), _CHANNELS),
            most=max(1, min(most, highest or _CHANNELS, _CHANNELS)),
            said=said,
            sizes=tuple((name, size) for name in _SIZES if (size := _number(environ.get(name, ""))) is not None),
            thresholds=tuple(int(each) for each in _LONGS.match(environ.get(_THRESHOLDS, ""))[0].split()[:6]),  # type: ignore[index]  # matches anything
        )

    def threads(self, protocol: str, found: int) -> int:
        """Return how many threads a channel has; `found` is the default (`getNthreads`)."""
        name, least, most = _THREADS[protocol]
        asked = dict(self.sizes).get(name, 0)
        if asked <= 0:
            return found
        return most if asked % 32 else min(max(asked, least), most)

    def bytes_per_thread(self, algorithm: str, protocol: str, found: int) -> int:
        """Return how many bytes a thread needs; `found` is the default."""
        place = 3 * (algorithm == "ring") + tuple(_BUFFERS).index(protocol)
        asked = self.thresholds[place] if place < len(self.thresholds) else -1
        return found if asked < 0 else asked

    def loop_bytes(self, protocol: str, found: int) -> int:
        """Return how many bytes of a chunk go around at once: a share of the buffer, or `found` by default."""
        buffer = dict(self.sizes).get(_BUFFERS[protocol], -2)
        if buffer <= 0:
            return found
        step = buffer // 8
        return {"ll": step // 2, "ll128": step // 16 * 15, "simple": step * 4}[protocol]

    def channels(self, found: int) -> int:
        """Return how many channels a communicator has if its graph has `found`."""
        return max(min(found, self.most), self.least)

    def allows(self, operation: str, algorithm: str, protocol: str) -> bool:
        """True if an operation may use the algorithm and the protocol."""
        return (self.algorithms is None or algorithm in self.algorithms[operation]) and (
            self.protocols is None or protocol in self.protocols[operation]
        )

    def forces(self, operation: str, protocol: str) -> bool:
        """True if a protocol is requested, which then also applies where NCCL would not choose it."""
        return self.protocols is not None and protocol in self.protocols[operation]

    def require(self, operation: Operation) -> None:
        """Refuse an operation without an allowed algorithm or protocol.

        Raises:
            DistBackendError: with NCCL's text.
            UnsupportedError: only algorithms of switches are allowed.
        """
        name = "all_reduce" if operation.name == "barrier" else operation.name
        if name not in _FUNCTIONS:
            return
        left = _POSSIBLE[name] if self.algorithms is None else _POSSIBLE[name] & self.algorithms[name]
        if not left or (self.protocols is not None and not self.protocols[name]):
            kind = "Float32" if operation.name == "barrier" else _TYPES.get(operation.dtype_name)
            raise nccl_error(
                "ncclInvalidUsage",
                f"{NCCL.no_algorithm} for function {_FUNCTIONS[name]} with datatype "
                f"{'Unknown' if kind is None else f'nccl{kind}'}.{self.said}",
                NcclPlace.NOTHING_LEFT,
            )
        if not left & _SIMULATED:
            raise UnsupportedError(
                f"{self.said.strip()} That leaves {_FUNCTIONS[name]} to {', '.join(sorted(left))}, which switches do "
                "and are not simulated; allow Ring or Tree as well"
            )


def preferences(config: NcclConfig) -> Preferences | None:
    """Return the preferences of the calling rank and its group's config; None if nothing is set."""
    environ = os.environ
    said = any(name in environ for name in (*_LISTS, *_NUMBERS, *_SIZES, _THRESHOLDS))
    if not said and config.min_ctas <= 0 and config.max_ctas <= 0:
        return None
    return Preferences.read(environ, config)


def _number(text: str) -> int | None:
    """Return the number as C's strtoll reads it; None for an empty text."""
    if not text:
        return None
    match = _NUMBER.match(text)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    if base == 8:
        digits = re.match(r"[0-7]+", digits)[0]  # type: ignore[index]  # it begins with a 0
    return int(digits, base) * (-1 if match[1] == "-" else 1)


def _parsed(text: str | None, known: Iterable[str]) -> Lists | None:
    entries = [entry for entry in (text or "").split(";") if entry]
    if not entries:
        return None
    assert text is not None
    every = frozenset(known)
    found: dict[str, frozenset[str]] = {}
    for entry in entries:
        words = [each for each in entry.split(":") if each]
        if len(words) < 2 and (entry is not entries[0] or text[0] == ";"):
            raise _refused(f'All entries except the first must have a prefix: "{text}"', NcclPlace.NO_PREFIX)
        names = words[-1] if len(words) < 2 else words[1]
        functions = list(_FUNCTIONS)
        if len(words) > 1:
            functions = [name for name, function in _FUNCTIONS.items() if function.lower() == words[0].lower()]
        banned = names.startswith("^")
        listed = [each for each in names.removeprefix("^").split(",") if each]
        for each in listed:
            if functions and each.lower() not in every:
                raise _refused(f'Unrecognized element token "{each}" when parsing "{text}"', NcclPlace.UNKNOWN_NAME)
        if not functions:
            raise _refused(f'Unrecognized prefix token "{words[0]}" when parsing "{text}"', NcclPlace.UNKNOWN_PREFIX)
        chosen = frozenset(each.lower() for each in listed)
        found |= dict.fromkeys(functions, every - chosen if banned else chosen)
    return {name: found.get(name, every) for name in _FUNCTIONS}


def _refused(warning: str, place: NcclPlace) -> BaseException:
    return nccl_error("ncclInvalidUsage", warning, place)
