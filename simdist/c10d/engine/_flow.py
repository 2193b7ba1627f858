"""The messages of one collective, worked out as a dataflow in virtual time.

A plain state machine: arrivals, limits and closed pairs go in, each rank's outcome comes out; no task, no waiting. A
rank runs its program (see `_program`) from its arrival on; the k-th send between two ranks meets the k-th receive.
Sends are rendezvous at every size, as Gloo's: the data leaves when the receiver's word that it has posted has reached
the sender.

A rank's messages leave one after the other, in the order in which it becomes known that they can; different ranks of
one collective do not compete for a link. Different operations do: the network takes the collective for one flow,
with the messages that are under way at each moment on their links, and gives it a speed (a `Pace`), by which every
message takes longer.

Three ways to learn something new, from cheap to expensive:
- More arrivals, and the end of a connection whose transfers are all over, add to what is known.
- Another pace does not change which messages meet, and in which order: that depends on the programs and on the order of
  arrivals, and on moments only through limits and closed pairs. So a flow on the wires keeps a script of its steps, and
  `retime` repeats them at the new moments. It repeats every comparison with a limit or with the end of a connection; if
  one has another result, the script is invalid. Transfers that were through before the pace changed are not repeated.
  The bytes stay as they are: they moved in that order.
- The end of a connection that cuts a transfer off changes what would have happened later. The caller then builds a new
  flow with all the facts; `quiet` distinguishes the two kinds of ends. What happened before comes out the same.

Invariants:
- Everything that can happen has happened when a call returns: `_ready` is empty, and each rank that has arrived is
  done, has failed, or is stuck in a wait whose transfer has not been matched, or is lost.
- A rank's clock never goes back, and no transfer ends before both its posts.
- A flow that was retimed finds the same as one that is built anew with the same facts, including the order of
  `changed`, since that is the order of timers; a property test checks this.
- No rank that fails in `conclude` could have helped another.

What was tried: a new flow at every change; see `_followed`. Messages are not worked out in the order of time, as
they become due, although a change of pace would hardly disturb that: `under_way` needs the load on the wires of the
moments ahead, and timers and faults that strike half-way need to know when each rank is done.

Exact: a collective alone, bit for bit as if there were no links to share. Approximate: all messages of a moment have
one speed, that of the slowest; latencies do not stretch; if over 16 messages are ahead, the load is an average over an
eighth of the time left. Doubtful: a rank that gave up a wait does not go on when its transfer completes after all, but
in a flow that is built anew it does; the two differ only in facts that are never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from simdist.c10d.engine._movement import Movement, Notes
from simdist.c10d.engine._program import Program
from simdist.c10d.engine._wire import Transfer, under_way
from simdist.cluster import Pace

__all__ = ["ABORTED", "Blocked", "ChangingCosts", "Connections", "Costs", "Done", "Failed", "Flow", "Overrun", "Slowed"]

# Stands for the text of a rank whose process aborts: the backend knows its last words. Compared by identity.
ABORTED = "the process aborts: it was sent more than it has room for"


# Named tuples rather than data classes: one is made for each rank of each rooted operation.
class Done(NamedTuple):
    """The rank's part is over at `time_ns`."""

    time_ns: int


class Blocked(NamedTuple):
    """The rank waits for a transfer with `peer` since `since_ns`; `kind` is "send" or "recv".

    `lost`: the peer has done its part, and the network never delivers.
    """

    kind: str
    peer: int
    since_ns: int
    lost: bool = False


class Failed(NamedTuple):
    """The rank's part failed at `time_ns`, with this text."""

    time_ns: int
    text: str


class Overrun(NamedTuple):
    """A message that does not fit into its receiver's buffer; sizes in bytes."""

    sender: int
    sent: int
    room: int


class Costs(Protocol):
    """The costs of messages between two group ranks."""

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency of a message that leaves now."""
        ...

    def byte_ns(self, source: int, target: int) -> float:
        """Transfer time per byte."""
        ...

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through; None for never."""
        ...


