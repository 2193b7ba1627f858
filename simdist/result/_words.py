"""How a rank ended, in words."""

from __future__ import annotations

import signal

from simdist.result._outcome import RankResult
from simdist.values import text_of, without_source

__all__ = ["exit_words", "how_it_ended"]


def how_it_ended(rank: RankResult) -> str:
    """What became of a rank, as the rest of a sentence: "was killed by SIGKILL", "raised ValueError: bad batch"."""
    code = rank.exit_code or 0
    if rank.status == "killed":
        return f"was killed by {_signal(-code)}"
    if rank.status == "exited":
        return f"left with exit code {code}"
    if rank.status == "hung":
        return f"hangs for good in {rank.waiting or 'its own code'}"
    if rank.exception is not None:
        return f"raised {_first_line(rank.exception)}"
    return rank.status


def exit_words(code: int) -> str:
    """How a process ended, as the rest of a sentence; a negative code is that of a signal."""
    return f"was killed by {_signal(-code)}" if code < 0 else f"left with exit code {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # this system does not have it
        return f"signal {number}"


def _first_line(error: BaseException) -> str:
    text = without_source(text_of(error).strip())
    name = type(error).__name__
    return f"{name}: {text.splitlines()[0]}" if text else name
