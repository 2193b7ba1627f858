"""The works of Gloo's sends and receives (torch 2.13)."""

from __future__ import annotations

import sys
from typing import NoReturn

from simdist.c10d.engine import P2PWork
from simdist.errors import LivelockError, StrictError
from simdist.frames import user_line

__all__ = ["GlooMessage"]

_MANY_QUESTIONS = 10_000


class GlooMessage(P2PWork):
    """A work that is not completed before a wait, even if its data has arrived.

    A second wait after a successful one waits for a transfer that never arrives.
    """

    __slots__ = ()

    always_opaque = True

    def is_completed(self) -> bool:
        """True once a wait has ended. A call before that lets the other ranks run.

        Raises:
            LivelockError: the rank has asked very often and for longer than its timeout, and never waited.
        """
        if not self.waited:
            polling = self._poll()
            asked_ns = polling.last_ns - polling.first_ns
            if polling.count > _MANY_QUESTIONS and asked_ns > self.timeout_ns:
                raise LivelockError(
                    f"rank {self.process.rank} has asked {polling.count} times, for {asked_ns / 1e9:g} s, whether its "
                    f"{self.describe()} is completed{user_line(sys._getframe(1))}; with Gloo it never is before wait()"
                )
        self.process.drain()
        return self.waited

    def wait_again(self, limit_ns: int) -> None:
        """Wait for a transfer that never arrives.

        Raises:
            RuntimeError: after `limit_ns`.
            StrictError: at once, in a strict group.
        """
        if self.member.communicator.strict:
            raise StrictError(f"rank {self.process.rank} waits again for its {self.describe()}, which was done")
        self._wait_in_vain(limit_ns)

    def _wait_in_vain(self, limit_ns: int) -> NoReturn:
        simulation = self.process.simulation
        communicator = self.member.communicator
        deadline_ns = simulation.check().simulation.now_ns + limit_ns + communicator.backend.failure.late_ns
        while simulation.now_ns < deadline_ns:
            simulation.park(self, deadline_ns)
            self.process.drain()
        self.error = RuntimeError(communicator.backend.failure.timed_out(self.kind, limit_ns))
        communicator.timed_out(self.member.rank)
        communicator.look_again(self.member.rank)
        raise self.error
