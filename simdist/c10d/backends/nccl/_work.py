"""WorkNCCL: the work of a call."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl._log import log
from simdist.c10d.calls._futures import SimFuture
from simdist.c10d.engine._stream_work import StreamWork
from simdist.inside.torch import Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl.watch._recorder import Entry
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember
    from simdist.c10d.engine._stream_parts import Part
    from simdist.c10d.engine._streamed import Connection

__all__ = ["FAILED_LINES", "NcclWork"]

_NO_TIMEOUT = timedelta(0)
_CORRUPTED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU "
    "operations might run on corrupted/incomplete data."
)
_DOWN = "To avoid data inconsistency, we are taking the entire process down."
# The log lines before an error of a work is raised, and their places; the error ends the process.
FAILED_LINES = ((_CORRUPTED, Place.WORK_LEAVES_GARBAGE), (_DOWN, Place.WORK_TAKES_DOWN))


class NcclWork(StreamWork):
    """The work of one call of one rank, with the facts for its watchdog and its recorder."""

    group: WatchedMember
    calls: list[Part]  # the parts of this work: one, or those of a block
    op_type: str
    extra_ns = 0  # when it ends, the timeouts of later works shrink by this
    number: int  # its number among the collectives of the group, or among the messages
    numel_in: int
    numel_out: int
    connection: Connection
    stash: list[torch.Tensor] | None = None  # tensors that it keeps until a wait
    entry: Entry | None = None
    timed = False  # its duration is measured
    begun_ns: int | None = None  # when its kernel began; set when it is done

    def __str__(self) -> str:
        return (
            f"WorkNCCL(SeqNum={self.number}, OpType={self.op_type}, NumelIn={self.numel_in}, "
            f"NumelOut={self.numel_out}, Timeout(ms)={self.timeout_ns // 1_000_000})"
        )

    def timeout_text(self, elapsed_ms: int) -> str:
        """Return the log line for a work that is older than its timeout."""
        return (
            f"{self._prefix()}Watchdog caught collective operation timeout: {self} ran for {elapsed_ms} milliseconds "
            "before timing out."
        )

    def error_text(self, error: str) -> str:
        """Return the log line after NCCL has reported an error of its communicator."""
        return f"{self._prefix()}Collective {self} raised the following async exception: {error}"

    def _prefix(self) -> str:
        prefix: str = self.group.nccl.work_prefix(self.group)
        return prefix

    def synchronize(self) -> None:
        """Let the current stream wait for this work, and release its tensors."""
        super().synchronize()
        if self.stash:
            self.stash.clear()

    def check(self) -> None:
        """Set the error of this work if NCCL has reported one of its communicator."""
        error = self.group.errors.get(self.connection)
        if self.done or self.error is not None or error is None or self.connection in self.group.dead:
            return
        log(self.process, "E", self.error_text(error), Place.WORK_FAILED)
        self.set_error("COMM_ERROR", error)

    def set_error(self, kind: str, text: str) -> None:
        """Set the error that waits for this work raise."""
        self.error = dist.DistBackendError(text)
        self.group.settle_results(self, kind)

    def is_completed(self) -> bool:
        """True if it is done or failed."""
        return super().is_completed() or self._has_failed()

    def give_up(self) -> None:
        """Abort its communicator, as every wait does when it finds an error."""
        self.group.abort_connections([self.connection])
        for said, place in FAILED_LINES:
            log(self.process, "E", f"{self._prefix()}{said}", place)

    def raise_error(self) -> None:
        """Raise the work's error, if it has one.

        Raises:
            DistBackendError: the work has failed.
        """
        if self.error is not None:
            self.give_up()
            raise self.error

    def finish(self) -> None:
        """End the work. From now on it keeps no tensors, except its outputs while the program holds the work."""
        calls = self.calls
        self.begun_ns = calls[0].begin.at_ns if len(calls) == 1 else self.begin_ns()  # hot
        self.group.on_done(self)
        if self.stash and not self.group.environment.blocking_wait:
            self.group.shelf.append(self.stash)
        super().finish()
        if self.entry is not None:
            self.entry.close(self)
            self.entry = None
        for part in calls:
            part.work = None
        self.calls = []

    def is_success(self) -> bool:
        """Deprecated in torch.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")

    def has_begun(self, now_ns: int) -> bool:
        """True if its kernel runs or has run at `now_ns`."""
        begun_ns = self.begun_ns if self.done else self.begin_ns()
        return begun_ns is not None and begun_ns <= now_ns

    def begin_ns(self) -> int | None:
        """Return when the last of its kernels begins; None if that is not known yet."""
        if len(self.calls) == 1:
            return self.calls[0].begin.at_ns
        moments = [part.begin.at_ns for part in self.calls]
        return None if None in moments else max((each or 0 for each in moments), default=self.issued_ns)

    def _get_duration(self) -> float:
        """Return the milliseconds that its kernel took, including the wait for other ranks.

        Raises:
            RuntimeError: timing was not enabled, or the work is not over.
        """
        if not self.timed:
            raise RuntimeError("getDuration only works if timing was enabled")
        if not self.done:
            raise RuntimeError("getDuration can only be called after work is succeeded.")
        return max(0, self.ended_ns - max(self.begun_ns or 0, self.issued_ns)) / 1e6

    def get_future_result(self) -> SimFuture:
        """Return a future of the number of a `WorkResult`: success, or the failure that the watchdog has found.

        It is a future of the host. The watchdog completes it, so without a watchdog it is never done.
        """
        future = SimFuture(self.process)
        self.process.torch_state.futures[future] = None
        self.group.results.setdefault(self, []).append(future)
        if self.done:
            self.group.settle_results_later(self)
        return future

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the work fills."""
        return self.outputs
