"""Every test here starts real processes: all of them are `real`."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is below this folder."""
    item.add_marker("real")
