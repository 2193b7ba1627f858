"""Whether data sets of several ranks hold the same samples, even if augmentation changes the samples at each read.

Augmented samples differ at each read, so the batches of ranks do not show whether the data sets are equal. A data set
that holds its samples, or their names, can be compared itself: its tensors, arrays, numbers and texts, and those of the
data sets that it wraps. Callables (transforms) and random generators are ignored. An object of any other type may hide
samples of one rank only, so data sets with such an object count as different. For large values, the two ends are
compared.
"""

from __future__ import annotations

import itertools
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
_FEW = 16  # parts of a data set that are searched: tensors or data sets
_MOST = 4_096  # elements at either end of a large value
_DRAWN_FROM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def hold_the_same(datasets: Sequence[Any]) -> bool:
    """True if the data sets hold their samples, or the names of these, and all data sets are equal."""
    if not _holds_samples(datasets[0], ()):
        return False
    rows = itertools.zip_longest(*(_held(each, ()) for each in datasets), fillvalue=object())
    return all(other == first for first, *others in rows for other in others)


def _holds_samples(dataset: Any, around: tuple[object, ...]) -> bool:
    """True if a value in the data set, or in a data set that it wraps, has an element for each sample."""
    if any(dataset is each for each in around):
        return False
    size = _size(dataset)
    for value in _contents(dataset).values():
        for each in (value, *(value[:_FEW] if isinstance(value, list | tuple) else ())):
            if isinstance(each, Dataset):
                if _holds_samples(each, (*around, dataset)):
                    return True
            elif isinstance(each, _SIZED) and getattr(each, "shape", None) != () and len(each) == size:
                return True
    return False


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # the program's own code, whose errors a judge must not raise
        return None


def _contents(dataset: object) -> Mapping[str, Any]:
    return getattr(dataset, "__dict__", {})


def _held(value: Any, around: tuple[object, ...]) -> Iterator[object]:
    """Yield the comparable parts of a value, in order; for any other part, an object that equals nothing.

    `around` are the values that contain it: a value inside itself is skipped.
    """
    if isinstance(value, _PLAIN):
        yield value
    elif isinstance(value, torch.Tensor):
        yield value.shape, value.dtype
        dense = value.layout is torch.strided and value.is_contiguous()
        for part in _ends(value.view(-1)) if dense else (value,):
            bits = bits_of(part)
            yield object() if bits is None else bits
    elif isinstance(value, np.ndarray):
        yield (value.shape, value.dtype.str) if value.flags.c_contiguous and not value.dtype.hasobject else object()
        for part in _ends(value.reshape(-1)):
            yield zlib.crc32(part.tobytes())
    elif any(value is each for each in around):
        return
    elif isinstance(value, Dataset):
        yield from _held(_contents(value), (*around, value))
    elif isinstance(value, Mapping):
        yield len(value)
        for key in value:
            yield from _held(key, (*around, value))
            yield from _held(value[key], (*around, value))
    elif isinstance(value, list | tuple):
        yield len(value)
        for part in _ends(value):
            for each in part:
                yield from _held(each, (*around, value))
    elif not (callable(value) or isinstance(value, _DRAWN_FROM)):
        yield object()


def _ends(value: Any) -> Iterator[Any]:
    """Yield the parts of a sequence to compare: all of it, or its two ends."""
    if len(value) <= 2 * _MOST:
        yield value
    else:
        yield value[:_MOST]
        yield value[-_MOST:]
