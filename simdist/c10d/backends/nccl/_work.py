"""WorkNCCL: what a rank holds in the hand of a call."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as _c

from simdist.c10d.engine._stream_work import StreamWork
from simdist.c10d.surface._work import SimFuture

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._recorder import Entry
    from simdist.c10d.engine._stream_parts import Part

__all__ = ["NcclWork"]

_results: Any = _c  # has what the stubs leave out
_NO_TIMEOUT = timedelta(0)


class NcclWork(StreamWork):
    """One call of one rank, as its watchdog and its recorder know it."""

    group: Any
    calls: list[Part]  # it stands for, one or those of a block
    op_type: str
    extra_ns = 0  # what its end takes off the timeouts of those after it
    number: int  # of collectives in the group, or of messages
    numel_in: int
    numel_out: int
    logged_rank: int  # what its process calls itself in lines about works
    entry: Entry | None = None
    timed = False  # it knows what it took
    begun_ns: int | None = None  # when its kernel has begun, once it is done

    def __str__(self) -> str:
        return (
            f"WorkNCCL(SeqNum={self.number}, OpType={self.op_type}, NumelIn={self.numel_in}, "
            f"NumelOut={self.numel_out}, Timeout(ms)={self.timeout_ns // 1_000_000})"
        )

    def timeout_text(self, elapsed_ms: int) -> str:
        """What is said when it is older than its timeout."""
        return (
            f"[Rank {self.logged_rank}] Watchdog caught collective operation timeout: {self} ran for {elapsed_ms} "
            "milliseconds before timing out."
        )

    def finish(self) -> None:
        """It is over. What goes on of it keeps no tensors, but for its outputs while the program has the work."""
        self.begun_ns = self.begin_ns()
        self.group.on_done(self)
        super().finish()
        if self.entry is not None:
            self.entry.close(self)
            self.entry = None
        for part in self.calls:
            part.work = None
        self.calls = []

    def is_success(self) -> bool:
        """Nobody asks that of NCCL any more.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")

    def has_begun(self, now_ns: int) -> bool:
        """True if its kernel runs, or has run."""
        begun_ns = self.begun_ns if self.done else self.begin_ns()
        return begun_ns is not None and begun_ns <= now_ns

    def begin_ns(self) -> int | None:
        """When the last of its kernels begins; None: that is not known yet."""
        moments = [part.begin.at_ns for part in self.calls]
        return None if None in moments else max((each or 0 for each in moments), default=self.issued_ns)

    def _get_duration(self) -> float:
        """Milliseconds that its kernel took, those for which it waited for other ranks included.

        Raises:
            RuntimeError: nobody has asked for that before, or it is not over.
        """
        if not self.timed:
            raise RuntimeError("getDuration only works if timing was enabled")
        if not self.done:
            raise RuntimeError("getDuration can only be called after work is succeeded.")
        return max(0, self.ended_ns - max(self.begun_ns or 0, self.issued_ns)) / 1e6

    def get_future_result(self) -> SimFuture:
        """A future of how it ends, the number of a `WorkResult`: success, or what its watchdog has found.

        It is the host's: not done before the work is over, where that of the values is.
        """
        future = SimFuture(self.process)
        if self.done:
            future.set_result(int(_results.WorkResult.SUCCESS))
        else:
            self.process.torch_state.futures[future] = None
            self.group.results.setdefault(self, []).append(future)
        return future

    def result(self) -> list[torch.Tensor]:
        """The tensors that it fills."""
        return self.outputs
