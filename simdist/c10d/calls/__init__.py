"""The calls of torch.distributed: one table of the collectives, and the one life that a call has.

Open `_table.py` first: a row for each collective, with every name it has, and what holds of it however it is called.
Whatever lists collectives reads it there, so a new one is a row here and the function that does it in each backend.

The package itself imports nothing but the table, which knows neither torch nor a world.
"""

from simdist.c10d.calls._table import (
    COPIES,
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
    Collective,
    Method,
    names_where,
)

__all__ = [
    "COPIES",
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
    "Collective",
    "Method",
    "names_where",
]
