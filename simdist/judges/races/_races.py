"""Two ranks use the same thing, one of them changes it, and nothing puts one use before the other.

The order then depends on time: on the network, on disks, on the work of each rank. The current run may still have had
the right order. A group that is made again at the same store is such a race: its members may read keys of the earlier
group. `Order` has the order of events; `_file_races.py` and `_store_races.py` check files and keys. `simdist.device`
finds races between streams of a device.
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
    """A write by one rank and a use by another have an order: by a barrier, a collective, a message or a key."""

    name: ClassVar[str] = "races"

    def begin(self, hearing: Hearing) -> None:
        """Listen to files and keys, and to all communication that orders ranks."""
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
