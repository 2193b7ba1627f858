"""Unmatched messages of one group: which send meets which receive, at a cost that does not grow with what waits.

Messages meet by (sender, receiver, tag), in the order in which they were posted; a receive from any source takes the
send that was posted first. Invariant: of the messages that are queued here no send fits a receive, because whoever is
posted meets its partner at once. So a new send looks only at the first receives of two queues (from its sender, from
anyone), and a new receive at the first send of one queue, or of one for each sender.

A message that is withdrawn stays in its queue as a husk, told by its `place`, until it comes to the front: nothing is
ever searched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Matching", "Message"]


class Message(Protocol):
    """A send or a receive as far as it is matched."""

    place: int  # in the order of posting; -1 when it is not queued


_M = TypeVar("_M", bound=Message)
_Queue = deque[tuple[int, _M]]


class Matching(Generic[_M]):
    """The queues.

    Example:
        >>> matching = Matching()
        >>> matching.send(message, source=0, target=1, tag=0)   # nobody receives yet
        >>> matching.receive(other, source=None, target=1, tag=0) is message
        True
    """

    def __init__(self) -> None:
        self._sends: dict[tuple[int, Any], dict[int, _Queue[_M]]] = {}  # by (target, tag), then by source
        self._receives: dict[tuple[int, Any], dict[int | None, _Queue[_M]]] = {}  # likewise; None: from any
        self._places = 0
        self._queued = 0

    def __bool__(self) -> bool:
        """True if any message waits."""
        return self._queued > 0

    def send(self, message: _M, source: int, target: int, tag: Any) -> _M | None:
        """A message to `target`: the receive that it meets, or None if it has to wait."""
        receives = self._receives.get((target, tag))
        if receives is not None:
            found = _first([_head(receives.get(source)), _head(receives.get(None))])
            if found is not None:
                return self._take(found)
        self._put(message, self._sends.setdefault((target, tag), {}), source)
        return None

    def receive(self, message: _M, source: int | None, target: int, tag: Any) -> _M | None:
        """A receive of `target` from `source`, or from anyone: the send that it meets, or None if it has to wait."""
        sends = self._sends.get((target, tag))
        if sends is not None:
            heads = [_head(sends.get(source))] if source is not None else [_head(queue) for queue in sends.values()]
            found = _first(heads)
            if found is not None:
                return self._take(found)
        self._put(message, self._receives.setdefault((target, tag), {}), source)
        return None

    def put_back(self, message: _M, source: int, target: int, tag: Any) -> None:
        """Queue a send whose receiver is gone, behind all others."""
        self._put(message, self._sends.setdefault((target, tag), {}), source)

    def withdraw(self, message: _M) -> None:
        """A message is not there any more; does nothing to one that is not queued."""
        if message.place >= 0:
            message.place = -1
            self._queued -= 1

    def sends(self) -> list[_M]:
        """All that wait, in the order of posting."""
        return _live(queue for queues in self._sends.values() for queue in queues.values())

    def receives(self) -> list[_M]:
        """All that wait, in the order of posting."""
        return _live(queue for queues in self._receives.values() for queue in queues.values())

    def _put(self, message: _M, queues: dict[Any, _Queue[_M]], key: int | None) -> None:
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
    """The first message that is still queued; the husks before it go."""
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
