"""The network alone decides wire time: flows under way, their cost, and the conditions that faults put on messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from simdist.cluster._flows import Flow, Load
from simdist.cluster._graph import Cluster
from simdist.cluster._links import Links, Path, shares
from simdist.cluster._pace import Pace, ends_ns
from simdist.cluster._wires import Wires

__all__ = ["Clock", "Condition", "Drawn", "Network"]


Drawn = Callable[[int, int | None], int]
"""The extra time of a message that leaves at the first number, under a condition that ends at the second (None: never).
Equal calls return the same."""

# A message that finds the network closed again at this many openings in a row never gets through: cuts that open
# and close in turn may never be open at the same time.
_MOST_OPENINGS = 10_000


class Clock(Protocol):
    """The part of a simulation that a network needs."""

    now_ns: int

    def call_at(self, time_ns: int, action: Callable[[], None]) -> Any:
        """Call `action` at that moment; `cancel()` of the returned timer withdraws it."""
        ...


@dataclass(frozen=True, slots=True)
class _Delay:
    source: int
    target: int
    delay_ns: int
    start_ns: int
    until_ns: int | None
    drawn_ns: Drawn | None = None


@dataclass(frozen=True, slots=True)
class _Limit:
    source: int
    target: int
    bandwidth: int  # bytes per second
    start_ns: int
    until_ns: int | None


@dataclass(frozen=True, slots=True)
class _Cut:
    side: dict[int, int]  # rank -> which side it is on; ranks on no side reach everyone
    start_ns: int
    until_ns: int | None
    one_way: bool = False  # only messages that leave the first side are cut off
    period_ns: int = 0  # closed, then open for the last `up_ns` of each period; 0: closed all the time
    up_ns: int = 0

    def blocks(self, source: int, target: int) -> bool:
        side = self.side
        if source not in side or target not in side or side[source] == side[target]:
            return False
        return not self.one_way or side[source] == 0

    def closed_until_ns(self, now_ns: int) -> int | None:
        if not self.period_ns:
            return self.until_ns
        end_ns = now_ns + self.period_ns - self.up_ns - (now_ns - self.start_ns) % self.period_ns
        return end_ns if self.until_ns is None else min(end_ns, self.until_ns)


@dataclass(frozen=True, slots=True)
class _Hold:
    source: int
    target: int
    start_ns: int
    until_ns: int | None

    def blocks(self, source: int, target: int) -> bool:
        return source == self.source and target == self.target

    def closed_until_ns(self, now_ns: int) -> int | None:
        return self.until_ns


class Condition:
    """One condition on a network, for `Network.lift`."""

    __slots__ = ("_what",)

    def __init__(self, what: _Delay | _Limit | _Cut | _Hold) -> None:
        self._what = what


def _active(condition: _Delay | _Limit | _Cut | _Hold, now_ns: int) -> bool:
    return condition.start_ns <= now_ns and (condition.until_ns is None or now_ns < condition.until_ns)


class Network:
    """A cluster, the flows on its links, and the conditions that faults put on it.

    A caller that moves bytes announces them with `begin`, or `follow`, with the time that they take when nothing else
    uses the same links; the network calls `moved` when that time changes. `clock` runs the flows; without one there are
    none.

    Example:
        >>> network = Network(build(2, latency_ns=10_000))
        >>> _ = network.delay(0, 1, 5_000)
        >>> network.latency_ns(0, 1, now_ns=0)
        55000
    """

    def __init__(self, cluster: Cluster, clock: Clock | None = None) -> None:
        self.cluster = cluster
        self.clock = clock
        self._links = Links(cluster)
        self._wires = Wires()
        self._timer: Any = None  # for the next change
        self._timer_ns: int | None = None
        self._delays: list[_Delay] = []
        self._limits: list[_Limit] = []
        self._barriers: list[_Cut | _Hold] = []
        # True once any condition was added: closed forms no longer hold. Hot: so a plain attribute.
        self.disturbed = False
        self.listeners: list[Callable[[], None]] = []  # called when a condition begins or ends

    # -- flows -------------------------------------------------------------------------------------------------------

    def path(self, source: int, target: int) -> Path:
        """The undisturbed path between two ranks."""
        return self._links.path(source, target)

    def busiest_ns(self, traffic: Iterable[tuple[int, int, float]]) -> float:
        """How long the busiest link is busy with the traffic between ranks: (source, target, bytes)."""
        return max(self._links.busy_ns(traffic).values(), default=0.0)

    def load(self, traffic: Iterable[tuple[int, int, float]]) -> Load:
        """The share of each link that a flow with this traffic takes at full speed: all of the fullest link."""
        busy = self._links.busy_ns(traffic)
        return shares(busy, max(busy.values(), default=1.0))

    def followed_load(self, rates: Iterable[tuple[int, int, float]]) -> Load:
        """The load of a followed flow with these bytes per nanosecond under way at this moment.

        Only where links are shared may the load exceed a link's capacity; the flow then slows itself down.
        """
        return shares(self._links.busy_ns(rates), 1.0, heavy=self.cluster.shared_links)

    @property
    def quiet(self) -> bool:
        """True if no bytes are on their way, and one flow alone exceeds no link's capacity."""
        clock = self.clock
        assert clock is not None
        return self._wires.is_quiet(clock.now_ns) and not self.cluster.shared_links

    def begin(
        self, entry_ns: int, end_ns: int, byte_ns: float, load: Callable[[], Load], moved: Callable[[], None]
    ) -> Flow:
        """Begin a flow at `entry_ns`, which alone ends at `end_ns`, with `byte_ns` a byte; calls `load` if needed."""
        flow = Flow(entry_ns, end_ns, byte_ns, load, moved)
        if self._wires.begin(flow, self.clock.now_ns):  # type: ignore[union-attr]  # hot: not looked at twice
            self._set_timer()
        return flow

    def follow(
        self,
        end_ns: int,
        byte_ns: float,
        asks: Callable[[], tuple[Load, int]],
        moved: Callable[[], None],
        pace: Pace | None = None,
    ) -> Flow:
        """Begin a flow whose messages are followed; under the present conditions it ends at `end_ns`, see `retime`.

        `asks` returns its load by link now, and until when that holds. `pace` is how fast the messages went before.
        """
        clock = self.clock
        assert clock is not None
        flow = Flow(clock.now_ns, end_ns, byte_ns, None, moved)
        flow.asks = asks
        flow.pace = pace
        if pace is not None:
            pace.change(clock.now_ns, 1.0)
        self._wires.begin(flow, clock.now_ns, heavy=self.cluster.shared_links)
        self._set_timer()
        return flow

    def retime(self, flow: Flow, end_ns: int, *, same: bool = False) -> None:
        """Move the end of a followed flow; `same` if its load on the links now is unchanged."""
        clock = self.clock
        assert clock is not None
        self._wires.retime(flow, end_ns, clock.now_ns, same=same)
        self._set_timer()

    def withdraw(self, flow: Flow) -> None:
        """Withdraw the rest of a flow. Does nothing to one that is over."""
        clock = self.clock
        assert clock is not None
        self._wires.withdraw(flow, clock.now_ns)
        self._set_timer()

    def close(self) -> None:
        """Drop all listeners: the world is over."""
        self.listeners.clear()
        self.clock = self._timer = self._timer_ns = None
        self._wires = Wires()

    def _set_timer(self) -> None:
        due_ns = self._wires.due_ns
        if due_ns == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ns = due_ns
        if due_ns is not None and self.clock is not None:
            self._timer = self.clock.call_at(due_ns, self._change)

    def _change(self) -> None:
        assert self.clock is not None
        self._timer = self._timer_ns = None
        for flow in self._wires.change(self.clock.now_ns):
            flow.moved()
        self._set_timer()

    # -- messages and conditions -------------------------------------------------------------------------------------

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency of a message that leaves now."""
        latency_ns = self.path(source, target).latency_ns
        for delay in self._delays:
            if delay.source == source and delay.target == target and _active(delay, now_ns):
                latency_ns += delay.delay_ns
                if delay.drawn_ns is not None:
                    latency_ns += delay.drawn_ns(now_ns, delay.until_ns)
        return latency_ns

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through: now, the end of a partition or hold, or None for never."""
        moment = now_ns
        for _ in range(_MOST_OPENINGS):
            opens_ns = moment
            for barrier in self._barriers:
                if _active(barrier, moment) and barrier.blocks(source, target):
                    end_ns = barrier.closed_until_ns(moment)
                    if end_ns is None:
                        return None
                    opens_ns = max(opens_ns, end_ns)
            if opens_ns == moment:
                return moment
            moment = opens_ns
        return None

    @property
    def has_limits(self) -> bool:
        """True if the bandwidth between two ranks was ever limited."""
        return bool(self._limits)

    def through_ns(self, source: int, target: int, size_bytes: float, start_ns: int, end_ns: int) -> int:
        """When so many bytes that start at `start_ns` are through; without a limit they take until `end_ns`."""
        limits = [each for each in self._limits if each.source == source and each.target == target]
        if not limits or not size_bytes:
            return end_ns
        moments = {moment for each in limits for moment in (each.start_ns, each.until_ns) if moment is not None}
        full = 1 / self.path(source, target).byte_ns
        moment, left = start_ns, float(size_bytes)
        for change_ns in sorted(each for each in moments if each > start_ns):
            rate = self._rate(limits, moment, full)
            if moment + left / rate <= change_ns:
                break
            left -= (change_ns - moment) * rate
            moment = change_ns
        return max(end_ns, ends_ns(moment, left, self._rate(limits, moment, full)))

    def _rate(self, limits: Iterable[_Limit], now_ns: int, full: float) -> float:
        """The bytes per nanosecond that get through now."""
        return min([full, *(each.bandwidth / 1e9 for each in limits if _active(each, now_ns))])

    def disturbed_after(self, now_ns: int) -> bool:
        """True if a known condition lasts beyond this moment."""
        return any(
            each.until_ns is None or each.until_ns > now_ns for each in (*self._barriers, *self._delays, *self._limits)
        )

    def varies(self, source: int, target: int) -> bool:
        """True if a part of the latency of messages between the two is drawn, now or at another time."""
        return any(d.source == source and d.target == target and d.drawn_ns is not None for d in self._delays)

    def delay(
        self,
        source: int,
        target: int,
        delay_ns: int,
        *,
        start_ns: int = 0,
        until_ns: int | None = None,
        drawn_ns: Drawn | None = None,
    ) -> Condition:
        """Delay messages from `source` to `target` by `delay_ns`, and by a drawn time, while the condition lasts.

        A caller that sends several messages from one rank to another keeps them in order.
        """
        delay = _Delay(source, target, delay_ns, start_ns, until_ns, drawn_ns)
        self._delays.append(delay)
        return self._added(delay)

    def limit(
        self, source: int, target: int, bandwidth: int, *, start_ns: int = 0, until_ns: int | None = None
    ) -> Condition:
        """Let no more than `bandwidth` bytes per second pass from `source` to `target` while the condition lasts."""
        limit = _Limit(source, target, bandwidth, start_ns, until_ns)
        self._limits.append(limit)
        return self._added(limit)

    def cut(
        self,
        groups: Iterable[Iterable[int]],
        *,
        start_ns: int = 0,
        until_ns: int | None = None,
        one_way: bool = False,
        period_ns: int = 0,
        up_ns: int = 0,
    ) -> Condition:
        """Let nothing pass between ranks of different `groups` while the condition lasts.

        If it is `one_way`, only messages from the first group to the others are blocked. With a period it is closed
        at first, and open for the last `up_ns` of each period.
        """
        side = {rank: index for index, group in enumerate(groups) for rank in group}
        cut = _Cut(side, start_ns, until_ns, one_way, period_ns, up_ns)
        self._barriers.append(cut)
        return self._added(cut)

    def hold(self, source: int, target: int, *, start_ns: int = 0, until_ns: int | None = None) -> Condition:
        """Keep messages from `source` to `target` in flight while the condition lasts.

        They keep their order, and leave at its end as if sent then.
        """
        hold = _Hold(source, target, start_ns, until_ns)
        self._barriers.append(hold)
        return self._added(hold)

    def lift(self, condition: Condition, now_ns: int) -> None:
        """End a condition now; does nothing to one that has ended."""
        old = condition._what
        if old.until_ns is not None and old.until_ns <= now_ns:
            return
        new: Any = replace(old, until_ns=now_ns)
        conditions: list[Any] = self._barriers
        if isinstance(old, _Delay):
            conditions = self._delays
        elif isinstance(old, _Limit):
            conditions = self._limits
        conditions[next(index for index, each in enumerate(conditions) if each is old)] = new
        condition._what = new
        self._report()

    def _added(self, what: _Delay | _Limit | _Cut | _Hold) -> Condition:
        self.disturbed = True
        self._report()
        return Condition(what)

    def _report(self) -> None:
        for listener in list(self.listeners):
            listener()
