from __future__ import annotations

import datetime
import logging
import os
import re
import sched
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable
from time import monotonic, sleep, time_ns  # taken early, as user code does it
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdist
from simdist.errors import ArgumentError
from tests.beside import wait_for_host
from tests.strategies import delays_ns

SECONDS = ("monotonic", "process_time", "thread_time")
BEGIN_S = 1_767_225_600  # the first second of 2026, since 1970


@pytest.mark.parametrize("name", SECONDS)
def test_a_clock_starts_at_zero_and_moves_by_sleeps_alone(name: str) -> None:
    def body() -> list[float]:
        clock: Callable[[], float] = getattr(time, name)
        readings = [clock(), sum(range(10_000)) * 0 + clock()]
        time.sleep(1.5)
        return [*readings, clock()]

    assert simdist.run(body, world_size=1).values == [[0.0, 0.0, 1.5]]


def test_the_time_that_a_process_has_computed_is_virtual() -> None:
    def body() -> tuple[tuple[float, ...], list[tuple[float, float]], bool]:
        time.sleep(1.5)
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return tuple(os.times()), [(each.ru_utime, each.ru_stime) for each in used], used[0].ru_maxrss > 0

    resource = pytest.importorskip("resource")
    real = os.times()

    assert simdist.run(body, world_size=1).values == [((1.5, 0, 0, 0, 1.5), [(1.5, 0), (0, 0)], True)]
    assert os.times().elapsed >= real.elapsed > 1.5


def test_a_record_of_a_log_counts_from_the_beginning_of_the_run() -> None:
    def body() -> float:
        time.sleep(0.25)
        return logging.makeLogRecord({}).relativeCreated

    assert simdist.run(body, world_size=1).values == [250.0]
    assert logging.makeLogRecord({}).relativeCreated > 250


@pytest.mark.parametrize("name", ["monotonic", "perf_counter"])
def test_a_clock_in_nanoseconds_is_exact(name: str) -> None:
    def body() -> int:
        clock: Callable[[], int] = getattr(time, f"{name}_ns")
        time.sleep(0.123456789)
        return clock()

    result = simdist.run(body, world_size=1)

    assert result.values == [123_456_789]
    assert type(result.values[0]) is int


def test_who_sleeps_until_a_moment_gets_there_however_floats_round() -> None:
    def body() -> tuple[list[str], int]:
        done: list[str] = []
        plan = sched.scheduler(time.monotonic, time.sleep)
        time.sleep(0.10035001)
        plan.enter(0.2, 1, done.append, ("second",))
        plan.enter(0.1, 1, done.append, ("first",))
        plan.run()
        began_ns = time.monotonic_ns()
        time.sleep(1e-13)
        return done, time.monotonic_ns() - began_ns

    assert simdist.run(body, world_size=1).values == [(["first", "second"], 1)]


@pytest.mark.parametrize(("clock", "begin_s"), [(time.CLOCK_REALTIME, BEGIN_S), (time.CLOCK_MONOTONIC, 0)])
def test_the_systems_clocks_by_number_are_virtual_too(clock: int, begin_s: int) -> None:
    def body() -> tuple[float, int]:
        time.sleep(0.25)
        return time.clock_gettime(clock), time.clock_gettime_ns(clock)

    assert simdist.run(body, world_size=1).values == [(begin_s + 0.25, begin_s * 10**9 + 250_000_000)]


def test_the_calendar_begins_with_2026() -> None:
    def body() -> tuple[float, int]:
        time.sleep(0.25)
        return time.time(), time.time_ns()

    assert simdist.run(body, world_size=1).values == [(BEGIN_S + 0.25, BEGIN_S * 10**9 + 250_000_000)]


def _divides_by_no_time() -> tuple[int, int, float, float]:
    began, ended = time.monotonic(), time.monotonic()
    at_ns = time.monotonic_ns()
    threading.Event().wait(0.5)
    return round(1 / (ended - began)), at_ns, time.monotonic(), time.perf_counter()


