"""The errors that Gloo's ranks get from timeouts and dead peers.

The texts are copied from real Gloo (torch 2.13), where the location in brackets varies with the build.
"""

from __future__ import annotations

from simdist.inside.torch import Place

__all__ = ["GlooFailure"]

_ADVICE = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"


class GlooFailure:
    """Gloo's error texts. A timeout closes all connections of the rank that has it, and its peers see that."""

    has_timeouts = True
    late_ns = 1_000_000
    closing_ns = 1_000_000

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        """Return the text for a wait for a transfer that ran out of time; `kind` is "send" or "recv"."""
        place = Place.RECEIVE_TIMED_OUT if kind == "recv" else Place.SEND_TIMED_OUT
        return f"[{place.path}] Timed out waiting {timeout_ns // 1_000_000}ms for {kind} operation to complete"

    def closed_by_peer(self, peer: int) -> str:
        """Return the text for a peer whose process has ended, or has given the group up."""
        return (
            f"[{Place.PAIR_CLOSED.path}] Connection closed by peer {_address(peer)}. "
            f"This is typically caused by a remote worker crashing. {_ADVICE}"
        )

    def reset_by_peer(self, peer: int) -> str:
        """Return the text for a peer whose process ended while data was in flight."""
        return (
            f"[{Place.PAIR_RESET.path}] Read error {_address(peer)}: Connection reset by peer. "
            f"This is typically caused by a remote worker hanging or bugs in the application. {_ADVICE}"
        )

    def refused_by_peer(self, peer: int, rank: int) -> str:
        """Return `rank`'s text for a peer that does not listen at its address in the store."""
        said = f"timed out connecting: SO_ERROR: Connection refused, remote={_address(peer)}${rank}"
        return f"Gloo connectFullMesh failed with [{Place.PAIR_REFUSED.path}] {said}"

    def unconnected(self) -> str:
        """Return the text for a peer that did not connect in time."""
        return f"Gloo connectFullMesh failed with [{Place.PAIR_UNCONNECTED.path}] Connect timeout [none]"

    def pair_closed(self) -> str:
        """Return the text for a rank that timed out before, and closed all its connections."""
        return "Application timeout caused pair closure"

    def overrun(self, sent: int, room: int) -> str:
        """Return a process's last lines after `sent` bytes for `room` bytes (gloo/transport/tcp/pair.cc)."""
        return (
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
            f"  what():  [enforce fail at {Place.PAIR_OVERRUN.path}] op.preamble.length <= op.nbytes. "
            f"{sent} vs {room}. Received data size doesn't match expected size. "
            "Is there a distributed collective mismatch in your code?"
        )


def _address(peer: int) -> str:
    return f"[127.0.0.1]:{40000 + peer}"
