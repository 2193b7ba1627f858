"""The calls of torch.distributed: one table of the collectives, and the one life that a call has.

Open `_table.py` first: a row for each collective, with every name it has, and what holds of it however it is called.
Whatever lists collectives reads it there, so a new one is a row here and the function that does it in each backend.
`_member.py` is the life of a call, the same for collectives, messages and every backend; `_operation.py` what ranks
compare, `_payload.py` what they bring, `_read.py` what is read of that and `_filled.py` what is filled; `_work.py` what
they wait for; `_events.py` what is announced and reported on the bus; `_unseen.py` how data moves so that no mode sees
it.

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