def _divides_by_no_time_of_the_calendar() -> tuple[float, bool, int, float]:
    began, ended = time.time(), time.time()
    time.sleep(0.25)
    return began, 0.9e6 < 1 / (ended - began) < 1.1e6, time.time_ns(), time.time()  # as precise as floats of this size


def _looks_often() -> tuple[list[int], float]:
    looks = [time.time_ns() - BEGIN_S * 10**9 for _ in range(2000)]
    began = time.time()
    time.sleep(0.5)
    shown = datetime.datetime.now(), datetime.datetime.now()
    assert shown[1] - shown[0] == datetime.timedelta(microseconds=1)
    return looks, time.time() - began


def _waits_for_an_hour_to_pass() -> int:
    looks, end = 0, time.time() + 3600
    while time.time() < end:
        looks += 1
    return looks


def test_a_loop_ends_that_looks_at_the_calendar_for_an_hour() -> None:
    result = simdist.run(_waits_for_an_hour_to_pass, world_size=2, isolate=True)

    assert result.values[0] == result.values[1] < 70_000
    assert 3600e9 <= result.virtual_time_ns < 3602e9


def test_programs_can_divide_by_a_duration_that_took_no_time() -> None:
    counted = simdist.run(_divides_by_no_time, world_size=1, isolate=True)
    calendar = simdist.run(_divides_by_no_time_of_the_calendar, world_size=1, isolate=True)

    assert counted.values == [(10**9, 2, 0.5001, 0.5001)]
    assert calendar.values == [(BEGIN_S, True, BEGIN_S * 10**9 + 250_001_000, BEGIN_S + 0.250002)]


def test_a_programs_calendar_is_ahead_of_virtual_time_by_at_most_1_ms() -> None:
    result = simdist.run(_looks_often, world_size=1, isolate=True)
    looks, span = result.values[0]

    assert looks == [number * 1000 for number in range(2000)]
    assert result.virtual_time_ns == 501_900_128
    assert span == pytest.approx(0.500002, abs=1e-6)  # never less than the sleep, however far the clock was ahead


@pytest.mark.parametrize(
    ("start_time", "begin_s"),
    [
        (datetime.date(1999, 12, 31), 946_598_400),
        (datetime.datetime(1970, 1, 1), 0),
        (datetime.datetime(2030, 6, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), 1_906_538_400),
    ],
    ids=str,
)
def test_the_calendar_begins_when_the_run_says(start_time: datetime.date, begin_s: int) -> None:
    def body() -> tuple[float, float, datetime.datetime]:
        time.sleep(1)
        return time.time(), time.monotonic(), datetime.datetime.now(datetime.UTC)

    result = simdist.run(body, world_size=1, start_time=start_time)

    moment = datetime.datetime.fromtimestamp(begin_s + 1, datetime.UTC)
    assert result.values == [(begin_s + 1.0, 1.0, moment)]
    assert result.virtual_time_ns == 1_000_000_000


def test_dates_are_right_to_the_microsecond_for_ever() -> None:
    def body() -> list[datetime.datetime]:
        found = []
        for _ in range(3):
            time.sleep(0.000_001)
            found.append(datetime.datetime.now(datetime.UTC))
        return found

    (found,) = simdist.run(body, world_size=1, start_time=datetime.date(2099, 12, 31)).values

    assert [moment.microsecond for moment in found] == [1, 2, 3]


@pytest.mark.parametrize(
    ("start_time", "text"),
    [
        ("tomorrow", "start_time: expected a date or a date and a time, found the text 'tomorrow'"),
        (0, "start_time: expected a date or a date and a time, found the number 0"),
        (datetime.date(1969, 12, 31), "1969-12-31 lies too far from today; expected a year from 1970 to 2099"),
        (datetime.datetime.max.replace(tzinfo=datetime.timezone(-datetime.timedelta(hours=1))), "9999-12-31"),
    ],
)
def test_a_start_time_has_to_be_a_moment_of_these_days(start_time: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(text)):
        simdist.run(lambda: None, world_size=1, start_time=start_time)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python does not warn there")
