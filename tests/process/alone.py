"""A program in a world of one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simdist
from simdist.result import RankResult

__all__ = ["alone"]


def alone(body: Callable[[], Any], **settings: Any) -> RankResult:
    """Return how the only rank of a world ends."""
    return simdist.run(body, world_size=1, **settings).ranks[0]
