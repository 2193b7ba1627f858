"""Shared by the c10d tests: small worlds, and a rank's diary of calls with the virtual moment at which each ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import simdist
from simdist.process import current_process

__all__ = [
    "APP_CLOSED",
    "BROKEN",
    "CLOSED",
    "RESET",
    "Diary",
    "Entry",
    "attempt",
    "in_group",
    "now_ns",
    "ones",
    "outcome",
    "plain",
    "sleep_s",
    "timed_out",
    "values",
    "world",
]

MS = 1_000_000

# Real Gloo's words after the bracketed location (see `plain`), from measurements on torch 2.13.
CLOSED = (
    "RuntimeError: Connection closed by peer [host]:port. This is typically caused by a remote worker crashing. "
    "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
)
RESET = (
    "RuntimeError: Read error [host]:port: Connection reset by peer. This is typically caused by a remote worker "
    "hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
)
APP_CLOSED = "RuntimeError: Application timeout caused pair closure"
# The errors at both ends of a closed connection: on real processes it varies which of them a rank sees.
BROKEN = (CLOSED, APP_CLOSED)


def timed_out(kind: str, limit_ms: int) -> str:
    """Return the outcome of a wait for a transfer that timed out."""
    return f"RuntimeError: Timed out waiting {limit_ms}ms for {kind} operation to complete"


def plain(message: str) -> str:
    """Return a message without source locations and addresses."""
    message = re.sub(r"\[[^\]\s]*\.cc:\d+\] ", "", message)
    return re.sub(r"\[127\.0\.0\.1\]:\d+", "[host]:port", message)


def outcome(error: BaseException) -> str:
    """Return the type and text of an exception, as the diary writes it."""
    return f"{type(error).__name__}: {plain(str(error))}"


def attempt(call: Callable[[], object]) -> str:
    """Call a function; returns "ok", or the error that it raised."""
    try:
        call()
    except Exception as error:
        return outcome(error)
    return "ok"


def world(body: Callable[..., Any], size: int, **options: Any) -> simdist.RunResult:
    """Run `body` on every rank; all of them must end well."""
    result = simdist.run(body, world_size=size, **options)
    result.raise_for_failure()
    return result


def values(body: Callable[..., Any], size: int, **options: Any) -> list[Any]:
    """Return each rank's result of `body` in a world that must end well."""
    return world(body, size, **options).values


def calls_of_mixed_types(one: Any, ones: list[Any]) -> list[Callable[[], Any]]:
    """Return calls in which one of the tensors is of half precision; `ones` has a tensor for each rank."""
    half, mixed = one.half(), [ones[0], ones[1].half()]
    given: Any = dist
    return [
        lambda: given.all_gather(mixed, one),
        lambda: given.all_gather(ones, half),
        lambda: given.all_gather_coalesced([mixed], ones),
        lambda: given.all_gather_coalesced([ones], mixed),
        lambda: given.all_reduce_coalesced(mixed),
        lambda: given.reduce_scatter(one, mixed),
        lambda: given.reduce_scatter(half, ones),
        lambda: given.all_to_all_single(half, one),
        lambda: given.all_to_all(mixed, ones),
        lambda: given.all_to_all(ones, mixed),
        lambda: given.scatter(one, mixed),
        lambda: given.gather(half, ones),
        lambda: given.gather(one, mixed),
        lambda: given.scatter(half, ones),
    ]


def in_group(body: Callable[[int], Any], size: int, *, timeout_s: float = 1800, **options: Any) -> list[Any]:
    """Return each rank's result of `body(rank)`, called inside an initialised default group."""

    def main() -> Any:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        return body(dist.get_rank())

    return values(main, size, **options)


def now_ns() -> int:
    """Return the virtual time on the calling rank."""
    process = current_process()
    assert process is not None
    return process.simulation.now_ns


def sleep_s(seconds: float) -> None:
    """Let virtual time pass on the calling rank."""
    process = current_process()
    assert process is not None
    process.simulation.sleep(round(seconds * 1e9))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return four ones, or a tensor of ones of this shape."""
    return torch.ones(shape or (4,), dtype=dtype)


@dataclass(frozen=True, slots=True)
class Entry:
    """One call: its outcome, and when it ended, in milliseconds after the diary's zero."""

    name: str
    outcome: str
    ended_ms: float

    def is_as(self, ended_s: float, expected: str | Sequence[str]) -> bool:
        """True if the call had this outcome (or one of these) at that time, within 5 ms."""
        allowed = (expected,) if isinstance(expected, str) else tuple(expected)
        return self.outcome in allowed and abs(self.ended_ms - 1000 * ended_s) < 5


@dataclass(slots=True)
class Diary:
    """The calls of one rank. `seconds` count from the barrier at the start of the world."""

    zero_ns: int = 0
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def begin(cls, timeout_s: float) -> Diary:
        """Join the default group, pass a barrier, start the clock."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        dist.barrier()
        return cls(now_ns())

    def call(self, name: str, call: Callable[[], object], *, show: bool = False) -> Any:
        """Call a function and record the outcome; with `show`, its value instead of "ok"."""
        value = None
        try:
            value = call()
            text = repr(value) if show else "ok"
        except Exception as error:
            text = outcome(error)
        self.entries.append(Entry(name, text, (now_ns() - self.zero_ns) / MS))
        return value

    def sleep_until(self, seconds: float) -> None:
        """Sleep until `seconds` after zero."""
        sleep_s(max(0.0, seconds - (now_ns() - self.zero_ns) / 1e9))
