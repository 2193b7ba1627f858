"""The judge of collectives. At the end of all ranks: collectives that some ranks called more often, groups that some
never joined, works without a wait, messages that were never received. At once: gradients that are reduced twice
(`_twice_reduced.py`), losses that are divided once too often (`_scaled_losses.py`), and threads that use one group in
no order (`_thread_order.py`).

For works without a wait and lost messages, strict worlds raise an error themselves, and this judge reports nothing.

Works on devices are ordered by streams, and a program may wait for the streams instead: these works need no wait here.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from simdist.c10d import WorkIssued, issued_by_torch
from simdist.c10d.calls import names_where
from simdist.judges._judge import Ending, Hearing, Judge, Moment
from simdist.judges._scaled_losses import ScaledLosses
from simdist.judges._sites import site_of
from simdist.judges._thread_order import ThreadOrder
from simdist.judges._twice_reduced import TwiceReduced
from simdist.trace import events_of
from simdist.values import rank_text

if TYPE_CHECKING:
    from simdist.c10d import RankState, SimWork
    from simdist.c10d.engine import Communicator

__all__ = ["Collectives"]

_SAME_SIZE = names_where(lambda row: row.payload == "flat" and not row.is_message)
_MOST_OPEN = 256  # collectives that some ranks have not called yet


class Collectives(Judge):
    """Every rank calls every collective of its groups, and the program waits for every operation that it issues.

    Gradients are reduced once, and a loss is not divided by the number of ranks before DDP averages its gradients.
    """

    name: ClassVar[str] = "collectives"

    def begin(self, hearing: Hearing) -> None:
        """Listen to issued operations, and look at the end for what is left."""
        watch = _Watch(hearing)
        hearing.listen(WorkIssued, watch.on_issue)
        hearing.at_end(watch.on_end)


@dataclass(slots=True)
class _Last:
    """The last collective of a rank in a group."""

    moment: Moment
    name: str
    elements: int  # 0 if ranks may have different numbers

    def said(self) -> str:
        """Return the call as text."""
        return f"{self.name} of {self.elements} elements" if self.name in _SAME_SIZE else self.name


class _Watch:
    """The judge's state for one world."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._twice = TwiceReduced(hearing)
        self._losses = ScaledLosses(hearing, self._twice.models_of)
        self._order = ThreadOrder(hearing)
        self._groups: dict[Communicator, dict[int, _Last]] = {}  # by communicator and rank
        # Collectives that only some of their ranks have called, by group and number.
        self._open: dict[tuple[Communicator, int], dict[int, _Last] | None] = {}
        # The first collective that ranks called differently.
        self._different: tuple[Communicator, int, dict[int, _Last]] | None = None
        # By life and rank: torch's state of the process, with the works without a wait so far. Works are kept only
        # there, because a work that is over must not keep its tensors.
        self._states: dict[tuple[int, int], RankState] = {}

    def on_issue(self, event: WorkIssued) -> None:
        """Note an issued work."""
        work = event.work
        process = work.process
        if process.parent is not None or not work.member.communicator.counted:
            return
        frame = sys._getframe(1)
        moment = self._hearing.moment(process, site_of(frame))
        by_torch = issued_by_torch(frame)
        if work.name == "all_reduce" and not by_torch:
            self._twice.on_reduction(event, moment)
        if event.reduction and not by_torch:
            for tensor in work.outputs:
                if getattr(tensor, "grad_fn", None) is not None:
                    self._losses.on_reduction(event, tensor, moment)
        if work.name not in ("send", "recv"):
            self._order.on_call(work, moment)
            elements = sum(map(math.prod, event.shapes)) if work.name in _SAME_SIZE else 0
            last = _Last(moment, work.name, elements)
            self._groups.setdefault(work.member.communicator, {})[process.rank] = last
            if self._different is None:
                self._compare(work.member.communicator, work.sequence, last)
        if event.asynchronous and not self._hearing.strict and not getattr(work, "inner", False):
            alone = work.member.communicator.size == 1  # then there is nothing to wait for
            if not (alone or by_torch or _is_on_device(work.outputs)):
                state = self._states[process.life, process.rank] = process.torch_state
                state.unwaited[work] = moment

    def _compare(self, group: Communicator, number: int, call: _Last) -> None:
        """Compare a call with those of the other ranks, when the last one has called."""
        calls = self._open.setdefault((group, number), {})
        if calls is None or call.moment.rank in calls or call.name == "coalesced":
            self._open[group, number] = None  # several calls share a number, so they can't be compared
            return
        calls[call.moment.rank] = call
        if len(calls) == group.size:
            del self._open[group, number]
            if len({(each.name, each.elements) for each in calls.values()}) > 1:
                self._different = group, number, calls
        elif len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]

    def on_end(self, ending: Ending) -> None:
        """Report what is left when the world has ended."""
        last = len(ending.statuses) - 1
        if not ending.all_returned(last):
            return  # what is left is then a result of the failure
        left: dict[SimWork, Moment] = {
            work: moment
            for (life, _), state in self._states.items()
            if life == last
            for work, moment in state.unwaited.items()
            if isinstance(moment, Moment)
            if not (work.done and work.polling is not None)  # seen to be done
        }
        failed = _groups_that_failed(
            ending,
            {(work.process.rank, work.member.communicator.name, work.name, work.sequence) for work in left},
        )
        if self._different is not None and _life(self._different[2]) == last:
            if self._different[0].name not in failed:
                self._report_different(*self._different)
            return
        found = [
            self._look_at_group(group, ranks)
            for group, ranks in self._groups.items()
            if _life(ranks) == last and group.name not in failed
        ]
        if not any(found):
            for work, moment in left.items():
                if work.member.communicator.name not in failed:
                    self._report_work(work, moment)

    def _report_different(self, group: Communicator, number: int, calls: dict[int, _Last]) -> None:
        said = Counter(call.said() for call in calls.values())
        # Between equally many, the call of the highest rank counts as right: a lone wrong rank is usually the root.
        expected = max(said, key=lambda text: (said[text], max(r for r, call in calls.items() if call.said() == text)))
        blamed = min(rank for rank, call in calls.items() if call.said() != expected)
        others = sorted(rank for rank, call in calls.items() if call.said() == expected)
        self._hearing.find(
            f"{calls[blamed].said()} as #{number} in group {group.name!r}, where {rank_text(others)} called {expected}",
            calls[blamed].moment,
            subject=group.name,
            against=calls[others[0]].moment.where,
        )

    def _look_at_group(self, group: Communicator, called: dict[int, _Last]) -> bool:
        absent = [rank for rank, member in enumerate(group.members) if member is None]
        if absent:
            rank = min(called)
            self._hearing.find(
                f"{rank_text(sorted(called))} used group {group.name!r}, which {len(absent)} of its {group.size} "
                "members never joined",
                called[rank].moment,
                subject=group.name,
            )
            return True
        counts = {member.process.rank: member.sequence for member in group.members if member is not None}
        if len(set(counts.values())) < 2:
            return False
        most = max(Counter(counts.values()).values())
        usual = {count for count in counts.values() if list(counts.values()).count(count) == most}
        expected = min(usual)  # between equally many, blame those with more calls, which the others did not join
        blamed = next(rank for rank, count in counts.items() if count != expected)
        others = [rank for rank, count in counts.items() if count == expected]
        mine, other = called.get(blamed), called.get(others[0])
        moment = Moment(blamed, _life(called), 0, 0, "") if mine is None else mine.moment
        more = counts[blamed] > expected
        name = "collective" if mine is None else mine.name
        problem = f"{counts[blamed]} collectives in group {group.name!r}, {rank_text(others)} {expected}: " + (
            f"its last, {name} #{counts[blamed] - 1}, has no counterpart" if more else f"its last was {name}"
        )
        self._hearing.find(problem, moment, subject=group.name, against="" if other is None else other.moment.where)
        return True

    def _report_work(self, work: SimWork, moment: Moment) -> None:
        what = work.describe()
        if work.name == "send" and not work.done:
            problem = f"{what} was never received"
        elif work.name == "recv" and not work.done:
            problem = f"{what} never got a message"
        else:
            problem = f"nobody waited for {what}"
        self._hearing.find(problem, moment, subject=what)


def _groups_that_failed(ending: Ending, unheard: set[tuple[object, ...]]) -> set[str]:
    """Return the groups with a failed operation that the program has noticed: what is left there is a result of that.

    `unheard` are works without a wait, by rank, group, name and number.
    """
    found: set[str] = set()
    for event in events_of(ending.events, "restart", "error"):
        if event.kind == "restart":
            found.clear()
        else:
            group = str(event.data["group"])
            if (event.rank, group, event.data["op"], event.data["seq"]) not in unheard:
                found.add(group)
    return found


def _is_on_device(given: object) -> bool:
    if isinstance(given, list | tuple):
        return any(map(_is_on_device, given))
    return bool(getattr(given, "is_cuda", False))


def _life(called: dict[int, _Last]) -> int:
    return next(iter(called.values())).moment.life
