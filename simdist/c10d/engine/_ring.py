"""A ring collective that is followed step by step for all ranks at once.

`Flow` follows any program message by message, at some ten microseconds each; a ring of a thousand ranks has millions.
But all ranks of a ring do the same, one step after the other, so this file does in arrays, for every rank that can go
on, what `Flow` does for one rank. Ranks that are stuck are not in the arrays, so trouble reduces the work.

Invariants, as in `Flow`:
- In iteration i a rank waits for its receive and its send of two iterations before, then posts those of this one. Its
  neighbours are therefore never more than three messages ahead or behind: only a window of eight is kept.
- A message moves when both ends have posted. The segment in it was complete when it was posted, because a rank sends no
  segment before it has waited for it; so it does not matter when within a sweep the bytes are copied.
- A rank sends to one neighbour only, so its messages leave in the order of their numbers.
- A rank is in one of three states: it has not arrived (`_iteration` is -1), it is over (`_over`, with an outcome in
  `_ended`), or it is in the wait that `_stage` and `_iteration` name. `_stuck` has an entry for each rank in a wait
  once a sweep has ended.
- The noted moves of bytes are made when a result is needed, in the order in which they were found. A ring that is built
  anew before that, at each change of pace, moves none; the tensors that enter belong to the ring from then on.
A property test compares the two: outcomes, moments and bytes.

What it does not do: disturbed networks (a message may then have to wait for a link to open), ranks that disagree, and
algorithms other than a ring. `Followed` uses a `Flow` for these.

What was tried: a `Flow` for rings of any size, with over a minute for one crash among 128 ranks.

Doubts: `Followed` takes arrays from 16 ranks on; where they begin to pay has not been measured since. A ring is built
anew at each change of pace, where a `Flow` is retimed. The load that it has on the wires is the average over all that
is left (`under_way`), coarser than a `Flow`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from simdist.c10d.engine._flow import Blocked, Costs, Done, Failed
from simdist.cluster import Pace

__all__ = ["Phase", "Ring", "RingFlow"]

_WINDOW = 8  # messages of which posts and ends are kept; see above
_NEVER = np.iinfo(np.int64).max
_LOST = -1  # the end of a message that is never delivered

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One trip around the ring of `steps` messages for each rank.

    Message i of rank r holds segment ((r + shift) * stride + i) % count of the rank that sends it.
    """

    steps: int
    shift: int
    reduced: bool  # the data is reduced into the segment; otherwise it replaces it


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring algorithm: `lengths[s]` are the bytes of segment s, `segment` those of a whole one."""

    phases: tuple[Phase, ...]
    lengths: tuple[int, ...]
    segment: int
    stride: int
    target: int  # the rank that a rank sends to, as an offset from its own
    receive_first: bool  # a rank waits for its receive before its send
    sends_empty: bool  # empty segments are sent too
    moves: bool  # its bytes can be followed


class RingFlow:
    """Like `Flow`, for a ring; see there for the meaning of each method.

    With `movement`, (function of one hop, element type), the bytes are followed too: `enter` a rank's tensor before it
    arrives. `broken()` names every rank that has closed connections; `closed` is called for no others.
    """

    def __init__(
        self,
        ring: Ring,
        ranks: int,
        costs: Costs,
        *,
        movement: tuple[Callable[..., None], torch.dtype] | None = None,
        closed: Callable[[int, int], tuple[int, str] | None] | None = None,
        broken: Callable[[], Iterable[int]] = tuple,
        pace: Pace | None = None,
    ) -> None:
        self._ring = ring
        self._pace = pace
        self.until_ns = -1  # when the last of its bytes have left, as far as is known
        self._first_ns = np.full(ranks, _NEVER, np.int64)  # by sender: when the first of its bytes left
        self._last_ns = np.zeros(ranks, np.int64)  # and the last
        self._carried_ns = np.zeros(ranks, np.int64)  # how long it sent in all
        self._ask_closed = closed
        self._ask_broken = broken
        everyone = np.arange(ranks)
        self._to = (everyone + ring.target) % ranks  # the rank that each sends to
        self._from = (everyone - ring.target) % ranks  # and the one that it receives from
        latencies = [costs.latency_ns(r, int(t), 0) for r, t in enumerate(self._to)]
        words = [costs.latency_ns(int(t), r, 0) for r, t in enumerate(self._to)]
        self._latency_ns = np.array(latencies, np.int64)
        self._word_ns = np.array(words, np.int64)  # until the sender knows that its receiver has posted
        self._byte_ns = np.array([costs.byte_ns(r, int(t)) for r, t in enumerate(self._to)])
        self._lengths = np.array(ring.lengths, np.int64)
        self._plan()
        self._clock = np.zeros(ranks, np.int64)  # when it finished its last step
        self._iteration = np.full(ranks, -1, np.int64)  # -1: has not arrived
        self._stage = np.zeros(ranks, np.int64)  # in its iteration: 0 first wait, 1 second wait, 2 posts
        self._posted_sends = np.zeros(ranks, np.int64)  # how many
        self._posted_receives = np.zeros(ranks, np.int64)
        self._moved = np.zeros(ranks, np.int64)  # how many of the messages that a rank sends have met their receive
        self._send_ns = np.zeros((ranks, _WINDOW), np.int64)  # when posted, by sender and number of the message
        self._receive_ns = np.zeros((ranks, _WINDOW), np.int64)  # when posted, by receiver
        self._sent_ns = np.zeros((ranks, _WINDOW), np.int64)  # when it has left, by sender; or `_LOST`
        self._received_ns = np.zeros((ranks, _WINDOW), np.int64)  # when it has arrived, by sender
        self._free_ns = np.zeros(ranks, np.int64)  # by sender: from when on its next message can leave
        self._busy_ns = np.zeros(ranks, np.int64)  # when the last transfer ends in which a rank has a part
        self._limit_ns = np.full(ranks, _NEVER, np.int64)
        self._limits: dict[int, tuple[int, str]] = {}
        self._stuck: dict[int, Blocked] = {}
        self._ended: dict[int, Done | Failed] = {}
        self._over = np.zeros(ranks, bool)  # the ranks in `_ended`
        self.changed: list[int] = []
        self.blocked: list[int] = []
        self._newly_stuck: list[int] = []
        self._movement = movement
        self._entered: dict[int, int] = {}  # elements of each rank's tensor
        self._has = np.zeros(ranks, bool)  # the ranks in `_entered`
        self._bytes_to_move: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # in this order, when needed
        self._buffer: torch.Tensor | None = None  # of all ranks: (rank, segment, element of the segment)
        self._scratch: torch.Tensor | None = None  # data that waits to be reduced: (rank, window, element)

    def _plan(self) -> None:
        """Work out which message each iteration waits for and posts, and each message's phase and place in it."""
        waits: list[int] = []
        posts: list[int] = []
        shifts: list[int] = []
        places: list[int] = []
        reduced: list[bool] = []
        first = 0
        for phase in self._ring.phases:
            for index in range(phase.steps + 2):
                waits.append(first + index - 2 if index >= 2 else -1)
                posts.append(first + index if index < phase.steps else -1)
            shifts += [phase.shift] * phase.steps
            places += range(phase.steps)
            reduced += [phase.reduced] * phase.steps
            first += phase.steps
        self._waits, self._posts = np.array(waits, np.int64), np.array(posts, np.int64)
        self._shifts, self._places = np.array(shifts, np.int64), np.array(places, np.int64)
        self._reduced = np.array(reduced, bool)

    @property
    def moves(self) -> bool:
        """True if the bytes are followed."""
        return self._movement is not None

    # -- facts -------------------------------------------------------------------------------------------------------

    def limit(self, rank: int, time_ns: int, text: str) -> None:
        """Stop the rank at `time_ns`, failing with `text`."""
        if rank not in self._limits or time_ns < self._limits[rank][0]:
            self._limits[rank] = (time_ns, text)
            self._limit_ns[rank] = time_ns

    def enter(self, rank: int, tensor: torch.Tensor) -> None:
        """Let a rank take part with the flat `tensor`, which may not change from now on."""
        self._entered[rank] = tensor.numel()
        self._has[rank] = True
        self._bytes_to_move.append((self._fill, (rank, tensor)))

    def follows(self, rank: int) -> bool:
        """True if the rank's tensor is among the copies."""
        return rank in self._entered

    def result(self, rank: int) -> torch.Tensor:
        """The rank's tensor as it is now."""
        self._move_bytes()
        assert self._buffer is not None
        return self._buffer[rank].view(-1)[: self._entered[rank]]

    def arrive(self, rank: int, time_ns: int) -> None:
        """Let a rank arrive; works out everything that follows."""
        self.arrive_all({rank: time_ns})

    def arrive_all(self, times_ns: dict[int, int]) -> None:
        """Let several ranks arrive."""
        for rank, time_ns in times_ns.items():
            self._clock[rank] = time_ns
            self._iteration[rank] = 0
        self._run(np.array(sorted(times_ns), np.int64))

    def conclude(self) -> None:
        """Fail the ranks that got stuck on a closed pair or have a limit: all arrivals up to now are in."""
        stuck, self._newly_stuck = self._newly_stuck, []
        for rank in sorted(set(stuck)):
            self._conclude(rank)

    def look_again(self, peer: int) -> None:
        """Fail ranks that are stuck on `peer`, if its connections are known to be closed."""
        for rank in self.stuck_on(peer):
            self._conclude(rank)

    def stuck_on(self, peer: int) -> list[int]:
        """The ranks that are blocked on `peer`."""
        neighbours = {int(self._to[peer]), int(self._from[peer])}
        return sorted(rank for rank in neighbours if rank in self._stuck and self._stuck[rank].peer == peer)

    def fail(self, rank: int, failed: Failed) -> None:
        """Note that a quiet rank gave up, which changes nothing for others."""
        self.limit(rank, failed.time_ns, failed.text)
        if self._stuck.pop(rank, None) is not None:
            self._ended[rank] = failed
            self._over[rank] = True

    def quiet(self, rank: int, now_ns: int) -> bool:
        """True if every transfer in which the rank has a part ended by `now_ns`, as far as is known."""
        return bool(self._busy_ns[rank] <= now_ns)

    def outcome(self, rank: int) -> Done | Blocked | Failed | None:
        """The rank's state at the end of all that is known; None if it has not arrived."""
        return self._ended.get(rank) or self._stuck.get(rank)

    def _conclude(self, rank: int) -> None:
        blocked = self._stuck.get(rank)
        if blocked is None:
            return
        ends = []
        closed = None if self._ask_closed is None else self._ask_closed(rank, blocked.peer)
        if closed is not None:
            ends.append((max(closed[0], blocked.since_ns), closed[1]))
        if rank in self._limits:
            ends.append(self._limits[rank])
        if ends:
            self._end(rank, Failed(*min(ends)))

    def _end(self, rank: int, outcome: Done | Failed) -> None:
        self._stuck.pop(rank, None)
        self._ended[rank] = outcome
        self._over[rank] = True
        self.changed.append(rank)

    # -- the sweeps --------------------------------------------------------------------------------------------------

    def _run(self, ready: Array) -> None:
        """Let `ready` ranks go on, and those that can go on because of them, until none can."""
        closings = self._closings()
        touched = [ready]
        while len(ready):
            posting = self._pass_waits(ready)
            self._post(posting, closings)
            # Ranks that posted go on to their next wait; stuck ranks are tried again when a message of theirs has
            # moved.
            ready = self._move(posting, closings)
            touched.append(ready)
        for rank in np.unique(np.concatenate(touched)).tolist():
            self._note_stuck(rank)

    def _closings(self) -> tuple[Array, Array] | None:
        """Since when each rank can no longer talk to the rank it sends to, and to the one it receives from."""
        broken = list(self._ask_broken())
        if self._ask_closed is None or not broken:
            return None
        to, back = (np.full(len(self._to), _NEVER, np.int64) for _ in range(2))
        for peer in broken:
            target, sender = int(self._to[peer]), int(self._from[peer])
            for times, rank, other in (
                (to, peer, target),
                (back, target, peer),
                (to, sender, peer),
                (back, peer, sender),
            ):
                closed = self._ask_closed(rank, other)
                if closed is not None:
                    times[rank] = closed[0]
        return to, back

    def _segments(self, senders: Array, messages: Array) -> Array:
        """The segment of the sender in each message."""
        ring = self._ring
        if ring.stride == 0:
            return np.asarray(self._places[messages] % len(ring.lengths))
        start = (senders + self._shifts[messages]) * ring.stride
        return np.asarray((start + self._places[messages]) % len(ring.lengths))

    def _exists(self, senders: Array, messages: Array) -> Array:
        """Which of the messages are sent at all: empty ones are not."""
        if self._ring.sends_empty:
            return np.ones(len(messages), bool)
        return np.asarray(self._lengths[self._segments(senders, messages)] > 0)

    def _pass_waits(self, ranks: Array) -> Array:
        """Let ranks pass the waits of their iterations; returns those that may post, the others are stuck or ended."""
        for stage, receiving in ((0, self._ring.receive_first), (1, not self._ring.receive_first)):
            here = self._stage[ranks] == stage
            if not here.any():
                continue
            ranks = np.concatenate([ranks[~here], self._pass_wait(ranks[here], receiving=receiving)])
        return np.asarray(np.sort(ranks[self._stage[ranks] == 2]))

    def _pass_wait(self, ranks: Array, *, receiving: bool) -> Array:
        """Return the ranks that pass the wait in which they are."""
        messages = self._waits[self._iteration[ranks]]
        senders = self._from[ranks] if receiving else ranks
        real = messages >= 0
        real[real] = self._exists(senders[real], messages[real])
        stays = self._over_limit(ranks, real)
        slots = messages % _WINDOW
        met = self._moved[senders] > messages
        ends = (self._received_ns if receiving else self._sent_ns)[senders, slots]
        waits = real & ~stays & (~met | (ends == _LOST))
        passes = ~(stays | waits)
        through = passes & real
        who = ranks[through]
        self._clock[who] = np.maximum(self._clock[who], ends[through])
        if receiving and self._movement is not None and len(who):
            self._bytes_to_move.append((self._reduce, (who, messages[through])))
        going = ranks[passes]
        self._stage[going] += 1
        return np.asarray(going)

    def _over_limit(self, ranks: Array, acting: Array) -> Array:
        """End ranks that reached their limit before the step that they were about to take (`acting`); returns which."""
        over = acting & (self._clock[ranks] >= self._limit_ns[ranks])
        for rank in ranks[over].tolist():
            self._end(rank, Failed(*self._limits[rank]))
        return over

    def _post(self, ranks: Array, closings: tuple[Array, Array] | None) -> None:
        """Let ranks post the messages of their iterations, and go on to the next ones."""
        messages = self._posts[self._iteration[ranks]]
        posting = messages >= 0
        receiving, sending = posting.copy(), posting.copy()
        receiving[posting] = self._exists(self._from[ranks[posting]], messages[posting])
        sending[posting] = self._exists(ranks[posting], messages[posting])
        lost = self._over_limit(ranks, receiving | sending)
        # In the order of the program: a rank that finds one connection closed does not post on the other.
        order = (self._from, receiving), (self._to, sending)
        for peers, acting in order if self._ring.receive_first else order[::-1]:
            acting &= ~lost
            if closings is not None:
                since = closings[0 if peers is self._to else 1][ranks]
                for index in np.flatnonzero(acting & (since <= self._clock[ranks])).tolist():
                    rank = int(ranks[index])
                    assert self._ask_closed is not None
                    closed = self._ask_closed(rank, int(peers[rank]))
                    assert closed is not None
                    self._end(rank, Failed(int(self._clock[rank]), closed[1]))
                    lost[index], acting[index] = True, False
        # A rank that ended between the two has posted the first.
        for acting, counts, times in (
            (receiving, self._posted_receives, self._receive_ns),
            (sending, self._posted_sends, self._send_ns),
        ):
            counted = posting & (acting | ~lost)
            who = ranks[counted]
            counts[who] = messages[counted] + 1
            times[who, messages[counted] % _WINDOW] = self._clock[who]
        going = ranks[~lost]
        self._stage[going] = 0
        self._iteration[going] += 1
        done = self._iteration[going] >= len(self._waits)
        for rank in going[done].tolist():
            self._end(rank, Done(int(self._clock[rank])))

    def _move(self, ranks: Array, closings: tuple[Array, Array] | None) -> Array:
        """Move the messages that `ranks` posted, and return those that may pass a wait now.

        This includes messages of ranks that ended meanwhile: they posted them before.
        """
        freed = []
        senders = np.union1d(ranks, self._from[ranks])
        while len(senders):
            targets = self._to[senders]
            met = self._moved[senders] < np.minimum(self._posted_sends[senders], self._posted_receives[targets])
            senders, targets = senders[met], targets[met]
            if not len(senders):
                break
            messages = self._moved[senders]
            slots = messages % _WINDOW
            self._moved[senders] += 1
            segments = self._segments(senders, messages)
            lengths = self._lengths[segments]
            real = np.ones(len(senders), bool) if self._ring.sends_empty else lengths > 0
            posted = self._receive_ns[targets, slots] + self._word_ns[senders]
            start = np.maximum(self._send_ns[senders, slots], posted)
            wire = np.rint(lengths * self._byte_ns[senders]).astype(np.int64)
            begin = np.where(wire > 0, np.maximum(start, self._free_ns[senders]), start)
            sent = begin + wire if self._pace is None else self._paced(begin, wire)
            received = sent + self._latency_ns[senders]
            self._free_ns[senders] = np.where(real & (wire > 0), sent, self._free_ns[senders])
            gone = np.zeros(len(senders), bool)
            if closings is not None:
                gone = real & (np.minimum(closings[0][senders], closings[1][targets]) < sent)
            self._sent_ns[senders, slots] = np.where(gone, _LOST, sent)
            self._received_ns[senders, slots] = np.where(gone, _LOST, received)
            moving = real & ~gone
            self._note_wires(senders[moving], begin[moving], sent[moving])
            for ends in (senders[moving], targets[moving]):
                self._busy_ns[ends] = np.maximum(self._busy_ns[ends], received[moving])
            if self._movement is not None and moving.any():
                step = senders[moving], targets[moving], messages[moving], segments[moving]
                self._bytes_to_move.append((self._copy, step))
            freed += [senders, targets]
        freed.append(ranks)
        active = np.unique(np.concatenate(freed))
        return np.asarray(active[(self._iteration[active] >= 0) & ~self._over[active]])

    def _paced(self, begin: Array, wire: Array) -> Array:
        assert self._pace is not None
        ends = [self._pace.end_ns(start, length) for start, length in zip(begin.tolist(), wire.tolist(), strict=True)]
        return np.array(ends, np.int64)

    def _note_wires(self, senders: Array, begin: Array, sent: Array) -> None:
        """Note that a message's bytes of each sender are on their way from `begin` to `sent`."""
        if len(senders):
            self._first_ns[senders] = np.minimum(self._first_ns[senders], begin)
            self._last_ns[senders] = np.maximum(self._last_ns[senders], sent)
            self._carried_ns[senders] += sent - begin
            self.until_ns = max(self.until_ns, int(sent.max()))

    def under_way(self, now_ns: int) -> tuple[list[tuple[int, int, float]], int]:
        """Which rank sends to which for which part of the time, and until when: the average of all that is known."""
        going = np.flatnonzero((self._last_ns > now_ns) & (self._carried_ns > 0))
        parts = self._carried_ns[going] / (self._last_ns[going] - self._first_ns[going])
        pairs = zip(going.tolist(), self._to[going].tolist(), parts.tolist(), strict=True)
        return list(pairs), max(now_ns, self.until_ns)

    def _note_stuck(self, rank: int) -> None:
        """Note in which wait a rank is stuck."""
        if rank in self._ended or self._iteration[rank] < 0:
            return
        receiving = (self._stage[rank] == 0) == self._ring.receive_first
        message = int(self._waits[self._iteration[rank]])
        sender = int(self._from[rank]) if receiving else rank
        peer = int(self._from[rank] if receiving else self._to[rank])
        lost = bool(self._moved[sender] > message)
        blocked = Blocked("recv" if receiving else "send", peer, int(self._clock[rank]), lost)
        if self._stuck.get(rank) != blocked:
            self._stuck[rank] = blocked
            self._newly_stuck.append(rank)
            self.blocked.append(rank)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def _move_bytes(self) -> None:
        """Make the moves of bytes that were noted."""
        if self._buffer is None:
            assert self._movement is not None
            ranks, dtype = len(self._to), self._movement[1]
            width = self._ring.segment // dtype.itemsize
            self._buffer = torch.zeros(ranks, len(self._ring.lengths), width, dtype=dtype)
            self._scratch = torch.zeros(ranks, _WINDOW, width, dtype=dtype)
        steps, self._bytes_to_move = self._bytes_to_move, []
        for do, operands in steps:
            do(*operands)

    def _fill(self, rank: int, tensor: torch.Tensor) -> None:
        assert self._buffer is not None
        self._buffer[rank].view(-1)[: tensor.numel()] = tensor

    def _copy(self, senders: Array, targets: Array, messages: Array, segments: Array) -> None:
        """Copy messages from one buffer to the other, or to the scratch buffer where they wait to be reduced."""
        assert self._buffer is not None
        assert self._scratch is not None
        known = self._has[senders] & self._has[targets]
        for chosen in (known & self._reduced[messages], known & ~self._reduced[messages]):
            if not chosen.any():
                continue
            place = torch.from_numpy(segments[chosen])
            into = torch.from_numpy(targets[chosen])
            data = self._buffer[torch.from_numpy(senders[chosen]), place]
            if self._reduced[messages[chosen][0]]:
                self._scratch[into, torch.from_numpy(messages[chosen] % _WINDOW)] = data
            else:
                self._buffer[into, place] = data

    def _reduce(self, ranks: Array, messages: Array) -> None:
        """Reduce messages into the ranks' buffers: the ranks have waited for them."""
        assert self._buffer is not None
        assert self._scratch is not None
        assert self._movement is not None
        chosen = self._reduced[messages]
        if not chosen.any():
            return
        ranks, messages = ranks[chosen], messages[chosen]
        who = torch.from_numpy(ranks)
        place = torch.from_numpy(self._segments(self._from[ranks], messages))
        came = self._scratch[who, torch.from_numpy(messages % _WINDOW)]
        self._movement[0](self._buffer[who, place], came, came)
        self._buffer[who, place] = came
