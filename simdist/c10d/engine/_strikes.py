"""Faults that strike a rank inside a collective, or right after its part of it.

A fault "during" a short collective would strike too late if it struck at half time: a message of a few bytes has left
long before, and on real processes no rank would notice the death. So the messages of the rank to be struck are *held
back*: it dies with its data still in its own buffers, when the others have got as far as they can without it. A large
operation is partly under way when the fault strikes, at half of the rank's time in it. `simdist.hardware` does
the same to real processes, with the same limit.

A rank's result is changed here, too, as the last step before its part ends.

Invariants: a rank has one strike at most, the latest that was added; it is removed before it is carried out, and
dropped if the rank's part ends first. A rank stays held back until it dies or goes on after a stop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from simdist.c10d.calls._filled import change_filled
from simdist.c10d.calls._read import Change
from simdist.process import Strike

if TYPE_CHECKING:
    from simdist.c10d.engine._collective import Collective

__all__ = ["UNDER_WAY", "Strikes"]

UNDER_WAY = 16 << 20  # bytes; a part of an operation at least this large has left when a rank dies inside it


class Strikes:
    """The strikes of one collective; made with the first."""

    __slots__ = ("_changes", "_collective", "_pending", "held_back")

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._pending: dict[int, Strike] = {}  # by rank: not struck, and its part has not ended
        self._changes: dict[int, Change] = {}  # by rank: a change of its result, which is not there yet
        self.held_back: dict[int, None] = {}  # ranks whose messages do not leave

    def add(self, rank: int, when: Literal["during", "after"], action: Callable[[], None]) -> None:
        """Call `action` while the rank's data is under way ("during") or when its part is over ("after")."""
        self._pending[rank] = (when, action)

    def change_result(self, rank: int, change: Change) -> None:
        """Change the rank's result when it is there."""
        self._changes[rank] = change

    def change_results(self, only: int | None = None) -> None:
        """Change the results of all ranks, or of one, once they are there. A change that fails is the rank's error."""
        for rank in [each for each in self._changes if only in (None, each)]:
            arrival = self._collective.arrivals[rank]
            try:
                change_filled(self._changes.pop(rank), arrival.operation, arrival.payload, rank)
            except Exception as error:
                arrival.work.error = error

    def ranks_during(self) -> list[int]:
        """The ranks that are to be struck during it, whether they have arrived or not."""
        return [rank for rank, (when, _) in self._pending.items() if when == "during"]

    def hold_back(self) -> bool:
        """Hold back the messages of ranks that have arrived and will be struck; True if there are any."""
        collective = self._collective
        if collective.operation.size >= UNDER_WAY:
            return False
        struck = [rank for rank in self.ranks_during() if rank in collective.arrivals]
        self.held_back.update(dict.fromkeys(struck))
        return bool(struck)

    def due(self) -> list[int]:
        """The ranks that are held back and have not been struck."""
        return [rank for rank in self.held_back if rank in self._pending]

    def strikes_during(self, rank: int) -> bool:
        """True if a fault strikes the rank during it."""
        strike = self._pending.get(rank)
        return strike is not None and strike[0] == "during"

    def strike_at(self, rank: int, time_ns: int) -> None:
        """Strike the rank at that moment, if its part has not ended by then."""
        self._collective.communicator.simulation.call_at(time_ns, functools.partial(self._strike_during, rank))

    def _strike_during(self, rank: int) -> None:
        strike = self._pending.pop(rank, None)
        arrival = self._collective.arrivals.get(rank)
        if strike is not None and arrival is not None and arrival.settled is None:
            strike[1]()
            process = arrival.work.process
            if process.running and rank in self.held_back:
                process.resume_listeners.append(functools.partial(self._let_go, rank))

    def _let_go(self, rank: int) -> None:
        """Send a rank's held-back messages now: it was stopped inside the collective, and goes on."""
        collective = self._collective
        arrival = collective.arrivals.get(rank)
        if arrival is not None and arrival.settled is None and arrival.work.process.running:
            del self.held_back[rank]
            arrival.time_ns = collective.communicator.simulation.now_ns
            collective.follow()

    def strike_after(self, rank: int) -> None:
        """Carry out a strike "after": the rank's part is over."""
        strike = self._pending.pop(rank, None)
        if strike is not None and strike[0] == "after":
            strike[1]()
