"""Unmatched messages of one group: which send meets which receive, at a cost that does not grow with their number.

Messages meet by (sender, receiver, tag), in the order in which they were posted. A receive from any source is
different: its rank learns of a send some time after it was posted, and takes the first one that it learns of. So a
send whose first partner would be a receive from any source is queued, and `hear` brings the two together later. For
all other messages the invariant is that no queued send fits a queued receive, because each message meets its partner
when it is posted. A new message looks only at the first ones of one or two queues, a receive from any source at the
first of each sender.

A message that is withdrawn stays in its queue as a husk, recognised by its `place`, until it is at the front: nothing
is ever searched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["Matching", "Message"]


class Message(Protocol):
    """A send or a receive, as far as matching knows it."""

    place: int  # in the order of posting; -1 when it is not queued


_M = TypeVar("_M", bound=Message)
_Key = TypeVar("_Key", int, int | None)
_Queue = deque[tuple[int, _M]]


class Matching(Generic[_M]):
    """The queues.

    Example:
        >>> matching = Matching()
        >>> matching.send(message, source=0, target=1, tag=0)   # nobody receives yet
        >>> matching.receive(other, source=0, target=1, tag=0) is message
        True
    """

    def __init__(self) -> None:
        self._sends: dict[tuple[int, Hashable], dict[int, _Queue[_M]]] = {}  # by (target, tag), then by source
        self._receives: dict[tuple[int, Hashable], dict[int | None, _Queue[_M]]] = {}  # likewise; None: from any
        self._places = 0
        self._queued = 0

    def __bool__(self) -> bool:
        """True if any message waits."""
        return self._queued > 0

    def send(self, message: _M, source: int, target: int, tag: Hashable) -> _M | None:
        """Match a message to `target`; returns its receive, or None if it must wait, maybe until `hear`."""
        receives = self._receives.get((target, tag))
        if receives is not None:
            own, anyones = _head(receives.get(source)), _head(receives.get(None))
            if own is not None and (anyones is None or own.place < anyones.place):
                return self._take(own)
        self._put(message, self._sends.setdefault((target, tag), {}), source)
        return None

    def receive(self, message: _M, source: int, target: int, tag: Hashable) -> _M | None:
        """Match a receive of `target` from `source`; returns its send, or None if it has to wait."""
        sends = self._sends.get((target, tag))
        found = None if sends is None else _head(sends.get(source))
        if found is not None:
            return self._take(found)
        self._put(message, self._receives.setdefault((target, tag), {}), source)
        return None

    def receive_from_any(self, message: _M, target: int, tag: Hashable) -> None:
        """Queue a receive of `target` from any rank; it may take one of the `offered`."""
        self._put(message, self._receives.setdefault((target, tag), {}), None)

    def offered(self, target: int, tag: Hashable) -> list[_M]:
        """The first waiting send of each sender to `target`, in the order of posting."""
        heads = [_head(queue) for queue in self._sends.get((target, tag), {}).values()]
        return sorted((head for head in heads if head is not None), key=lambda message: message.place)

    def awaits_any(self, target: int, tag: Hashable) -> bool:
        """True if a receive of `target` from any rank waits."""
        return _head(self._receives.get((target, tag), {}).get(None)) is not None

    def awaited(self, source: int, target: int, tag: Hashable) -> bool:
        """True if a receive of `target` waits for a send of `source`, or of any rank."""
        receives = self._receives.get((target, tag), {})
        return any(_head(receives.get(key)) is not None for key in (source, None))

    def hear(self, source: int, target: int, tag: Hashable) -> tuple[_M, _M] | None:
        """Let `target` learn of the first send of `source`; returns both that send and its receive, if one waits."""
        send = _head(self._sends.get((target, tag), {}).get(source))
        receives = self._receives.get((target, tag), {})
        found = _first([_head(receives.get(source)), _head(receives.get(None))])
        if send is None or found is None:
            return None
        return self._take(send), self._take(found)

    def put_back(self, message: _M, source: int, target: int, tag: Hashable) -> None:
        """Queue a send whose receiver is gone, behind all others."""
        self._put(message, self._sends.setdefault((target, tag), {}), source)

    def withdraw(self, message: _M) -> None:
        """Withdraw a message; does nothing to one that is not queued."""
        if message.place >= 0:
            message.place = -1
            self._queued -= 1

    def sends(self) -> list[_M]:
        """All waiting sends, in the order of posting."""
        return _live(queue for queues in self._sends.values() for queue in queues.values())

    def receives(self) -> list[_M]:
        """All waiting receives, in the order of posting."""
        return _live(queue for queues in self._receives.values() for queue in queues.values())

    def _put(self, message: _M, queues: dict[_Key, _Queue[_M]], key: _Key) -> None:
        message.place = self._places
        self._places += 1
        self._queued += 1
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = deque()
        queue.append((message.place, message))

    def _take(self, message: _M) -> _M:
        self.withdraw(message)
        return message


def _head(queue: _Queue[_M] | None) -> _M | None:
    """The first message that is still queued; removes the husks before it."""
    while queue:
        place, message = queue[0]
        if message.place == place:
            return message
        queue.popleft()
    return None


def _first(messages: list[_M | None]) -> _M | None:
    return min((message for message in messages if message is not None), key=lambda m: m.place, default=None)


def _live(queues: Iterator[_Queue[_M]]) -> list[_M]:
    found = [message for queue in queues for place, message in queue if message.place == place]
    return sorted(found, key=lambda message: message.place)
