"""WorkNCCL: what a rank holds in the hand of a call."""

from __future__ import annotations

from simdist.c10d.engine._stream_work import StreamWork

__all__ = ["NcclWork"]


class NcclWork(StreamWork):
    """One call of one rank."""

    def is_success(self) -> bool:
        """Nobody asks that of NCCL any more.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")
