"""Hosts with lives: a machine goes down with everything that runs on it, and comes back empty.

A host that loses power closes no connection. Its processes are gone at once, but no packet informs their peers: to
them the host is as silent as behind a cut cable. Only when it is up again does it answer packets that still arrive for
connections that it no longer knows, and the peers find them closed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from simdist.cluster._network import Condition, Network

__all__ = ["Host", "Resident"]


class Resident(Protocol):
    """A process that lives on a host and dies with it."""

    @property
    def has_baton(self) -> bool:
        """True if it is running now: `kill` does not return then."""
        ...

    def kill(self, signal: int) -> None:
        """End it, as by a signal; does nothing if it has ended."""
        ...


class Host:
    """A machine of a cluster while a world lives.

    `life` counts how often it has come back. `listeners` are called with the host when it has gone down or is up again.

    Example:
        >>> host = Host("host1", ranks=[2, 3], network=network)
        >>> host.crash(now_ns=5_000)      # ranks 0 and 1 hear nothing more from 2 and 3
        >>> host.boot(now_ns=90_000_000_000)
    """

    def __init__(self, name: str, ranks: Sequence[int], network: Network) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self.up = True
        self.life = 0
        self.failing = False  # it is about to go down, together with others
        self.outcome: int | None = (
            None  # which of its outcomes a disk takes when the host goes down; None: one is drawn
        )
        self.disks = "own"  # the disks with which it comes back: "own", "empty" or "swapped"
        self.skew_ns: Callable[[int], int] | None = None  # the error of its wall clock at a time; None: it is right
        self.residents: list[Resident] = []
        self.listeners: list[Callable[[Host], None]] = []
        self._network = network
        self._silence: Condition | None = None  # between its ranks and all others, while it is down

    def skew_clock(self, skew_ns: Callable[[int], int]) -> None:
        """Add `skew_ns(time_ns)` at each virtual time to the error of its wall clock."""
        before = self.skew_ns
        self.skew_ns = skew_ns if before is None else lambda time_ns: before(time_ns) + skew_ns(time_ns)

    def crash(self, now_ns: int, *, outcome: int | None = None) -> None:
        """Go down: its links are closed, and then all its residents end at once. May be down already.

        `outcome` selects one of the admissible outcomes of its disk, if it has one; None draws one.
        If one of its own residents calls this, it does not return.
        """
        if self.lose_power(now_ns, outcome=outcome):
            self.end_residents()

    def lose_power(self, now_ns: int, *, outcome: int | None = None) -> bool:
        """The first half of a crash: closes links, and disks keep what they keep. False if it was down already."""
        if not self.up:
            return False
        self.up = False
        self.outcome = outcome
        inside = set(self.ranks)
        others = [rank for rank in range(self._network.cluster.world_size) if rank not in inside]
        if others:
            self._silence = self._network.cut([self.ranks, others], start_ns=now_ns)
        self._report()
        return True

    def end_residents(self) -> None:
        """The second half of a crash: ends all residents; does not return to a resident that calls this."""
        residents, self.residents = self.residents, []
        # The running one is last: nothing is done after it.
        for resident in sorted(residents, key=_has_baton):
            resident.kill(signal.SIGKILL)

    @property
    def has_baton(self) -> bool:
        """True if one of its residents is running now."""
        return any(resident.has_baton for resident in self.residents)

    def boot(self, now_ns: int) -> None:
        """Come back, with nothing running. May be up already."""
        if self.up:
            return
        self.up = True
        self.life += 1
        if self._silence is not None:
            self._network.lift(self._silence, now_ns)
            self._silence = None
        self._report()

    def _report(self) -> None:
        for listener in list(self.listeners):
            listener(self)

    def __repr__(self) -> str:
        return f"<Host {self.name} life {self.life} {'up' if self.up else 'down'}>"


def _has_baton(resident: Resident) -> bool:
    return resident.has_baton
