"""The errors that ranks get from dead peers in a backend without timeouts."""

from __future__ import annotations

__all__ = ["IdealFailure"]


class IdealFailure:
    """Plain error texts, and no timeout: a rank that waits in vain is part of a deadlock."""

    has_timeouts = False
    late_ns = 0
    closing_ns = 0

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        """Return the text for a timeout that the program itself passed to a wait."""
        return f"Timed out waiting {timeout_ns // 1_000_000}ms for {kind} operation to complete"

    def closed_by_peer(self, peer: int) -> str:
        """Return the text for a peer whose process has ended, or has given the group up."""
        return f"Connection closed by peer: rank {peer} of the group is gone"

    def reset_by_peer(self, peer: int) -> str:
        """Return the text for a peer whose process ended while data was in flight."""
        return f"Connection reset by peer: rank {peer} of the group is gone, with data under way"

    def pair_closed(self) -> str:
        """Return the text for a rank that gave up before."""
        return "Application timeout caused pair closure"

    def overrun(self, sent: int, room: int) -> str:
        """Return the last line of a process that received more bytes than it has room for."""
        return f"the process aborts: {sent} bytes arrived where the receive has room for {room}"
