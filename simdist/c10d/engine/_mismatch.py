"""The error of a strict group's ranks that do not agree on a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist.c10d.surface._callsite import call_site

if TYPE_CHECKING:
    from simdist.c10d.engine._collective import Collective

__all__ = ["describe_mismatch"]


def describe_mismatch(collective: Collective) -> str:
    """Return the error text: the calls of all ranks that have arrived, each with the line of the program that made it.

    The line is looked up when it is first needed, while the rank is still inside its call.
    """
    lines = [f"ranks do not agree on collective #{collective.sequence} in group {collective.communicator.name!r}:"]
    for _, arrival in sorted(collective.arrivals.items()):
        if not arrival.site:
            arrival.site = call_site(arrival.work.process.task_in(arrival.work))
        lines.append(f"  rank {arrival.work.process.rank} called {arrival.operation.describe()}{arrival.site}")
    return "\n".join(lines)
