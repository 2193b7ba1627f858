"""Flows that share links: their speeds, since when they have them, and when each flow ends.

A plain state machine: it takes flows, and at each moment that it names (`due_ns`) returns those whose speed has
changed. `Network` does the waiting, and the owners of the flows act on the changes.

A flow waits for its latency without using anything, moves its bytes from `entry_ns` on, and is over at `end_ns`, as far
as is known. Only other flows make it end at another time, so:

- No call is needed when a flow is over. A caller that meets one whose end has passed takes it off.
- A flow that is the only one in the whole network is only remembered: its links are not even looked up.
  That is the case of every blocking collective of one group; it costs a comparison and two assignments.
- A flow that begins where others are is put on its links. If there are other flows at its entry, links are shared out
  then, and also at the entry of a flow that was there alone, and at the next end among flows that are connected by
  links.
- Changes at one moment are shared out once, after all else at that moment that was planned before.

Invariants: `speed` is the flow's speed since `since_ns`, and `left_ns` what it had left then, at full speed. An
end changes only if the speed does, so rounding errors do not accumulate. Flows and links are always looked at in the
order in which they were added.

There are two kinds of flows. One knows its bytes: the bytes left decide when it ends. The other is *followed*:
its owner works it out message by message, returns its load by link at a moment and until when that holds
(`asks`), gets its speeds, and says when it ends. All its messages have the speed of the slowest of them: that is
the only approximation here. It errs towards contention, and only where some of its links are shared and others are not.
"""

from __future__ import annotations

import heapq

from simdist.cluster._filling import fill
from simdist.cluster._flows import Flow, Link, Load
from simdist.cluster._pace import Pace, ends_ns

__all__ = ["Wires"]


