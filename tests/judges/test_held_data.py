"""Data sets of several ranks that hold the same samples are recognised."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from simdist.judges.samples._held_data import hold_the_same


class Held(Dataset[Any]):
    """A data set of four samples that also keeps other things."""

    def __init__(self, **kept: object) -> None:
        self.__dict__.update(kept)

    def __len__(self) -> int:
        return 4


def _around_itself() -> Held:
    made = Held(data=FOUR.clone(), names=["a"])
    made.__dict__["inside"] = Held(outside=made)
    made.__dict__["names"].append(made.__dict__["names"])
    return made


class Unsized(Held):
    """A data set whose own code fails."""

    def __len__(self) -> int:
        raise NotImplementedError


FOUR = torch.arange(4.0)
SAME: dict[str, Any] = {
    "a tensor": lambda: Held(data=FOUR.clone()),
    "an array": lambda: Held(data=np.arange(8).reshape(4, 2)),
    "names of files": lambda: Held(root=Path("images"), samples=[(f"{i}.png", i % 2) for i in range(4)]),
    "a table": lambda: Held(table={0: "a", 1: "b", 2: "c", 3: "d"}),
    "a tuple of tensors": lambda: TensorDataset(FOUR.clone(), FOUR.clone()),
    "a data set that it wraps": lambda: Held(base=TensorDataset(FOUR.clone()), transform=lambda sample: sample),
    "a part of a data set": lambda: Subset(TensorDataset(FOUR.clone()), [1, 3]),
    "several data sets": lambda: ConcatDataset([TensorDataset(FOUR.clone()), TensorDataset(FOUR + 1)]),
    "something large": lambda: Held(base=Held(data=torch.arange(50_000.0)), extra=np.zeros(50_000), names=list("abcd")),
    "something that holds itself": lambda: _around_itself(),
    "a generator": lambda: Held(data=FOUR.clone(), generator=torch.Generator()),
}


@pytest.mark.parametrize("kind", SAME)
def test_equal_contents_are_the_same(kind: str) -> None:
    assert hold_the_same([SAME[kind](), SAME[kind](), SAME[kind]()])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Held(data=FOUR), Held(data=FOUR + 1)),
        (Held(data=FOUR), Held(data=FOUR.reshape(4, 1))),
        (Held(data=np.arange(4)), Held(data=np.arange(4)[::-1])),
        (Held(samples=list("abcd")), Held(samples=list("abce"))),
        (Held(data=FOUR, more=torch.zeros(20_000)), Held(data=FOUR, more=torch.eye(20_000, 1).view(-1))),
        (Held(data=FOUR, more=list(range(20_000))), Held(data=FOUR, more=[*range(19_999), 0])),
        (Held(samples=list("abcd"), root="one"), Held(samples=list("abcd"), root="other")),
        (Held(base=TensorDataset(FOUR)), Held(base=TensorDataset(FOUR * 2))),
        (Held(table=dict.fromkeys(range(4))), Held(table=dict.fromkeys(range(1, 5)))),
    ],
)
def test_other_contents_are_not(one: Held, other: Held) -> None:
    assert not hold_the_same([one, one, other])


@pytest.mark.parametrize(
    "made",
    [
        lambda: Held(seed=3),  # makes its samples when they are read
        lambda: Held(label="abcd"),
        lambda: Unsized(data=FOUR),
        lambda: Held(data=torch.eye(4).to_sparse()),
        lambda: Held(data=np.arange(16).reshape(4, 4).T),
        lambda: Held(scale=torch.tensor(1.0)),
        lambda: Held(data=FOUR, reader=SimpleNamespace(shard=0)),
        lambda: Held(data=np.array([object()] * 4)),
        lambda: Held(data=torch.empty(4, device="meta")),
    ],
)
def test_of_what_is_not_held_or_not_known_nothing_is_said(made: Any) -> None:
    assert not hold_the_same([made(), made()])
