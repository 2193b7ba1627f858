"""Durations and bandwidths as people write them, to and from exact integers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from simdist.values._words import brief

__all__ = ["LONGEST_NS", "format_duration", "parse_bandwidth", "parse_duration", "parse_size"]

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_PREFIXES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
LONGEST_NS = 2**63  # TOML's own integers end here; 292 years of nanoseconds

_DURATION = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-zµ]+)\s*", re.ASCII)
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*((?:[kKMGT]i?|)B)\s*")
_BANDWIDTH = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*((?:[kKMGT]i?|)(?:bit|B))/s\s*")
_BYTES = {f"{prefix}B": Fraction(factor) for prefix, factor in _PREFIXES.items()}
_BITS = {f"{prefix}bit": Fraction(factor, 8) for prefix, factor in _PREFIXES.items()}


def _amount(value: object, pattern: re.Pattern[str], units: Mapping[str, Fraction], what: str) -> Fraction:
    """The amount in a plain count, or in a text of a number and its unit."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    match = pattern.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"{brief(value)} is no {what}")
    return Fraction(match[1]) * units[match[2]]


def _whole(value: object, amount: Fraction, problems: Mapping[str, bool]) -> int:
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(f"{brief(value)} {problem}")
    return int(amount)


def parse_duration(value: object) -> int:
    """The nanoseconds that `value` stands for: "3ms", "1.5s", "250us", "30min", "2h", or a plain count of nanoseconds.

    Raises:
        ValueError: it is no duration, negative, finer than a nanosecond, or longer than 292 years.
    """
    units = {name: Fraction(size) for name, size in _NANOSECONDS.items()}
    amount = _amount(value, _DURATION, units, "duration; write '3ms', '1.5s', '250us', '30min', '2h'")
    problems = {
        "is negative; a duration is not": amount < 0,
        "is finer than a nanosecond, the unit of virtual time": amount.denominator != 1,
        "is longer than virtual time can be (292 years)": amount >= LONGEST_NS,
    }
    return _whole(value, amount, problems)


def parse_bandwidth(value: object) -> int:
    """The bytes per second that `value` stands for: "25Gbit/s", "1GB/s", "100MiB/s", or a plain count of bytes.

    Raises:
        ValueError: it is no bandwidth, zero, or not a whole number of bytes per second.
    """
    amount = _amount(value, _BANDWIDTH, _BYTES | _BITS, "bandwidth; write '25Gbit/s', '1GB/s', '100MiB/s'")
    problems = {
        "lets nothing through; a bandwidth is at least 1B/s": amount <= 0,
        "is not a whole number of bytes per second": amount.denominator != 1,
        "is more than simdist can count": amount >= LONGEST_NS,
    }
    return _whole(value, amount, problems)


def parse_size(value: object) -> int:
    """The bytes that `value` stands for: "80GiB", "512MB", or a plain count of bytes.

    Raises:
        ValueError: it is no size, zero, or not a whole number of bytes.
    """
    amount = _amount(value, _SIZE, _BYTES, "size; write '80GiB', '512MB', '16KiB'")
    problems = {
        "is no memory; a size is at least 1B": amount <= 0,
        "is not a whole number of bytes": amount.denominator != 1,
        "is more than simdist can count": amount >= LONGEST_NS,
    }
    return _whole(value, amount, problems)


def format_duration(duration_ns: int) -> str:
    """`duration_ns` for people, exact: "1.5 ms", "30 min". `parse_duration` reads it back."""
    if duration_ns >= _NANOSECONDS["min"] and duration_ns % _NANOSECONDS["min"] == 0:
        return f"{duration_ns // _NANOSECONDS['min']} min"
    unit = next((unit for unit in ("s", "ms", "us") if duration_ns >= _NANOSECONDS[unit]), "ns")
    whole, rest = divmod(duration_ns, _NANOSECONDS[unit])
    digits = str(rest).zfill(len(str(_NANOSECONDS[unit])) - 1).rstrip("0") if rest else ""
    return f"{whole}.{digits} {unit}" if digits else f"{whole} {unit}"
