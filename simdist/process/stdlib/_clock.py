"""Virtual time behind `time.*` and `datetime`.

Clocks that count from some start (`monotonic`, `perf_counter`, `process_time`, `os.times`) are virtual time itself,
from 0. Clocks with a calendar (`time.time`, `localtime`, `datetime.now`, CLOCK_REALTIME) add the `epoch_ns` of their
process, the moment at which its world began. If a fault has set the clock of the host wrong, the error is added last,
so that the rules below hold for a right clock.

`perf_counter`, by which programs measure durations, shows a nanosecond more at each further look at the same moment:
what a program computes in between takes no virtual time, but the program may divide by the duration. If ranks have
modules of their own, they run whole programs, which measure with other clocks, too. Then `monotonic` shows a nanosecond
more at each look, and clocks with a calendar a microsecond; a calendar that is a millisecond ahead lets time pass
instead. Test functions need these exact. The standard library, which waits until moments, always gets the exact
`monotonic`.
"""

from __future__ import annotations

import datetime
import functools
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, ClassMethodDescriptorType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.inside.python import original
from simdist.process._lateness import CALENDAR, LOOK_NS, MONOTONIC, PERF_COUNTER, Shown, seen
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, Patches, Replacement, current_process, current_runtime
from simdist.records import slept

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    _Moment = time.struct_time | tuple[int, ...]
    _Usage = resource.struct_rusage

__all__ = ["install", "taken_early"]

_T = TypeVar("_T")