def test_utcnow_warns_of_itself_as_python_does() -> None:
    with warnings.catch_warnings(record=True) as real:
        warnings.simplefilter("always")
        datetime.datetime.utcnow()

    def body() -> list[tuple[str, str]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            datetime.datetime.utcnow()
        return [(str(each.message), each.filename) for each in seen]

    assert simdist.run(body, world_size=1).values == [[(str(real[0].message), __file__)]]


def test_calendars_show_the_day() -> None:
    def body() -> tuple[object, ...]:
        time.sleep(86_400)
        return (
            time.strftime("%Y-%m-%d %H:%M:%S"),
            time.strftime("%d", time.gmtime()),
            time.gmtime()[:6],
            time.localtime()[:6],
            time.ctime(),
            time.asctime(),
        )

    local = time.localtime(BEGIN_S + 86_400)
    assert simdist.run(body, world_size=1).values == [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", local),
            "02",
            (2026, 1, 2, 0, 0, 0),
            local[:6],
            time.ctime(BEGIN_S + 86_400),
            time.asctime(local),
        )
    ]


def test_calendars_of_a_given_moment_are_the_usual_ones() -> None:
    def body() -> tuple[object, ...]:
        return time.ctime(1e9), time.gmtime(1e9), time.localtime(0)[:6], time.strftime("%Y", time.gmtime(1e9))

    expected = (time.ctime(1e9), time.gmtime(1e9), time.localtime(0)[:6], "2001")
    assert simdist.run(body, world_size=1).values == [expected]


def test_ranks_sleep_side_by_side() -> None:
    def body() -> int:
        time.sleep(int(os.environ["RANK"]) + 1)
        return time.monotonic_ns()

    result = simdist.run(body, world_size=3)

    assert result.values == [1_000_000_000, 2_000_000_000, 3_000_000_000]
    assert result.virtual_time_ns == 3_000_000_000


def test_a_sleep_of_zero_lets_the_others_go_first() -> None:
    log = []

    def body() -> None:
        log.append(f"{os.environ['RANK']} before")
        time.sleep(0)
        log.append(f"{os.environ['RANK']} after")

    simdist.run(body, world_size=2)

    assert log == ["0 before", "1 before", "0 after", "1 after"]


def test_a_sleep_refuses_what_a_real_one_refuses() -> None:
    def body() -> None:
        with pytest.raises(ValueError, match="sleep length must be non-negative"):
            time.sleep(-1)
        with pytest.raises(TypeError):
            time.sleep("1")  # type: ignore[arg-type]

    simdist.run(body, world_size=1).raise_for_failure()


def test_a_month_costs_no_real_time() -> None:
    def body() -> float:
        for _ in range(30):
            time.sleep(86_400)
        return time.monotonic()

    assert simdist.run(body, world_size=2).values == [30 * 86_400.0] * 2


@given(st.lists(st.lists(delays_ns, max_size=4), min_size=1, max_size=3))
def test_every_ranks_clock_is_the_sum_of_its_sleeps(spans: list[list[int]]) -> None:
    def body() -> list[int]:
        readings = []
        for span_ns in spans[int(os.environ["RANK"])]:
            time.sleep(span_ns / 1e9)
            readings.append(time.monotonic_ns())
        return readings

    result = simdist.run(body, world_size=len(spans))

    assert result.values == [[sum(chain[: index + 1]) for index in range(len(chain))] for chain in spans]
    assert result.virtual_time_ns == max(map(sum, spans))


def test_names_taken_from_the_module_before_the_world_are_virtual_in_it() -> None:
    def body() -> tuple[float, int]:
        sleep(2)
        return monotonic(), time_ns() - BEGIN_S * 10**9

    before = sleep, monotonic, time_ns

    assert simdist.run(body, world_size=1).values == [(2.0, 2_000_000_000)]
    assert (sleep, monotonic, time_ns) == before


