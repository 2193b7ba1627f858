from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from simdist.scenario._equality import difference

NAN = float("nan")


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        NAN,
        "text",
        {"a": [1, (2.0, NAN)]},
        torch.tensor([1.0, NAN]),
        torch.tensor(3.0),
        torch.zeros(0),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([True, False]),
        np.array([1.0, NAN]),
    ],
)
def test_a_value_equals_itself_bit_for_bit(value: Any) -> None:
    assert difference(value, value) is None


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (1, 2, "value: 1 and 2"),
        (1, 1.0, "value: 1 and 1.0 are of different types"),
        (0.0, -0.0, "value: 0.0 and -0.0"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "['a']['b'][1]: 2 and 3"),
        ({"a": 1}, {"b": 1}, "value: keys ['a'] and ['b']"),
        ([1], [1, 2], "value: 1 and 2 entries"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "value: tensor([0.]) and tensor([-0.])"),
        (
            torch.zeros(2),
            torch.zeros(2, dtype=torch.float64),
            "value: tensor([0., 0.]) and tensor([0., 0.], dtype=torch.float64)",
        ),
        (torch.zeros(2), torch.zeros(1, 2), "value: tensor([0., 0.]) and tensor([[0., 0.]])"),
        (np.zeros(1), np.ones(1), "value: array([0.]) and array([1.])"),
    ],
)
def test_the_first_difference_is_named_with_both_values(left: Any, right: Any, text: str) -> None:
    assert difference(left, right) == text