_COUNTING = ("process_time", "thread_time")
_READS_THE_CLOCK = sys.version_info >= (3, 15)  # `date.today` itself
_UTCNOW = (
    "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. "
    "Use timezone-aware objects to represent datetimes in UTC: datetime.datetime.now(datetime.UTC)."
)
_SHARE = 4096  # the time that passes at a look is that of looking divided by this
_LEAD_NS = 1_000_000  # a calendar is never further ahead: then time passes at each look
_OF_THE_CALENDAR = {
    getattr(time, name) for name in ("CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "CLOCK_TAI") if hasattr(time, name)
} | {5}  # CLOCK_REALTIME_COARSE, which the module does not name


def install(patches: Patches) -> None:
    """Replace the clocks and `sleep`."""
    patches.redirect(_REPLACEMENTS)
    # The class stays what it is, so that its instances pickle, and code that imported it early has virtual time too.
    # Its other ways to ask for the time go through `time.time`; before Python 3.15 `date.today` does so, too.
    patches.wrap_all_in_type(datetime.datetime, {"now": _now, "utcnow": _utcnow})
    if _READS_THE_CLOCK:
        patches.wrap_all_in_type(datetime.date, {"today": _today})
    if hasattr(subprocess, "_time"):  # it measures how long a thread really waits
        patches.replace(subprocess, "_time", original(subprocess._time))


def taken_early(method: BuiltinFunctionType) -> Make | None:
    """Return the maker of the replacement of a method of `datetime` that was taken before the world began, or None."""
    owner = method.__self__
    return _EARLY.get(method.__name__) if isinstance(owner, type) and issubclass(owner, datetime.date) else None


def _seconds(original: Callable[[], float]) -> Callable[[], float]:
    @functools.wraps(original)
    def clock() -> float:
        process = current_process()
        return original() if process is None else process.simulation.read_clock() / 1e9

    return clock


def _nanoseconds(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def clock() -> int:
        process = current_process()
        return original() if process is None else process.simulation.read_clock()

    return clock


def _times(original: Callable[[], os.times_result]) -> Callable[[], os.times_result]:
    """For `os.times`: a process is taken to compute all the time, and its children never."""

    @functools.wraps(original)
    def times() -> os.times_result:
        process = current_process()
        if process is None:
            return original()
        now_s = process.simulation.read_clock() / 1e9
        return os.times_result((now_s, 0.0, 0.0, 0.0, now_s))

    return times


def _usage(original: Callable[[int], _Usage]) -> Callable[[int], _Usage]:
    """For `resource.getrusage`, likewise. What else it returns is the real process's."""

    @functools.wraps(original)
    def getrusage(who: int, /) -> _Usage:
        found, process = original(who), current_process()
        if process is None:
            return found
        computed_s = 0.0 if who == resource.RUSAGE_CHILDREN else process.simulation.read_clock() / 1e9
        return type(found)((computed_s, 0.0, *found[2:]))

    return getrusage


def _record(original: Callable[..., None]) -> Callable[..., None]:
    """For a record of `logging`: the time since its process began, in milliseconds."""

    @functools.wraps(original)
    def init(self: logging.LogRecord, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        process = current_process()
        if process is not None:
            self.relativeCreated = process.simulation.read_clock() / 1e6

    return init


def _look(process: SimProcess) -> int:
    process.looked_ns = max(process.simulation.read_clock(), process.looked_ns + 1)
    return process.looked_ns


def _measured_s(original: Callable[[], float]) -> Callable[[], float]:
    @functools.wraps(original)
    def clock() -> float:
        process = current_process()
        return original() if process is None else seen(process, PERF_COUNTER, _look(process) / 1e9)

    return clock


def _measured_ns(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def clock() -> int:
        process = current_process()
        return original() if process is None else _look(process)

    return clock


def _is_program() -> bool:
    """True if ranks have modules of their own."""
    runtime = current_runtime()
    return runtime is not None and runtime.isolation is not None


def _counted_ns(process: SimProcess, reader: FrameType) -> int:
    """What `monotonic` shows to the code of `reader`, in nanoseconds; the standard library waits until moments."""
    now_ns = process.simulation.read_clock()
    if _is_program() and str(reader.f_globals.get("__name__")).partition(".")[0] not in sys.stdlib_module_names:
        now_ns = process.counted_ns = max(now_ns, process.counted_ns + 1)
    return now_ns


def _monotonic(original: Callable[[], float]) -> Callable[[], float]:
    @functools.wraps(original)
    def clock() -> float:
        process = current_process()
        if process is None:
            return original()
        return seen(process, MONOTONIC, _counted_ns(process, sys._getframe(1)) / 1e9)

    return clock


def _monotonic_ns(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def clock() -> int:
        process = current_process()
        return original() if process is None else _counted_ns(process, sys._getframe(1))

    return clock


def _right_ns(process: SimProcess) -> int:
    """Nanoseconds since 1970 for a program that reads the time, by a clock that is right."""
    simulation = process.simulation
    now_ns = process.epoch_ns + simulation.read_clock()
    if _is_program():
        if now_ns <= process.shown_ns:
            _let_time_pass(process, at_last=process.shown_ns + LOOK_NS > now_ns + _LEAD_NS)
            now_ns = process.epoch_ns + simulation.now_ns
            now_ns = max(now_ns, min(process.shown_ns + LOOK_NS, now_ns + _LEAD_NS))
        process.shown_ns = now_ns
    return now_ns


def _let_time_pass(process: SimProcess, *, at_last: bool) -> None:
    """Let time pass at a look, if the calendar can go on without it no longer (`at_last`), or since it could not.

    A microsecond at first. While the process does nothing but look, a share of the time for which it does: a loop that
    waits for an hour to pass ends after some 60,000 looks.
    """
    simulation = process.simulation
    if simulation.now_ns != process.dwelt_ns:
        if not at_last:
            return
        process.dwelling_since_ns = simulation.now_ns
    simulation.dwell(max(LOOK_NS, (simulation.now_ns - process.dwelling_since_ns) // _SHARE))
    process.dwelt_ns = simulation.now_ns


def _calendar_ns(process: SimProcess) -> int:
    """Nanoseconds since 1970 for a program that reads the time, by the clock of its host."""
    right_ns, skew_ns = _right_ns(process), process.host.skew_ns
    return right_ns if skew_ns is None else right_ns + skew_ns(process.simulation.now_ns)


def _time(original: Callable[[], float]) -> Callable[[], float]:
    @functools.wraps(original)
    def clock() -> float:
        process = current_process()
        if process is None:
            return original()
        right_ns, skew_ns = _right_ns(process), process.host.skew_ns
        shown_s = seen(process, CALENDAR, right_ns / 10**9)  # rounded once, unlike with a float
        if skew_ns is None:
            return shown_s
        wrong_ns = skew_ns(process.simulation.now_ns)
        return (right_ns + wrong_ns) / 10**9 if shown_s == right_ns / 10**9 else shown_s + wrong_ns / 10**9

    return clock


def _time_ns(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def clock() -> int:
        process = current_process()
        return original() if process is None else _calendar_ns(process)

    return clock


def _defaulting_to_now(original: Callable[[float | None], _T]) -> Callable[[float | None], _T]:
    @functools.wraps(original)
    def convert(seconds: float | None = None) -> _T:
        process = current_process()
        if seconds is None and process is not None:
            seconds = process.calendar_ns(process.simulation.now_ns) / 10**9
        return original(seconds)

    return convert


def _strftime(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def strftime(format: str, moment: _Moment | None = None) -> str:
        return original(format, time.localtime() if moment is None else moment)

    return strftime


def _sleep(original: Callable[[float], None]) -> Callable[[float], None]:
    @functools.wraps(original)
    def sleep(seconds: float) -> None:
        process = current_process()
        if process is None:
            original(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        simulation = process.simulation
        # At least one: a loop that sleeps until a moment that a float has rounded would never get there.
        duration_ns = max(1, round(seconds * 1e9)) if seconds else 0
        shown = Shown(process)
        simulation.bus.record(slept(simulation.now_ns, process.rank, duration_ns))
        simulation.polls += 1
        _sleep_until(process, simulation.now_ns + (duration_ns + shown.extra_ns if duration_ns else 0))
        if duration_ns:
            shown.show_no_less(process, seconds, duration_ns)
        process.drain()
        if process.between:
            process.do_between()

    return sleep


def _sleep_until(process: SimProcess, until_ns: int) -> None:
    """Sleep, and run the handlers of signals that come meanwhile; an error in a handler ends the sleep."""
    simulation = process.simulation
    if process.pending:
        process.handle_signals()
    simulation.sleep(max(0, until_ns - simulation.now_ns), interrupted=process.is_interrupted)
    while simulation.now_ns < until_ns:
        process.handle_signals()
        simulation.sleep(max(0, until_ns - simulation.now_ns), interrupted=process.is_interrupted)


def _asctime(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def asctime(moment: _Moment | None = None) -> str:
        return original(time.localtime() if moment is None else moment)

    return asctime


def _by_number(original: Callable[[int], float]) -> Callable[[int], float]:
    @functools.wraps(original)
    def clock_gettime(number: int) -> float:
        process = current_process()
        return original(number) if process is None else _ns_of(process, number) / 10**9

    return clock_gettime


def _by_number_ns(original: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(original)
    def clock_gettime_ns(number: int) -> int:
        process = current_process()
        return original(number) if process is None else _ns_of(process, number)

    return clock_gettime_ns


def _ns_of(process: SimProcess, number: int) -> int:
    return _calendar_ns(process) if number in _OF_THE_CALENDAR else process.simulation.read_clock()


def _now(original: ClassMethodDescriptorType) -> object:
    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _now_of_class(cls, original.__get__(None, cls), tz)

    return classmethod(functools.wraps(original)(now))


def _utcnow(original: ClassMethodDescriptorType) -> object:
    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        return _utcnow_of_class(cls, original.__get__(None, cls))

    return classmethod(functools.wraps(original)(utcnow))


def _today(original: ClassMethodDescriptorType) -> object:
    def today(cls: type[datetime.date]) -> datetime.date:
        return _today_of_class(cls, original.__get__(None, cls))

    return classmethod(functools.wraps(original)(today))


def _early_today(original: Any) -> Callable[[], datetime.date]:
    @functools.wraps(original)
    def today() -> datetime.date:
        return _today_of_class(original.__self__, original)

    return today


def _early_now(original: Any) -> Callable[..., datetime.datetime]:
    @functools.wraps(original)
    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _now_of_class(original.__self__, original, tz)

    return now


def _early_utcnow(original: Any) -> Callable[[], datetime.datetime]:
    @functools.wraps(original)
    def utcnow() -> datetime.datetime:
        return _utcnow_of_class(original.__self__, original)

    return utcnow


def _now_of_class(
    cls: type[datetime.datetime],
    real: Callable[[datetime.tzinfo | None], datetime.datetime],
    tz: datetime.tzinfo | None,
) -> datetime.datetime:
    process = current_process()
    if process is None:
        return real(tz)
    return (
        _moment(cls, process).astimezone(tz)
        if tz is not None
        else _moment(cls, process).astimezone().replace(tzinfo=None)
    )


def _utcnow_of_class(cls: type[datetime.datetime], real: Callable[[], datetime.datetime]) -> datetime.datetime:
    process = current_process()
    if process is None:
        return real()
    if sys.version_info >= (3, 12):
        warnings.warn(_UTCNOW, DeprecationWarning, stacklevel=3)
    return _moment(cls, process).replace(tzinfo=None)


def _today_of_class(cls: type[datetime.date], real: Callable[[], datetime.date]) -> datetime.date:
    return real() if current_process() is None else cls.fromtimestamp(time.time())


def _moment(cls: type[datetime.datetime], process: SimProcess) -> datetime.datetime:
    """Now, in UTC, to the microsecond: a float of seconds since 1970 is not as fine."""
    seconds, rest_ns = divmod(_calendar_ns(process), 10**9)
    return cls.fromtimestamp(seconds, datetime.UTC).replace(microsecond=rest_ns // 1000)


def _replacements() -> Iterator[Replacement]:
    yield Replacement(time, "time", _time)
    yield Replacement(time, "time_ns", _time_ns)
    for name in _COUNTING:
        yield Replacement(time, name, _seconds)
        yield Replacement(time, f"{name}_ns", _nanoseconds)
    yield Replacement(time, "monotonic", _monotonic)
    yield Replacement(time, "monotonic_ns", _monotonic_ns)
    yield Replacement(time, "perf_counter", _measured_s)
    yield Replacement(time, "perf_counter_ns", _measured_ns)
    for name in ("localtime", "gmtime", "ctime"):
        yield Replacement(time, name, _defaulting_to_now)
    yield Replacement(time, "strftime", _strftime)
    yield Replacement(time, "asctime", _asctime)
    if hasattr(time, "clock_gettime"):
        yield Replacement(time, "clock_gettime", _by_number)
        yield Replacement(time, "clock_gettime_ns", _by_number_ns)
    yield Replacement(time, "sleep", _sleep)
    yield Replacement(os, "times", _times)
    yield Replacement(logging.LogRecord, "__init__", _record)
    if resource is not None:
        yield Replacement(resource, "getrusage", _usage)


_REPLACEMENTS = tuple(_replacements())
_EARLY: dict[str, Make] = {"now": _early_now, "utcnow": _early_utcnow}
if _READS_THE_CLOCK:
    _EARLY["today"] = _early_today