class Wires:
    """All flows of a network. See the top of the file."""

    __slots__ = ("_alone", "_begun", "_events", "_occupied", "_quiet_ns")

    def __init__(self) -> None:
        self._alone: Flow | None = None  # the only one; not on its links
        self._quiet_ns = -1  # when all flows so far are over, as far as is known
        self._occupied: dict[Link, None] = {}  # links that have or had flows
        self._events: list[tuple[int, int, Flow]] = []  # heap: when to look at which flow
        self._begun = 0

    @property
    def due_ns(self) -> int | None:
        """When `change` has to be called next; None if nothing can change until another call."""
        return self._events[0][0] if self._events else None

    def is_quiet(self, now_ns: int) -> bool:
        """True if all flows that ever began are over."""
        return now_ns >= self._quiet_ns

    def begin(self, flow: Flow, now_ns: int, heavy: bool = False) -> bool:
        """Begin a flow; a `heavy` one may exceed its links' capacity even alone.

        Returns False if it is the only one, as the one before was: `due_ns` is still None.
        """
        if now_ns >= self._quiet_ns and not heavy:  # hot
            self._alone = flow
            self._quiet_ns = flow.end_ns
            if not self._occupied:
                return False
            self._clear()
            return True
        if self._alone is not None:
            alone, self._alone = self._alone, None
            if alone.end_ns > now_ns:
                self._put(alone, now_ns)
        self._put(flow, now_ns)
        return True

    def withdraw(self, flow: Flow, now_ns: int) -> None:
        """Withdraw a flow, even if it has bytes left. Does nothing to one that is over."""
        if flow.end_ns <= now_ns:
            return
        flow.end_ns = now_ns
        if flow is self._alone:
            self._quiet_ns = now_ns
        elif flow.links is not None and flow.entry_ns <= now_ns:
            self._look(flow, now_ns)

    def retime(self, flow: Flow, end_ns: int, now_ns: int, *, same: bool = False) -> None:
        """Move the end of a followed flow; unless it has the `same` load on its links as before, call `asks` again."""
        flow.end_ns = end_ns
        self._quiet_ns = max(self._quiet_ns, end_ns)
        if flow.links is not None:
            assert flow.asks is not None
            self._look(flow, min(end_ns, flow.asks()[1]) if same else now_ns)

    def change(self, now_ns: int) -> list[Flow]:
        """Share out links that have to be shared out now; returns the flows whose speed changed."""
        concerned: list[Flow] = []  # those that begin or change now, and the neighbours of these and of ended ones
        while self._events and self._events[0][0] <= now_ns:
            time_ns, _, flow = heapq.heappop(self._events)
            if flow.links is None or flow.look_ns != time_ns:
                continue  # another caller took it off, or it is to be looked at at another moment
            flow.look_ns = -1
            if flow.end_ns <= now_ns:
                concerned += self._take_off(flow)
            elif flow.asks is not None:
                concerned += self._take_off(flow)
                load, until_ns = flow.asks()
                self._stand(flow, load)
                self._look(flow, min(flow.end_ns, until_ns))
                concerned.append(flow)
            elif flow.entry_ns == now_ns:
                concerned.append(flow)  # otherwise its end has moved since that was planned
        moved: list[Flow] = []
        found: dict[Flow, None] = {}
        for flow in concerned:  # which grows: see `_component`
            if flow not in found and flow.entry_ns <= now_ns < flow.end_ns:
                component = self._component(flow, now_ns, concerned)
                found.update(dict.fromkeys(component))
                moved += self._share_out(component, now_ns)
        return sorted(moved, key=lambda flow: flow.sequence)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        for link in self._occupied:
            link.flows.clear()
        self._occupied.clear()
        self._events.clear()

    def _put(self, flow: Flow, now_ns: int) -> None:
        """Put a flow on its links, and note when it meets others there."""
        flow.sequence = self._begun
        self._begun += 1
        self._quiet_ns = max(self._quiet_ns, flow.end_ns)
        if flow.asks is not None:
            self._stand(flow, {})
            self._look(flow, now_ns)
            return
        assert flow.load is not None
        load = flow.load()
        crowded = False
        for link in load:
            while link.flows:
                first = next(iter(link.flows))
                if first.end_ns >= now_ns:
                    crowded = True
                    if len(link.flows) == 1 and first.entry_ns > now_ns:
                        self._look(first, first.entry_ns)  # it was the first there, and no look was planned for it
                    break
                self._take_off(first)
        self._stand(flow, load)
        if crowded:
            self._look(flow, flow.entry_ns)

    def _stand(self, flow: Flow, load: Load) -> None:
        flow.links = load
        for link, share in load.items():
            link.flows[flow] = share
            self._occupied[link] = None

    def _take_off(self, flow: Flow) -> list[Flow]:
        """Take a flow off its links; returns the flows that are still there."""
        beside: list[Flow] = []
        for link in flow.links or ():
            link.flows.pop(flow, None)
            beside += link.flows
        flow.links = None
        return beside

    def _look(self, flow: Flow, time_ns: int) -> None:
        """Plan to look at a flow at that moment, instead of the one that was planned before."""
        if flow.look_ns != time_ns:
            flow.look_ns = time_ns
            heapq.heappush(self._events, (time_ns, flow.sequence, flow))

    def _component(self, start: Flow, now_ns: int, concerned: list[Flow]) -> list[Flow]:
        """The flows under way that links connect with `start`; neighbours of ended flows are added to `concerned`."""
        found: dict[Flow, None] = {start: None}
        ready = [start]
        seen: dict[Link, None] = {}
        while ready:
            for link in ready.pop().links or ():
                if link in seen:
                    continue
                seen[link] = None
                for flow in list(link.flows):
                    if flow.end_ns <= now_ns:
                        concerned += self._take_off(flow)
                    elif flow.entry_ns > now_ns:
                        self._look(flow, flow.entry_ns)
                    elif flow not in found:
                        found[flow] = None
                        ready.append(flow)
        return sorted(found, key=lambda flow: flow.sequence)

    def _share_out(self, component: list[Flow], now_ns: int) -> list[Flow]:
        """Set the speed of each flow, and plan the next look; returns those whose speed has changed."""
        speeds = fill([flow.links or {} for flow in component], [flow.byte_ns for flow in component])
        moved = [flow for flow, speed in zip(component, speeds, strict=True) if self._set(flow, speed, now_ns)]
        ending = [flow for flow in component if flow.asks is None]  # of the followed ones the next look is known
        if ending and len(component) > 1:
            first = min(ending, key=lambda flow: flow.end_ns)
            self._look(first, first.end_ns)
        return moved

    def _set(self, flow: Flow, speed: float, now_ns: int) -> bool:
        """Set the speed of a flow from now on; True if it has changed."""
        if speed == flow.speed:
            return False
        if flow.since_ns < 0:
            flow.since_ns, flow.left_ns = flow.entry_ns, flow.end_ns - flow.entry_ns
        flow.left_ns -= (now_ns - flow.since_ns) * flow.speed
        flow.since_ns, flow.speed = now_ns, speed
        if flow.pace is None:
            flow.pace = Pace()
        flow.pace.change(now_ns, speed)
        if flow.asks is None:
            flow.end_ns = ends_ns(now_ns, flow.left_ns, speed)
            self._quiet_ns = max(self._quiet_ns, flow.end_ns)
        return True
