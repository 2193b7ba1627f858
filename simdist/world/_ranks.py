"""How a world's ranks ended: for its result, and on stderr."""

from __future__ import annotations

import contextlib
import io
import sys
from _thread import get_ident
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, TracebackType

from simdist.frames import frames_by_thread, is_ours, raising_line, user_line
from simdist.kernel import Task, TaskState
from simdist.process import SimProcess, waits_of_threads
from simdist.result import RankResult

__all__ = ["print_exception", "rank_results", "standing_frames"]


def print_exception(process: SimProcess, error: BaseException) -> None:
    """Write a traceback to the stderr of the calling rank, without the frames of simdist under the user's."""
    trace, shown = error.__traceback__, io.StringIO()
    error.__traceback__ = _user_part(trace)
    try:
        with contextlib.redirect_stderr(shown):  # Python 3.11 has suggestions for names in this function only
            sys.__excepthook__(type(error), error, error.__traceback__)
    finally:
        error.__traceback__ = trace
    sys.stderr.write("".join(f"[rank{process.rank}]: {line}\n" for line in shown.getvalue().splitlines()))


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of simdist that lead to the user's function; all of it if there is no other."""
    inner = trace
    while inner is not None and is_ours(inner.tb_frame):
        inner = inner.tb_next
    return inner or trace


def standing_frames(tasks: Iterable[Task]) -> dict[int, FrameType]:
    """The innermost frame of each task's thread that does not go on, by the thread's number.

    These frames keep their functions' objects alive. Drop them on a thread of the host: on their own threads, which
    have ended, no finalizer could wait for anything.
    """
    idents = [task.ident for task in tasks if task.started and task.state is not TaskState.DONE]
    if not idents:
        return {}
    current = frames_by_thread()
    return {ident: current[ident] for ident in idents if ident in current and ident != get_ident()}


def rank_results(
    lives: Sequence[Sequence[SimProcess]], now_ns: int, frames: Mapping[int, FrameType]
) -> tuple[RankResult, ...]:
    """Return how each rank of the last life ended at `now_ns`; `frames` are where hanging ranks are stuck."""
    operations: Counter[int] = Counter()
    for life in lives:
        for process in life:
            operations[process.rank] += process.operations
    return tuple(
        _result_of(process, operations[process.rank], now_ns, frames.get(process.rank)) for process in lives[-1]
    )


def _result_of(process: SimProcess, operations: int, now_ns: int, frame: FrameType | None) -> RankResult:
    process.flush()
    last = process.last_operation
    return RankResult(
        rank=process.rank,
        status="hung" if process.status == "running" else process.status,
        value=process.value,
        exception=process.exception,
        exit_code=process.exit_code,
        stdout="".join(process.stdout),
        stderr="".join(process.stderr),
        ended_ns=now_ns if process.running else process.ended_ns,
        operations=operations,
        lives=process.life + 1,
        waiting=_waiting(process),
        where=(
            user_line(frame).removeprefix(" at ")
            if process.exception is None
            else raising_line(process.exception.__traceback__)
        ),
        last_operation="" if last is None else f"{last[0]} #{last[1]} in group {last[2]!r}",
    )


def _waiting(process: SimProcess) -> str:
    """The wait of a process that has not ended."""
    task = process.main
    if not process.running or task is None:
        return ""
    waiting = task.waiting.describe() if task.waiting is not None else ""
    if task.paused:
        waiting = f"stopped by a fault{', in ' + waiting if waiting else ''}"
    return "; ".join(each for each in (waiting, waits_of_threads(process)) if each)
