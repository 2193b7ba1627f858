"""The calls of torch.distributed: one table of the collectives, and the one life cycle of a call.

Open `_table.py` first: a row for each collective, with all its names, and its properties in every form of call.
All code that lists collectives reads it there, so a new one is a row here and the function for it in each backend.
`_member.py` is the life of a call, the same for collectives, messages and every backend. `_operation.py` has what ranks
compare, `_payload.py` what they pass in, `_read.py` the part of it that is read and `_filled.py` the part that is
filled. `_work.py` has the objects that they wait for, `_worker_threads.py` the order in which these run, `_events.py`
the events on the bus, and `_unseen.py` moves data so that no mode sees it.

The package itself imports nothing but the table, which knows neither torch nor a world.
"""

from simdist.c10d.calls._table import (
    ALIKE,
    COPIES,
    FILLING,
    FROM_ROOT,
    IN_PLACE,
    KERNELS,
    MESSAGES,
    METHODS,
    REDUCTIONS,
    RENAMED,
    RINGS,
    ROOTED,
    SILENT,
    TABLE,
    TO_ROOT,
    UNCOMPARED,
    UNSHAPED,
    Collective,
    Method,
    names_where,
)

__all__ = [
    "ALIKE",
    "COPIES",
    "FILLING",
    "FROM_ROOT",
    "IN_PLACE",
    "KERNELS",
    "MESSAGES",
    "METHODS",
    "REDUCTIONS",
    "RENAMED",
    "RINGS",
    "ROOTED",
    "SILENT",
    "TABLE",
    "TO_ROOT",
    "UNCOMPARED",
    "UNSHAPED",
    "Collective",
    "Method",
    "names_where",
]
