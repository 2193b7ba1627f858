"""Whether data sets of several ranks hold the same samples, whatever becomes of these when they are read.

Augmented samples differ each time they are read, so the batches of ranks say nothing of what is behind them. A data set
that holds its samples, or their names, can be looked at itself: its tensors, arrays, numbers and texts are compared,
and those of the data sets that it wraps. What is called (a transform) and what is drawn from (a generator) is left
aside; a thing of any other kind may hide samples of the rank's own, so nothing is said then.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from simdist.judges._bits import bits_of

__all__ = ["hold_the_same"]

_PLAIN = (str, bytes, int, float, bool, type(None), range, PurePath, torch.dtype, torch.device)
_SIZED = (list, tuple, Mapping, np.ndarray, torch.Tensor)
_FEW = 16  # tensors or data sets that one is made of
_DRAWN_FROM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def hold_the_same(datasets: Sequence[Any]) -> bool:
    """True if the data sets hold their samples, or the names of these, and all hold the same."""
    if not _holds_samples(datasets[0]):
        return False
    first, *others = (list(_held(each)) for each in datasets)
    return all(other == first for other in others)


def _holds_samples(dataset: Any) -> bool:
    """True if something in it, or in a data set that it wraps, has an element for each sample."""
    size = len(dataset) if hasattr(dataset, "__len__") else None
    for value in _contents(dataset).values():
        for each in (value, *(value[:_FEW] if isinstance(value, list | tuple) else ())):
            if isinstance(each, Dataset):
                if _holds_samples(each):
                    return True
            elif isinstance(each, _SIZED) and getattr(each, "shape", None) != () and len(each) == size:
                return True
    return False


def _contents(dataset: object) -> Mapping[str, Any]:
    return getattr(dataset, "__dict__", {})


def _held(value: Any) -> Iterator[object]:
    """What can be compared of a value, in order; what equals nothing where something else is in it."""
    if isinstance(value, _PLAIN):
        yield value
    elif isinstance(value, torch.Tensor):
        bits = bits_of(value)
        yield object() if bits is None else (value.shape, value.dtype, bits)
    elif isinstance(value, np.ndarray):
        yield object() if value.dtype.hasobject else (value.shape, value.dtype.str, zlib.crc32(value.tobytes()))
    elif isinstance(value, Dataset):
        yield from _held(_contents(value))
    elif isinstance(value, Mapping):
        yield len(value)
        for key in value:
            yield from _held(key)
            yield from _held(value[key])
    elif isinstance(value, list | tuple):
        yield len(value)
        for each in value:
            yield from _held(each)
    elif not (callable(value) or isinstance(value, _DRAWN_FROM)):
        yield object()
