"""Descriptions of values that are the same in every process exactly if the values are.

No addresses, no hash order, no user code: `repr` of a user's class is not called, a set is sorted. So a legitimate
variation between runs (the address of an object) makes no difference; its consequence (the number that `id` returned)
does.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import pathlib
import random
import re
import types
import uuid
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from simdist._content import bytes_of

__all__ = ["ADDRESS", "describe", "plain"]

ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_TEMPORARY = re.compile(r"(?<=/)(?:tmp|simdist-)[a-z0-9_]{6,}")
_CUT = re.compile(r"#[0-9a-f]{8}~")

_DEPTH = 4
_ITEMS = 64
_TEXT = 160  # longer descriptions are cut, and end with a checksum
_SAMPLE = 1 << 16  # bytes of a tensor

_EXACT = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...))


def describe(value: object) -> str:
    """The value in at most 160 letters; never raises."""
    try:
        text = _words(value, _DEPTH)
    except Exception as error:  # of a user's property, or a tensor without data: no reason to stop
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    if len(text) > _TEXT:
        return f"{text[: _TEXT - 24]}... #{_crc(text)}~{_crc(plain(text))}"
    return text


def plain(text: str) -> str:
    """A description without parts that vary in each process and mean nothing: addresses, temporary names."""
    return _CUT.sub("#~", _TEMPORARY.sub("*", ADDRESS.sub("*", text)))


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def _words(value: object, depth: int) -> str:
    return _how(type(value))(value, depth)  # type: ignore[arg-type]  # types are hashable


@functools.lru_cache(maxsize=1024)
def _how(kind: type) -> Callable[[Any, int], str]:
    """The function that describes values of this type; the first that fits."""
    if kind in _EXACT:
        return lambda value, _: _cut(repr(value))
    if kind in (set, frozenset):
        return _set
    return next((how for kinds, how in _HOW if issubclass(kind, kinds)), _object)


def _set(value: Collection[object], depth: int) -> str:
    if depth == 0:
        return f"{type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}{{{', '.join(sorted(_words(item, depth - 1) for item in value))}}}"


def _in_order(value: Collection[object], depth: int) -> str:
    if depth == 0:
        return f"{type(value).__name__} of {len(value)}"
    items = list(value)
    if len(items) > _ITEMS:
        items = [*items[: _ITEMS // 2], *items[-_ITEMS // 2 :]]
    name = "" if type(value) is list else type(value).__name__
    tail = f" of {len(value)}" if len(value) > _ITEMS else ""
    return f"{name}[{', '.join(_words(item, depth - 1) for item in items)}]{tail}"


def _mapping(value: Mapping[Any, object], depth: int) -> str:
    if depth == 0:
        return f"{type(value).__name__} of {len(value)}"
    pairs = itertools.islice(value.items(), _ITEMS)
    inside = ", ".join(f"{_words(key, depth - 1)}: {_words(item, depth - 1)}" for key, item in pairs)
    return f"{{{inside}}}" + (f" of {len(value)}" if len(value) > _ITEMS else "")


def _module(value: torch.nn.Module, _: int) -> str:
    parts = ", ".join(f"{name}: {_tensor(part, 0)}" for name, part in value.state_dict().items())
    return f"{type(value).__name__}({parts})"


def _numpy_generator(value: Any, _: int) -> str:
    state = value.get_state() if isinstance(value, np.random.RandomState) else value.bit_generator.state
    return f"{type(value).__name__}({_bytes(repr(state).encode())})"


def _exception(value: BaseException, depth: int) -> str:
    return f"{type(value).__name__}({', '.join(_words(part, depth - 1) for part in value.args) if depth else ''})"


def _object(value: object, depth: int) -> str:
    if depth == 0:
        return f"<{type(value).__name__}>"
    state = dict(_state(value))
    return f"{type(value).__name__}{_mapping(state, depth) if state else ''}"


def _state(value: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object, read without calling code of its class."""
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict):
        yield from inside.items()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            member = kind.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield name, member.__get__(value)
                except AttributeError:
                    continue


def _tensor(value: torch.Tensor, _: int) -> str:
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu" or value.is_sparse:
        return f"{type(value).__name__}({kind})"
    with torch.no_grad():
        flat = value.detach().reshape(-1)
        size = flat.element_size()
        if flat.numel() * size > _SAMPLE:
            step = flat.numel() * size // _SAMPLE + 1
            flat = flat[::step]
        data = bytes_of(flat).numpy().tobytes()
        shown = ", ".join(f"{number:.6g}" for number in flat[:3].tolist()) if not value.is_complex() else ""
    return f"tensor({kind} {shown}{', ...' if value.numel() > 3 else ''} {_bytes(data)})"


def _bytes(data: bytes) -> str:
    return f"#{zlib.crc32(data):08x}"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}... {_bytes(text.encode('utf-8', 'replace'))}"


_HOW: tuple[tuple[Any, Callable[[Any, int], str]], ...] = (
    (enum.Enum, lambda value, _: f"{type(value).__name__}.{value.name}"),
    (pathlib.PurePath, lambda value, _: f"{type(value).__name__}({value})"),
    ((uuid.UUID, decimal.Decimal, fractions.Fraction), lambda value, _: str(value)),
    ((datetime.date, datetime.time, datetime.timedelta), lambda value, _: str(value)),
    ((torch.dtype, torch.device, torch.Size, np.generic, np.dtype), lambda value, _: str(value)),
    (types.ModuleType, lambda value, _: f"<{value.__name__}>"),
    (
        (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
        lambda value, _: f"<{value.__qualname__}>",
    ),
    (torch.Tensor, _tensor),
    (np.ndarray, lambda value, _: f"array({value.dtype}{list(value.shape)} {_bytes(value.tobytes()[:_SAMPLE])})"),
    ((set, frozenset), _set),
    ((list, tuple, collections.deque, type({}.keys()), type({}.values()), type({}.items())), _in_order),
    ((dict, types.MappingProxyType), _mapping),
    (torch.nn.Module, _module),
    (random.Random, lambda value, _: f"{type(value).__name__}({_bytes(repr(value.getstate()).encode())})"),
    ((np.random.Generator, np.random.RandomState), _numpy_generator),
    (np.random.SeedSequence, lambda value, _: f"SeedSequence({value.entropy}, {value.spawn_key})"),
    (torch.Generator, lambda value, _: f"Generator({_bytes(value.get_state().numpy().tobytes())})"),
    # Whether its object still exists shows at the line that calls it.
    (weakref.ref, lambda value, _: "weakref"),
    (BaseException, _exception),
)
