"""Every test here starts real processes, so all of them are marked `real`."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests below this folder."""
    item.add_marker("real")
