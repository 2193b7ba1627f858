"""The judge of buffers: a tensor in flight must not change between the call of an operation and the read of its data.

A backend reads the memory of a send when the receiver is ready, and that of a collective when the others have arrived,
which may be long after `isend` or a call with `async_op=True` has returned. If the program writes there in between, the
new values are sent, on some schedules only. For sends, strict worlds raise an error themselves, and this judge reports
nothing.

A collective fills one tensor for each rank. `[tensor] * n` is a single tensor, in which only the last rank's data
remains. This is reported if the ranks' inputs differ.

Doubts: among collectives, only the program's own are checked, not torch's. The judge does not see reads before the
wait, nor writes after the data was read. Memory of devices is ordered by streams, and copied if it is changed too early
(`simdist.device`).
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch

from simdist.c10d import CollectiveRead, MessageRead, WorkIssued, WorkWaited, issued_by_torch
from simdist.c10d.calls import names_where
from simdist.c10d.engine import P2PWork
from simdist.judges._bits import bits_of, tensors_in
from simdist.judges._judge import Hearing, Judge, Moment
from simdist.judges._sites import site_of
from simdist.kernel import PASS, Verdict

if TYPE_CHECKING:
    from simdist.c10d import SimWork

__all__ = ["Buffers"]

_Bits = list[int | None]
_SEVERAL = names_where(lambda row: row.payload in ("gathered", "exchanged"))  # operations that fill a list of tensors


class Buffers(Judge):
    """No tensor is changed between `isend`, or a collective with `async_op=True`, and the moment it is read.

    And no collective fills the same memory for several ranks.
    """

    name: ClassVar[str] = "buffers"

    def begin(self, hearing: Hearing) -> None:
        """Read tensors when operations are issued, and again when their data is read."""
        watch = _Watch(hearing)
        hearing.listen(WorkIssued, watch.on_issue)
        hearing.listen(CollectiveRead, watch.on_collective)
        hearing.listen(WorkWaited, watch.on_wait)
        if not hearing.strict:
            hearing.look_before(MessageRead, watch.on_message)


class _Watch:
    """The tensors of one world that operations hold."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._held: dict[SimWork, tuple[Sequence[torch.Tensor], _Bits, Moment]] = {}  # by work
        self._given: dict[SimWork, Sequence[torch.Tensor]] = {}  # inputs of open collectives that fill lists
        self._doubled: dict[SimWork, Moment] = {}  # those collectives that fill some memory more than once

    def on_issue(self, event: WorkIssued) -> None:
        """Keep the bits of an operation's inputs, if it may not be over when the call returns."""
        work = event.work
        if work.name in _SEVERAL:
            self._given[work] = event.reads
            outputs = tensors_in(work.outputs)
            if _overlap(outputs):
                if _fills_up(event.reads, outputs):
                    self._given[work] = ()
                self._doubled[work] = self._hearing.moment(work.process, site_of(sys._getframe(1)))
        if work.name == "send":
            reads = []
            if isinstance(work, P2PWork) and not (self._hearing.strict or work.tensor.is_cuda or work.inner):
                reads = [work.tensor]
        elif not event.asynchronous or not event.reads or work.member.communicator.size == 1:
            return
        else:
            reads = [] if issued_by_torch(sys._getframe(1)) else list(event.reads)
        if reads:
            moment = self._hearing.moment(work.process, site_of(sys._getframe(1)))
            self._held[work] = reads, _bits(reads), moment

    def on_message(self, event: MessageRead) -> Verdict:
        """Compare a send's data when it leaves."""
        if event.send in self._held and self._changed(event.send):
            self._report(event.send, "its data left", "wait for the send before the tensor is used again")
        self._held.pop(event.send, None)
        return PASS

    def on_collective(self, event: CollectiveRead) -> None:
        """Compare the data of a collective when it is read."""
        if self._given:
            self._look_at_given(event.works)
        for work in event.works if self._held else ():
            if work in self._held:
                if self._changed(work):
                    self._report(work, "it was read", "wait for the work before the tensor is used again")
                del self._held[work]

    def on_wait(self, event: WorkWaited) -> None:
        """Forget an operation that is over or has failed."""
        self._held.pop(event.work, None)
        self._given.pop(event.work, None)
        self._doubled.pop(event.work, None)

    def _look_at_given(self, works: Sequence[SimWork]) -> None:
        given = [tensor for work in works for tensor in self._given.pop(work, ())]
        doubled = [(work, moment) for work in works if (moment := self._doubled.pop(work, None)) is not None]
        if not doubled or len(set(_bits(given)) - {None}) < 2:
            return
        work, moment = min(doubled, key=lambda each: each[1].rank)
        what = work.describe()
        self._hearing.find(
            f"{what} fills the same memory for several ranks",
            moment,
            subject=what,
            notes=["only what came last is left; make a tensor for each rank, for `[tensor] * n` is one"],
        )

    def _changed(self, work: SimWork) -> bool:
        reads, before, _ = self._held[work]
        return any(old is not None and new not in (None, old) for old, new in zip(before, _bits(reads), strict=True))

    def _report(self, work: SimWork, until: str, advice: str) -> None:
        what = work.describe()
        goes = "the receiver gets" if work.name == "send" else "the others get"
        self._hearing.find(
            f"the tensor of {what} was changed before {until}",
            self._held[work][2],
            subject=what,
            notes=[f"{goes} the new values; {advice}"],
        )


def _overlap(outputs: Sequence[torch.Tensor]) -> bool:
    """True if two of these dense tensors overlap in memory."""
    places = []
    for each in outputs:
        with contextlib.suppress(RuntimeError):  # a tensor without its own memory
            if each.layout is torch.strided and each.numel() and each.is_contiguous():
                places.append((each.data_ptr(), each.data_ptr() + each.nbytes))
    return any(end > begin for (_, end), (begin, _) in pairwise(sorted(places)))


def _fills_up(reads: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """True if a rank gives what its list repeats, beside tensors of other ranks: it has nothing to give."""
    with contextlib.suppress(RuntimeError):
        places = Counter(each.data_ptr() for each in outputs)
        return len(places) > 1 and all(places[each.data_ptr()] > 1 for each in reads)
    return False


def _bits(tensors: Sequence[torch.Tensor]) -> _Bits:
    return [bits_of(tensor) for tensor in tensors]
