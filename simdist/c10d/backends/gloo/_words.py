"""What Gloo's ranks see of timeouts and dead peers, in its words.

Texts were taken from real Gloo (torch 2.13); the location in brackets varies with the build there.
"""

from __future__ import annotations

from simdist.inside.torch import Place

__all__ = ["GlooFailure"]

_ADVICE = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"


class GlooFailure:
    """Who sees what: a timeout closes all connections of the rank that it strikes, and the peers see that."""

    has_timeouts = True
    late_ns = 1_000_000
    closing_ns = 1_000_000

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        """A wait for a transfer ran out of time; `kind` is "send" or "recv"."""
        place = Place.RECEIVE_TIMED_OUT if kind == "recv" else Place.SEND_TIMED_OUT
        return f"[{place.path}] Timed out waiting {timeout_ns // 1_000_000}ms for {kind} operation to complete"

    def closed_by_peer(self, peer: int) -> str:
        """The peer's process has gone, or has given the group up."""
        return (
            f"[{Place.PAIR_CLOSED.path}] Connection closed by peer {_address(peer)}. "
            f"This is typically caused by a remote worker crashing. {_ADVICE}"
        )

    def reset_by_peer(self, peer: int) -> str:
        """The peer's process went while data was under way."""
        return (
            f"[{Place.PAIR_RESET.path}] Read error {_address(peer)}: Connection reset by peer. "
            f"This is typically caused by a remote worker hanging or bugs in the application. {_ADVICE}"
        )

    def refused_by_peer(self, peer: int) -> str:
        """The peer does not listen where the store says that it does."""
        said = f"timed out connecting: SO_ERROR: Connection refused, remote={_address(peer)}${peer}"
        return f"Gloo connectFullMesh failed with [{Place.PAIR_REFUSED.path}] {said}"

    def unconnected(self) -> str:
        """No connection was made in time to a peer that was to make it."""
        return f"Gloo connectFullMesh failed with [{Place.PAIR_UNCONNECTED.path}] Connect timeout [none]"

    def pair_closed(self) -> str:
        """This rank itself timed out before, and closed all its connections."""
        return "Application timeout caused pair closure"

    def overrun(self, sent: int, room: int) -> str:
        """As the log of a process shows it (gloo/transport/tcp/pair.cc): bytes of a message, and of its receiver."""
        return (
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
            f"  what():  [enforce fail at {Place.PAIR_OVERRUN.path}] op.preamble.length <= op.nbytes. "
            f"{sent} vs {room}. Received data size doesn't match expected size. "
            "Is there a distributed collective mismatch in your code?"
        )


def _address(peer: int) -> str:
    return f"[127.0.0.1]:{40000 + peer}"
