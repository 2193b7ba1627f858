"""Groups whose operations end on streams and whose payloads stay where they are: see `_unmoved.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from simdist.c10d.calls._payload import Brought
from simdist.c10d.engine._stream_parts import Part
from simdist.c10d.engine._streamed import Connection, StreamCommunicator
from simdist.c10d.engine._unmoved import emptied, is_floating, is_message_moved, is_moved

__all__ = ["UnmovedStreamCommunicator"]


class UnmovedStreamCommunicator(StreamCommunicator):
    """A group over NCCL, or one like it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.algorithm = self.streamed = moving = copy.copy(self.streamed)
        execute = moving.execute

        def execute_moved(calls: Sequence[Brought]) -> int:
            crc = execute(calls) if any(is_moved(call.operation) for call in calls) else 0
            return 0 if any(is_floating(call.operation) for call in calls) else crc

        vars(moving)["execute"] = execute_moved

    def make_connection(self, key: str, ranks: Sequence[int]) -> Connection:
        """Return a connection that no rank has joined."""
        return _UnmovedConnection(self, key, ranks)


class _UnmovedConnection(Connection):
    """Delivers messages without their content."""

    def _move(self, send: Part, receive: Part, sent_ns: int) -> None:
        there = not (send.lost or receive.lost) and send.tensor.nbytes == receive.tensor.nbytes
        if there and not is_message_moved(send.tensor, receive.tensor):
            send.payload, receive.payload = emptied(send.payload), emptied(receive.payload)
        super()._move(send, receive, sent_ns)

    def _ender(self, part: Part, begin_ns: int, crc: int) -> Callable[[], None]:
        return super()._ender(part, begin_ns, 0 if is_floating(part.operation) else crc)