class ChangingCosts(Costs, Protocol):
    """The costs on a network that faults may disturb."""

    def through_ns(self, source: int, target: int, size_bytes: float, start_ns: int, end_ns: int) -> int:
        """When so many bytes have left that start at `start_ns`; without a fault they have left by `end_ns`."""
        ...


class Slowed:
    """Costs whose latency and time per byte are multiplied by factors."""

    def __init__(self, costs: ChangingCosts, latency: float, data: float) -> None:
        self._costs = costs
        self._latency = latency
        self._data = data
        self.open_from_ns = costs.open_from_ns
        self.through_ns = costs.through_ns

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency of a message that leaves now."""
        return round(self._costs.latency_ns(source, target, now_ns) * self._latency)

    def byte_ns(self, source: int, target: int) -> float:
        """Transfer time per byte."""
        return self._costs.byte_ns(source, target) * self._data


class Connections(Protocol):
    """Knows whether any pair may be closed; hot, so that pairs are looked up only then."""

    troubled: bool


_Post = list[int]  # a send or a receive: [when it was posted, bytes, which of the rank's sends or receives it is]
# A transfer: [when the sender may go on, when the receiver may, when its first byte leaves]. The first two are
# None for never, the last is -1 for no bytes.
_Ends = list[Any]

# The kinds of steps in a script, in the order in which they were done; none depends on moments. See `retime`.
_POST, _REFUSED, _MOVE, _WAIT, _STOP, _END = range(6)
_Line = tuple[Any, ...]


class _Channel:
    """The posts from one rank to another: the k-th send meets the k-th receive."""

    __slots__ = ("ends", "receives", "sends", "waiting")

    def __init__(self) -> None:
        self.sends: list[_Post] = []
        self.receives: list[_Post] = []
        self.ends: list[_Ends] = []  # of each pair, in order; as many as the shorter of the two
        self.waiting: list[int] = []  # ranks blocked on a transfer that is not matched yet


_NO_LIMIT = 1 << 63
_OVER = (Done, Failed)  # hot: a union would be made anew each time


class _Rank:
    """One rank that has arrived, and how far it has come in its program."""

    __slots__ = (
        "arrived_ns",
        "clock_ns",
        "limit_ns",
        "outcome",
        "program",
        "receives",
        "sends",
        "slot",
        "step",
        "stuck",
    )

    def __init__(self, program: Program, time_ns: int, slot: str) -> None:
        self.program = program
        self.slot = slot  # under which its messages are matched
        self.step = 0  # the first that it has not done
        self.arrived_ns = time_ns
        self.clock_ns = time_ns  # when it finished its last step; never before its arrival
        self.sends: list[tuple[int, int, _Channel]] = []  # (peer, index on that channel, the channel)
        self.receives: list[tuple[int, int, _Channel]] = []
        self.outcome: Done | Blocked | Failed | None = None  # Done and Failed stay, until all is retimed
        self.stuck: Blocked | None = None  # the wait in which its program stands, even if it gave that up
        self.limit_ns = _NO_LIMIT  # while the flow is retimed


class Flow:
    """One collective in flight.

    `program(rank)` gives a group rank's steps; `slot(rank)` a name under which its messages are matched, the same for
    all by default. `closed(rank, peer)` returns since when a rank can no longer talk to a peer, and the error text. The
    flow calls it when a rank posts, and again for ranks that are stuck on a peer named by `look_again`, but only while
    `connections` is None or troubled. Limits must be given before the ranks arrive. A `movement` is informed which send
    met which receive, and when a rank has waited for what it received. `pace` is how fast its messages go: see
    `simdist.cluster.Network.follow`; `retimes` keeps what `retime` needs.

    Example:
        >>> flow = Flow(lambda rank: broadcast(rank, 2, 8, root=0), costs)
        >>> flow.arrive(0, 100)
        >>> flow.outcome(0)
        Blocked(kind='send', peer=1, since_ns=100, lost=False)
    """

    def __init__(
        self,
        program: Callable[[int], Program],
        costs: Costs,
        *,
        slot: Callable[[int], str] | None = None,
        movement: Movement | Notes | None = None,
        closed: Callable[[int, int], tuple[int, str] | None] | None = None,
        connections: Connections | None = None,
        pace: Pace | None = None,
        retimes: bool = False,
    ) -> None:
        self._program = program
        self._pace = pace
        self._script: list[_Line] | None = [] if retimes else None  # see `retime`
        self._transfers: list[Transfer] = []  # those with bytes, in the order in which they were worked out
        self._later: Callable[[Any, Any], Any] = max  # of two moments
        self._never: Any = -1  # before all moments
        self.until_ns = -1  # when the last of its bytes have left, as far as is known
        self._costs = costs
        self._slot = slot
        self.movement = movement
        self._ask_closed = closed
        self._connections = connections
        self._ranks: dict[int, _Rank] = {}  # those that have arrived
        self._channels: dict[tuple[int, int, str], _Channel] = {}  # by sender, receiver and slot
        self._aborts: dict[int, int] = {}  # ranks that were sent more than they expected, and when it reached them
        self.overruns: dict[int, Overrun] = {}  # for these ranks, the message
        self._limits: dict[int, tuple[int, str]] = {}  # by rank: when it stops, and the error text; the earliest
        self._closed: dict[tuple[int, int], tuple[int, str]] = {}  # by (rank, peer): likewise; `_ask_closed` knows more
        self._free_ns: dict[int, int] = {}  # when a rank's last message has left: they leave one after the other
        self._busy_ns: dict[int, int] = {}  # when the last transfer ends in which a rank has a part
        self._stuck: dict[int, dict[int, None]] = {}  # by peer: the ranks that are blocked on it
        self._ready: list[int] = []  # ranks that may be able to go on; empty between two calls
        self.changed: list[int] = []  # ranks whose outcome was settled since `changed` was last read
        self.blocked: list[int] = []  # ranks that got stuck since `blocked` was last read
        self._newly_stuck: list[int] = []  # likewise, since `conclude`

    def take_sums(self, ranks: int, never: int) -> None:
        """Make moments arrays of `ranks` independent elements from now on; `never` is before all of them."""
        self._later, self._never = np.maximum, np.full(ranks, never)
        self.until_ns = self._never

    def limit(self, rank: int, time_ns: int, text: str) -> None:
        """The rank stops at `time_ns`, failing with `text`: it died, or it ran out of time."""
        if rank not in self._limits or time_ns < self._limits[rank][0]:
            self._limits[rank] = (time_ns, text)

    def close(self, rank: int, peer: int, time_ns: int, text: str) -> None:
        """Fail what `rank` does with `peer` from `time_ns` on, with `text`; no data passes between them."""
        known = self._closed.get((rank, peer))
        if known is None or time_ns < known[0]:
            self._closed[rank, peer] = (time_ns, text)

    def arrive(self, rank: int, time_ns: int) -> None:
        """Let a rank arrive; works out everything that follows."""
        slot = "" if self._slot is None else self._slot(rank)
        self._ranks[rank] = _Rank(self._program(rank), time_ns, slot)
        self._ready.append(rank)
        while self._ready:
            self._advance(self._ready.pop())

    def catch_up(self, arrivals: Iterable[tuple[int, int]]) -> None:
        """Repeat earlier arrivals whose consequences are known: nothing was closed, and the movement knows of them."""
        movement, self.movement = self.movement, None
        ask, self._ask_closed = self._ask_closed, None
        for rank, time_ns in arrivals:
            self.arrive(rank, time_ns)
        self.movement, self._ask_closed = movement, ask
        self.changed, self.blocked, self._newly_stuck = [], [], []

    def conclude(self) -> None:
        """Fail the ranks that got stuck on a closed pair or have a limit: all arrivals up to now are in.

        No rank that fails here could have helped another, so the order does not matter.
        """
        for rank, time_ns in self._aborts.items():
            if not isinstance(self._ranks[rank].outcome, Failed):
                self._settle(rank, Failed(time_ns, ABORTED))
        stuck, self._newly_stuck = self._newly_stuck, []
        for rank in sorted(set(stuck)):
            self._conclude(rank)

    def look_again(self, peer: int) -> None:
        """Fail ranks that are stuck on `peer`, if its connections are known to be closed."""
        for rank in sorted(self._stuck.get(peer, ())):
            self._conclude(rank)

    def stuck_on(self, peer: int) -> list[int]:
        """The ranks that are blocked on `peer`."""
        return sorted(self._stuck.get(peer, ()))

    def fail(self, rank: int, failed: Failed) -> None:
        """Note that a quiet rank gave up, which changes nothing for others. Does nothing to a rank that is done."""
        self.limit(rank, failed.time_ns, failed.text)
        if isinstance(self.outcome(rank), Blocked):
            self._ranks[rank].outcome = failed
            for stuck in self._stuck.values():
                stuck.pop(rank, None)

    def quiet(self, rank: int, now_ns: int) -> bool:
        """True if every transfer in which the rank has a part ended by `now_ns`, as far as is known."""
        return self._busy_ns.get(rank, 0) <= now_ns

    def under_way(self, now_ns: int) -> tuple[list[tuple[int, int, float]], int]:
        """Which rank sends to which for which part of the time from now on, and until when that holds."""
        return under_way(self._transfers, now_ns)

    def retime(self, pace: Pace, since_ns: int) -> bool:
        """Change to another pace, which is new from `since_ns` on: the same happens at other moments.

        Returns False if something else would happen, because a limit or the end of a connection now comes before a step
        that it came after, or the other way round; the flow must not be used any more in that case. All findings are in
        `changed` and `blocked` again, as if in a flow that was built anew.
        """
        script = self._script
        if script is None:
            return False
        self._pace = pace
        self._transfers = []
        self._free_ns.clear()
        self._busy_ns.clear()
        self._stuck.clear()
        self.until_ns = self._never
        self.changed, self.blocked, self._newly_stuck = [], [], []
        for rank, state in self._ranks.items():
            state.clock_ns = state.arrived_ns
            state.outcome = None
            state.limit_ns = self._limits[rank][0] if rank in self._limits else _NO_LIMIT
        for line in script:
            if not self._redo(line, since_ns):
                return False
        for rank, state in self._ranks.items():
            if state.stuck is not None:
                self._settle(rank, state.stuck._replace(since_ns=state.clock_ns))
        return True

    def _redo(self, line: _Line, since_ns: int) -> bool:
        """Repeat a step at another moment; False if it would not happen."""
        kind = line[0]
        if kind == _MOVE:
            _, source, target, send, receive, ends = line
            if ends[0] is not None and ends[0] < since_ns:
                self._keep(source, target, ends, receive[0])
                return True
            delivered = ends[1] is not None
            ends[:] = self._transfer(source, target, send[0], send[1], receive[0])
            return delivered == (ends[1] is not None)
        state: _Rank = line[1]
        if kind == _END:
            self._settle(line[2], Done(state.clock_ns))
            return True
        within = state.clock_ns < state.limit_ns
        if kind == _WAIT:
            _, _, ends, side = line
            state.clock_ns = max(state.clock_ns, ends[side])
        elif kind == _POST:
            _, _, post, rank, peer = line
            post[0] = state.clock_ns
            return within and self._refusal(rank, peer, state.clock_ns) is None
        elif kind == _REFUSED:
            _, _, rank, peer = line
            failed = self._refusal(rank, peer, state.clock_ns)
            if failed is None:
                return False
            self._settle(rank, failed)
        elif kind == _STOP:
            self._settle(line[2], Failed(*self._limits[line[2]]))
            return not within
        return within

    def _keep(self, source: int, target: int, ends: _Ends, posted_ns: int) -> None:
        """Keep the moments of a transfer that left before the pace changed."""
        sent, received, start = ends
        if start >= 0:
            self._free_ns[source] = sent
            self.until_ns = max(self.until_ns, sent)
        for rank in (source, target):
            self._busy_ns[rank] = max(received, self._busy_ns.get(rank, 0))

    def _conclude(self, rank: int) -> None:
        blocked = self._ranks[rank].outcome
        if not isinstance(blocked, Blocked):
            return
        ends = []
        closed = self._closed_pair(rank, blocked.peer)
        if closed is not None:
            ends.append((max(closed[0], blocked.since_ns), closed[1]))
        if rank in self._limits:
            ends.append(self._limits[rank])
        if ends:
            self._settle(rank, Failed(*min(ends)))

    def _closed_pair(self, rank: int, peer: int) -> tuple[int, str] | None:
        known = self._closed.get((rank, peer))
        asked = None if self._ask_closed is None else self._ask_closed(rank, peer)
        if known is None or asked is None:
            return asked if known is None else known
        return min(known, asked)

    def outcome(self, rank: int) -> Done | Blocked | Failed | None:
        """The rank's state at the end of all that is known; None if it has not arrived."""
        state = self._ranks.get(rank)
        return None if state is None else state.outcome

    def _advance(self, rank: int) -> None:
        state = self._ranks[rank]
        if isinstance(state.outcome, _OVER):
            self._script = None  # it gave up a wait whose transfer is now complete: in a flow built anew it goes on
            return
        state.stuck = None
        limit = self._limits.get(rank)
        while state.step < len(state.program):
            if limit is not None and state.clock_ns >= limit[0]:
                if self._script is not None:
                    self._script.append((_STOP, state, rank))
                self._settle(rank, Failed(*limit))
                return
            step = state.program[state.step]
            outcome: Blocked | Failed | None = None
            if step[0] == "send" or step[0] == "recv":
                outcome = self._post(rank, state, step[0], step[1], step[2])
            elif step[0] == "slot":
                state.slot = step[1]
            else:
                outcome = state.stuck = self._wait(rank, state, step[0][5:], step[1])
            if outcome is not None:
                self._settle(rank, outcome)
                return
            state.step += 1
        if self._script is not None:
            self._script.append((_END, state, rank))
        self._settle(rank, Done(state.clock_ns))

    def _settle(self, rank: int, outcome: Done | Blocked | Failed) -> None:
        state = self._ranks[rank]
        before, state.outcome = state.outcome, outcome
        if isinstance(before, Blocked):
            self._stuck[before.peer].pop(rank, None)
        if isinstance(outcome, Blocked):
            self._stuck.setdefault(outcome.peer, {})[rank] = None
            self._newly_stuck.append(rank)
            self.blocked.append(rank)
        else:
            self.changed.append(rank)

    def _refusal(self, rank: int, peer: int, now_ns: int) -> Failed | None:
        """The failure of a rank that posts a transfer with `peer`; None if the connection is open."""
        closed = self._closed_pair(rank, peer)
        return Failed(now_ns, closed[1]) if closed is not None and closed[0] <= now_ns else None

    def _post(self, rank: int, state: _Rank, kind: str, peer: int, size: int) -> Failed | None:
        if self._connections is None or self._connections.troubled or self._closed:
            refusal = self._refusal(rank, peer, state.clock_ns)
            if refusal is not None:
                if self._script is not None:
                    self._script.append((_REFUSED, state, rank, peer))
                return refusal
        key = (rank, peer, state.slot) if kind == "send" else (peer, rank, state.slot)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel()
        if kind == "send":
            post = [state.clock_ns, size, len(state.sends)]
            channel.sends.append(post)
            state.sends.append((peer, len(channel.sends) - 1, channel))
        else:
            post = [state.clock_ns, size, len(state.receives)]
            channel.receives.append(post)
            state.receives.append((peer, len(channel.receives) - 1, channel))
        if self._script is not None:
            self._script.append((_POST, state, post, rank, peer))
        matched = len(channel.ends)
        if matched < len(channel.sends) and matched < len(channel.receives):
            self._match(key[0], key[1], channel)
        return None

    def _match(self, source: int, target: int, channel: _Channel) -> None:
        while len(channel.ends) < min(len(channel.sends), len(channel.receives)):
            index = len(channel.ends)
            send, receive = channel.sends[index], channel.receives[index]
            ends = self._transfer(source, target, send[0], send[1], receive[0])
            if ends[1] is not None:
                if send[1] > receive[1]:
                    # The receiver's I/O thread finds more data than it has room for, and aborts the process.
                    if ends[1] < self._aborts.get(target, ends[1] + 1):
                        self._aborts[target] = ends[1]
                        self.overruns[target] = Overrun(source, send[1], receive[1])
                    ends[1] = None
                    self._script = None  # which of several overruns comes first depends on the moments
                elif self.movement is not None:
                    self.movement.move(source, send[2], target, receive[2])
            if self._script is not None:
                self._script.append((_MOVE, source, target, send, receive, ends))
            channel.ends.append(ends)
            self._ready.extend(channel.waiting)
            channel.waiting.clear()

    def _transfer(self, source: int, target: int, sent_ns: int, size: int, posted_ns: int) -> _Ends:
        costs, later = self._costs, self._later
        # The receiver informs the sender when it has posted; the data leaves when both are ready.
        start = later(sent_ns, posted_ns + costs.latency_ns(target, source, posted_ns))
        opened = costs.open_from_ns(source, target, start)
        if opened is None:
            return [None, None, -1]
        start = sent = opened
        wire_ns = round(size * costs.byte_ns(source, target))
        if wire_ns:
            start = later(opened, self._free_ns.get(source, self._never))
            sent = start + wire_ns if self._pace is None else self._pace.end_ns(start, wire_ns)
            self._free_ns[source] = sent
        received = sent + costs.latency_ns(source, target, start)
        troubled = self._connections is None or self._connections.troubled or self._closed
        if troubled and self._is_cut_off(source, target, sent):
            return [None, None, -1]
        if wire_ns:
            self._transfers.append((start, sent, source, target))
            self.until_ns = later(self.until_ns, sent)
        for rank in (source, target):
            self._busy_ns[rank] = later(received, self._busy_ns.get(rank, self._never))
        return [sent, received, start if wire_ns else -1]  # data that has left arrives, even from a sender that is gone

    def _is_cut_off(self, source: int, target: int, sent_ns: int) -> bool:
        """True if the connection closes before a message has left."""
        ways = self._closed_pair(source, target), self._closed_pair(target, source)
        closed = [each[0] for each in ways if each is not None]
        return bool(closed) and min(closed) < sent_ns

    def _wait(self, rank: int, state: _Rank, kind: str, index: int) -> Blocked | None:
        peer, position, channel = (state.sends if kind == "send" else state.receives)[index]
        if position < len(channel.ends):
            side = 0 if kind == "send" else 1
            end = channel.ends[position][side]
            if end is not None:
                state.clock_ns = self._later(state.clock_ns, end)
                if self._script is not None:
                    self._script.append((_WAIT, state, channel.ends[position], side))
                if kind == "recv" and self.movement is not None:
                    self.movement.received(rank, index)
                return None
        if position >= len(channel.ends) and rank not in channel.waiting:
            channel.waiting.append(rank)
        return Blocked(kind, peer, state.clock_ns, lost=position < len(channel.ends))
