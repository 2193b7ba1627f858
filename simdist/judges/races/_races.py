"""Two ranks that use the same thing, one of them to change it, and nothing puts the one before the other.

Which of them comes first is then a matter of time: of the network, of disks, of how much one rank has to do. The run at
hand may have come out well. A group that is made again at one store is such a race: what its members read there may be
what those of the earlier one wrote. What is in order is what `Order` knows; what is looked at is in `_file_races.py`
and `_store_races.py`. What streams of a device do to each other, `simdist.device` finds out.
"""

from __future__ import annotations

from typing import ClassVar

from simdist.c10d import MembersAwaited, StoreServed
from simdist.device import StreamRaced
from simdist.judges._events import FileUsed
from simdist.judges._judge import Hearing, Judge
from simdist.judges._sites import calling_site
from simdist.judges.races._file_races import FileRaces
from simdist.judges.races._order import Order
from simdist.judges.races._store_races import StoreRaces

__all__ = ["Races"]


class Races(Judge):
    """What one rank writes and another uses is put in order by something: a barrier, a collective, a message, a key."""

    name: ClassVar[str] = "races"

    def begin(self, hearing: Hearing) -> None:
        """Look at files and keys, with the order of all that ranks say to each other."""
        order = Order(hearing)
        hearing.listen(StoreServed, StoreRaces(hearing, order).on_use)
        hearing.listen(FileUsed, FileRaces(hearing, order).on_use)
        reported: set[tuple[str, str]] = set()

        def on_streams(event: StreamRaced) -> None:
            where, against = event.where.rpartition("/")[2], event.against.rpartition("/")[2]
            if (where, against) not in reported:
                reported.add((where, against))
                hearing.find(
                    f"{event.use}, and {event.other}: nothing puts the one before the other",
                    hearing.moment(event.process, where),
                    subject=f"tensor of shape {list(event.shape)}",
                    against=against,
                    notes=[event.cure],
                )

        hearing.listen(StreamRaced, on_streams)

        def on_members(event: MembersAwaited) -> None:
            group, where = event.communicator, calling_site()
            if event.number != -1 or not group.again or not group.backend.uses_addresses or group.size < 2:
                return
            if (group.name, where) not in reported:
                reported.add((group.name, where))
                hearing.find(
                    f"group {group.name!r} is made anew at the keys of an earlier one: a rank that is early looks for "
                    "the others where they listened then",
                    hearing.moment(event.process, where),
                    subject=f"group {group.name!r}",
                    notes=[
                        "a `dist.PrefixStore` with a number that grows keeps them apart, and so does a store that rank "
                        "0 serves (TORCHELASTIC_USE_AGENT_STORE=False)"
                    ],
                )

        hearing.listen(MembersAwaited, on_members)
