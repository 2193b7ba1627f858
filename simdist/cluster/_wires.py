"""Flows that share links: who goes how fast from when on, and when each ends.

A plain state machine: flows in, and at each moment that it names (`due_ns`) those whose speed has changed. `Network`
does the waiting, and the owners of the flows act on that.

A flow waits for its latency without using anything, moves its bytes from `entry_ns` on, and is over at `end_ns`; that
is when it ends as far as is known. Only others make it end at another time, so:

- Nobody has to say that a flow is over. A caller that meets one whose end has passed takes it off.
- A flow that is the only one in the whole network is remembered and nothing else: its links are not even looked up.
  That is the case of every blocking collective of one group; it costs a comparison and two assignments.
- A flow that begins where others are is put on its links. Its entry is a moment to share out if somebody is there, and
  so is that of the one that was there alone. So is the next end among those that hang together by links.
- What happens at one moment is shared out once, behind all else at that moment that was planned before.

Invariants: `speed` is what the flow has had since `since_ns`, and `left_ns` what it had left then, at full speed. An
end changes only if the speed does, so rounding never creeps in. Flows and links are always looked at in the order in
which they came.

There are two kinds of flows. One knows its bytes: what is left of them decides when it ends. The other is *followed*:
someone works out message by message what becomes of it, says what it has on which links at a moment and until when
(`asks`), is given its speeds, and says when it ends. All its messages have the speed of the slowest of them: that is
the one approximation here. It errs towards contention, and only where some of its links are shared and others are not.
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
        self._quiet_ns = -1  # by then all that ever began is over, as far as is known
        self._occupied: dict[Link, None] = {}  # links that have or had flows
        self._events: list[tuple[int, int, Flow]] = []  # heap: when to look at which flow
        self._begun = 0

    @property
    def due_ns(self) -> int | None:
        """When `change` has to be called next; None if nothing can change by itself."""
        return self._events[0][0] if self._events else None

    def is_quiet(self, now_ns: int) -> bool:
        """True if all that ever began is over."""
        return now_ns >= self._quiet_ns

    def begin(self, flow: Flow, now_ns: int, heavy: bool = False) -> bool:
        """A flow is there from now on; a `heavy` one may be more than its links can take even alone.

        Returns False if it is the only one, as the one before was: `due_ns` is None as it was.
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
        """A flow is there no longer, whatever it has left. Does nothing to one that is over."""
        if flow.end_ns <= now_ns:
            return
        flow.end_ns = now_ns
        if flow is self._alone:
            self._quiet_ns = now_ns
        elif flow.links is not None and flow.entry_ns <= now_ns:
            self._look(flow, now_ns)

    def retime(self, flow: Flow, end_ns: int, now_ns: int, *, same: bool = False) -> None:
        """A followed flow ends at another time; unless it has the `same` on its links as before, ask it again."""
        flow.end_ns = end_ns
        self._quiet_ns = max(self._quiet_ns, end_ns)
        if flow.links is not None:
            assert flow.asks is not None
            self._look(flow, min(end_ns, flow.asks()[1]) if same else now_ns)

    def change(self, now_ns: int) -> list[Flow]:
        """Share out what has to be shared out now; returns the flows whose speed changed."""
        concerned: list[Flow] = []  # those that begin or change now, and those that were beside them or beside an end
        while self._events and self._events[0][0] <= now_ns:
            time_ns, _, flow = heapq.heappop(self._events)
            if flow.links is None or flow.look_ns != time_ns:
                continue  # somebody took it off, or it is to be looked at at another moment
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
                        self._look(first, first.entry_ns)  # it was the first there, and nobody looked at it
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
        """Take a flow off its links; returns who is still there."""
        beside: list[Flow] = []
        for link in flow.links or ():
            link.flows.pop(flow, None)
            beside += link.flows
        flow.links = None
        return beside

    def _look(self, flow: Flow, time_ns: int) -> None:
        """Look at a flow at that moment, and not at the one that was planned before."""
        if flow.look_ns != time_ns:
            flow.look_ns = time_ns
            heapq.heappush(self._events, (time_ns, flow.sequence, flow))

    def _component(self, start: Flow, now_ns: int, concerned: list[Flow]) -> list[Flow]:
        """The flows under way that hang together with `start`; who is beside an end on the way is `concerned` too."""
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
        """Give each its speed, and note when to look again; returns those whose speed is another one."""
        speeds = fill([flow.links or {} for flow in component], [flow.byte_ns for flow in component])
        moved = [flow for flow, speed in zip(component, speeds, strict=True) if self._set(flow, speed, now_ns)]
        ending = [flow for flow in component if flow.asks is None]  # of the others the next look is known
        if ending and len(component) > 1:
            first = min(ending, key=lambda flow: flow.end_ns)
            self._look(first, first.end_ns)
        return moved

    def _set(self, flow: Flow, speed: float, now_ns: int) -> bool:
        """Give a flow its speed from now on; True if that is another one."""
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
