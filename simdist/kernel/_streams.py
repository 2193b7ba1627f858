"""Named random streams: each component draws from its own, so a new one does not change the draws of others."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["stream"]


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the component called `name` in a run with `seed`; the same pair gives the same draws."""
    return np.random.default_rng([seed & 0xFFFF_FFFF_FFFF_FFFF, zlib.crc32(name.encode())])
