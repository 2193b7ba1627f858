from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch

from simdist.determinism._describe import describe, plain


@dataclasses.dataclass
class Point:
    x: int
    rest: Any = None


class Slotted:
    __slots__ = ("one", "two")

    def __init__(self) -> None:
        self.one = 1


class Rude:
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise AssertionError("user code was called")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (1.5, "1.5"),
        ("a", "'a'"),
        ([1, [2]], "[1, [2]]"),
        ((1,), "tuple[1]"),
        ({"b", "a"}, "set{'a', 'b'}"),
        ({"b": 1, "a": 2}, "{'b': 1, 'a': 2}"),
        (Point(1, {2}), "Point{'x': 1, 'rest': set{2}}"),
        (Slotted(), "Slotted{'one': 1}"),
        (object(), "object"),
        (len, "<len>"),
        (Point, "<Point>"),
        (pathlib.PurePosixPath("/a"), "PurePosixPath(/a)"),
        (torch.float32, "torch.float32"),
        (ValueError("x"), "ValueError('x')"),
        (list(range(70)), f"[{', '.join(map(str, [*range(32), *range(38, 70)]))}] of 70"),
        (Rude(), "<Rude: RuntimeError>"),
    ],
)
def test_a_value_in_words(value: Any, text: str) -> None:
    assert describe(value)[:100] == text[:100]


def test_equal_tensors_have_equal_descriptions_and_others_do_not() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)

    assert describe(tensor) == describe(tensor.clone())
    assert describe(tensor) != describe(tensor + 1e-6)
    assert describe(tensor).startswith("tensor(float32[2, 3] 0, 1, 2, ... #")


@pytest.mark.parametrize(
    "make",
    [random.Random, np.random.default_rng, lambda seed: torch.Generator().manual_seed(seed), np.random.RandomState],
)
def test_a_generator_is_known_by_its_state(make: Any) -> None:
    assert describe(make(1)) == describe(make(1))
    assert describe(make(1)) != describe(make(2))


def test_a_cycle_ends() -> None:
    thing = Point(1)
    thing.rest = thing

    assert describe(thing).startswith("Point{'x': 1, 'rest': Point{")


def test_a_long_text_is_cut_and_still_exact() -> None:
    one, other = ["x" * 300, 1], ["x" * 300, 2]

    assert len(describe(one)) <= 170
    assert describe(one) != describe(other)


def test_addresses_and_temporary_names_are_not_plain() -> None:
    one, other = describe("/tmp/tmpab12cd_x at 0x7f5a93b7c720"), describe("/tmp/tmpzz98yx_w at 0x55d829f0aa10")

    assert one != other
    assert plain(one) == plain(other) == "'/tmp/* at *'"
