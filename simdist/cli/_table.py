"""A table without lines, for narrow terminals and for grep."""

from __future__ import annotations

from rich.table import Table

__all__ = ["plain_table"]


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with these columns; those in `right` are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