def test_another_thread_of_the_host_sees_real_clocks_while_a_world_runs() -> None:
    go, done = threading.Event(), threading.Event()
    seen: dict[str, object] = {}

    def host() -> None:
        go.wait(10)
        begin = time.perf_counter()
        time.sleep(0.002)
        seen["slept"] = time.perf_counter() - begin >= 0.001
        seen["year"] = time.gmtime().tm_year >= 2024 and time.time() - BEGIN_S > 3600
        seen["time"] = time.time() > 1e9
        seen["pid"] = os.getpid()
        seen["rank"] = os.environ.get("RANK")
        done.set()

    def body() -> None:
        time.sleep(1)
        go.set()
        wait_for_host(done)

    thread = threading.Thread(target=host)
    thread.start()
    simdist.run(body, world_size=2).raise_for_failure()
    thread.join()

    assert seen == {"slept": True, "year": True, "time": True, "pid": os.getpid(), "rank": os.environ.get("RANK")}


def test_a_loop_that_only_looks_at_the_clock_ends() -> None:
    def body() -> list[bool]:
        began = time.monotonic()
        while time.monotonic() == began:
            pass
        first = time.monotonic() - began
        while time.monotonic() - began < 0.03:
            pass
        return [0 < first < 1e-3, 0.03 <= time.monotonic() - began < 0.04]

    results = [simdist.run(body, world_size=2) for _ in range(2)]

    assert results[0].values == [[True, True]] * 2
    assert results[0].virtual_time_ns == results[1].virtual_time_ns


@pytest.mark.parametrize("name", ["perf_counter", "perf_counter_ns"])
def test_a_duration_that_is_measured_is_never_nothing(name: str) -> None:
    second = 1_000_000_000 if name.endswith("_ns") else 1.0
    clock = getattr(time, name)

    def body() -> list[float]:
        looks = [clock(), clock(), clock()]
        time.sleep(1)
        return [*looks, clock(), clock()]

    found = simdist.run(body, world_size=2, policy="random").values

    assert (
        found == [[pytest.approx(second * each, rel=1e-15) for each in (0, 1e-9, 2e-9, 1.000000002, 1.000000003)]] * 2
    )
    assert found[0][0] < found[0][1] < found[0][2] < second < found[0][3] < found[0][4]


def looked(clock: Callable[[], float], wait: Callable[[float], Any], seconds: float, offset_s: float) -> float:
    """Return the duration of a wait by a clock, some time after the program's begin."""
    time.sleep(offset_s)
    began = clock()
    wait(seconds)
    return clock() - began


def lock_in_vain(seconds: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=seconds)


CLOCKS = [getattr(time, name) for name in ("monotonic", "perf_counter", "time")]
WAITS: dict[str, Callable[[float], Any]] = {
    "sleep": time.sleep,
    "event": lambda seconds: threading.Event().wait(seconds),
    "lock": lock_in_vain,
    "select": lambda seconds: select.select([], [], [], seconds),
}


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("name", WAITS)
def test_no_clock_shows_less_than_the_length_of_a_wait(name: str, isolate: bool) -> None:
    def body() -> list[float]:
        missing = []
        for clock in CLOCKS:
            for number in range(60):
                seconds = 0.1 + number / 1000
                missing.append(min(0.0, looked(clock, WAITS[name], seconds, number / 7) - seconds))
        return missing

    (missing,) = simdist.run(body, world_size=1, isolate=isolate).values

    assert set(missing) == {0}


def test_what_runs_out_of_time_ends_a_little_late_always_the_same() -> None:
    def body() -> list[int]:
        ended = []
        for wait in list(WAITS.values())[1:]:
            began_ns = time.monotonic_ns()
            wait(0.3)
            ended.append(time.monotonic_ns() - began_ns)
        return ended

    assert simdist.run(body, world_size=1).values == [[300_100_000] * 3]
