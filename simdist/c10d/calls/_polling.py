"""The cost of asking whether something is done."""

from __future__ import annotations

from simdist.kernel import Simulation

__all__ = ["Polling"]

_POLL_NS = 1_000  # the cost of asking "is it done yet", so that a polling loop lets other ranks run
_POLLED_PART = 1_000  # and at least this part of the time since a loop without a pause began, so that it soon ends


class Polling:
    """Polls whether something is done yet: each takes a little virtual time, so that other ranks get on.

    In a loop without a pause the polls come ever later, so the loop is at most a thousandth late in the end.
    """

    __slots__ = ("count", "first_ns", "last_ns", "since_ns")

    def __init__(self) -> None:
        self.count = 0
        self.first_ns = -1  # time of the first poll
        self.since_ns = 0  # when the present loop without a pause began
        self.last_ns = -1  # when the last answer was given

    def ask(self, simulation: Simulation) -> None:
        """Let the time pass that a poll takes."""
        now_ns = simulation.now_ns
        if self.count == 0:
            self.first_ns = now_ns
        if now_ns != self.last_ns:
            self.since_ns = now_ns
        self.count += 1
        simulation.sleep(max(_POLL_NS, (now_ns - self.since_ns) // _POLLED_PART))
        self.last_ns = simulation.now_ns
