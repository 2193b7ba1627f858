from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdist.scenario import format_duration, parse_bandwidth, parse_duration
from simdist.values import parse_size

NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3ms", 3_000_000),
        ("1.5s", 1_500_000_000),
        ("250us", 250_000),
        ("250 µs", 250_000),
        ("30min", 1_800_000_000_000),
        ("2h", 7_200_000_000_000),
        ("0s", 0),
        ("0.000000001s", 1),
        ("0.1s", 100_000_000),
        (17, 17),
    ],
)
def test_durations_are_exact_nanoseconds(text: object, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "3", "ms", "-3ms", "3 parsecs", "1e3s", "3ms ms", "\u0661s", None, True, 1.5, -1, ["3ms"]]
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"no duration|negative"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "why"), [("0.5ns", "finer than a nanosecond"), ("9999999h", "longer than")])
def test_durations_that_virtual_time_has_not_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_duration(text)


@given(st.integers(0, 10**6), st.integers(0, 999_999_999), st.sampled_from(sorted(NANOSECONDS)))
def test_a_duration_is_its_decimal_times_its_unit_or_refused(whole: int, decimals: int, unit: str) -> None:
    text = f"{whole}.{decimals:09d}{unit}"
    exact = Fraction(f"{whole}.{decimals:09d}") * NANOSECONDS[unit]

    if exact.denominator == 1 and exact < 2**63:
        assert parse_duration(text) == exact
    else:
        with pytest.raises(ValueError, match=r"finer than|longer than"):
            parse_duration(text)


@given(st.integers(0, 2**63 - 1))
def test_a_formatted_duration_reads_back(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    ("duration_ns", "expected"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.5 us"),
        (3_000_001, "3.000001 ms"),
        (90_000_000_000, "90 s"),
        (1_800_000_000_000, "30 min"),
        (1_800_000_000_001, "1800.000000001 s"),
    ],
)
def test_durations_are_shown_in_their_largest_unit(duration_ns: int, expected: str) -> None:
    assert format_duration(duration_ns) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25Gbit/s", 3_125_000_000),
        ("1GB/s", 1_000_000_000),
        ("100MiB/s", 104_857_600),
        ("0.5 kB/s", 500),
        ("8bit/s", 1),
        (4096, 4096),
    ],
)
def test_bandwidths_are_exact_bytes_per_second(text: object, expected: int) -> None:
    assert parse_bandwidth(text) == expected


@pytest.mark.parametrize(
    "text", ["25Gbit", "GB/s", "1 furlong/s", "1bit/s", "0GB/s", 0, -5, False, 1.5, "9" * 28 + "TB/s"]
)
def test_what_is_no_bandwidth_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"no bandwidth|whole number|lets nothing|more than"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("80GiB", 80 << 30), ("512MB", 512_000_000), ("1.5 KiB", 1536), ("7B", 7), (12, 12)]
)
def test_sizes_are_exact_bytes(text: object, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("80", "is no size; write '80GiB', '512MB', '16KiB'"),
        ("80GiB/s", "is no size"),
        (True, "is no size"),
        ("0B", "a size is at least 1B"),
        ("0.5B", "is not a whole number of bytes"),
        ("9999999999TB", "is more than simdist can count"),
    ],
)
def test_what_is_no_size_is_reported(text: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_size(text)
