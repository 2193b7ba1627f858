"""A tensor that is on its way is left alone: what a send takes is what was there when it was called.

A backend reads the memory of a send when the receiver is ready, which may be long after `isend`. What the program
writes there meanwhile arrives instead, on some schedules only. Strict worlds make an error of it themselves; there this
judge says nothing.

Doubt: of collectives nobody is told when their memory is read, so that only sends are looked at. Memory of devices is
ordered by streams, and copied where it is changed too early (`simdist.device`).
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from simdist.c10d import MessageRead, WorkIssued
from simdist.judges._bits import bits_of
from simdist.judges._judge import Hearing, Judge, Moment
from simdist.judges._sites import site_of
from simdist.kernel import PASS, Verdict

__all__ = ["Buffers"]


class Buffers(Judge):
    """No tensor is changed between `isend` and the moment at which its data leaves."""

    name: ClassVar[str] = "buffers"

    def begin(self, hearing: Hearing) -> None:
        """Look at sends when they are issued, and when they are read."""
        if hearing.strict:
            return
        held: dict[Any, tuple[int | None, Moment]] = {}

        def on_issue(event: WorkIssued) -> None:
            work: Any = event.work
            tensor = getattr(work, "tensor", None)  # works on devices have none
            if work.name == "send" and tensor is not None and not work.inner and not tensor.is_cuda:
                moment = hearing.moment(work.process, site_of(sys._getframe(1)))
                held[work] = bits_of(tensor), moment

        def on_read(event: MessageRead) -> Verdict:
            bits, moment = held.pop(event.send, (None, None))
            if moment is not None and bits not in (None, bits_of(event.send.tensor)):
                hearing.find(
                    f"the tensor of {event.send.describe()} was changed before its data left",
                    moment,
                    subject=event.send.describe(),
                    notes=["the receiver gets the new values; wait for the send before the tensor is used again"],
                )
            return PASS

        hearing.listen(WorkIssued, on_issue)
        hearing.look_before(MessageRead, on_read)
