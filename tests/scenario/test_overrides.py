from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdist.scenario._reader import apply_overrides, parse_override
from simdist.scenario._schema import Problem

KEYS = st.lists(st.from_regex(re.compile(r"[A-Za-z0-9_-]{1,8}", re.ASCII), fullmatch=True), min_size=1, max_size=4)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\x7f")
VALUES = st.recursive(
    st.booleans() | INTEGERS | st.text(LETTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(KEYS, VALUES)
def test_what_is_set_is_found_at_its_place(keys: list[str], value: Any) -> None:
    table: dict[str, Any] = {}

    apply_overrides(table, [f"{'.'.join(keys)}={json.dumps(value, ensure_ascii=False)}"], [])

    node: Any = table
    for key in keys:
        node = node[key]
    assert node == value
    assert type(node) is type(value)


@given(KEYS, KEYS, INTEGERS)
def test_setting_one_key_leaves_the_others(first: list[str], second: list[str], value: int) -> None:
    first, second = ["a", *first], ["b", *second]
    table: dict[str, Any] = {}

    apply_overrides(table, [f"{'.'.join(first)}=1", f"{'.'.join(second)}={value}"], [])

    alone: dict[str, Any] = {}
    apply_overrides(alone, [f"{'.'.join(first)}=1"], [])
    assert table["a"] == alone["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("true", True),
        ('"1"', "1"),
        ("word", "word"),
        ("two words", "two words"),
        ("3ms", "3ms"),
        ("a=b", "a=b"),
        ("", ""),
        ("[1, 2]", [1, 2]),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_is_toml_and_else_plain_text(text: str, value: object) -> None:
    assert parse_override(f"key={text}") == (("key",), value)


def test_an_index_reaches_into_a_list() -> None:
    table = {"faults": [{"rank": 0}, {"rank": 1}]}

    paths = apply_overrides(table, ["faults[1].rank=3", "faults.0.rank=2"], [])

    assert table == {"faults": [{"rank": 2}, {"rank": 3}]}
    assert paths == [("faults", 1, "rank"), ("faults", 0, "rank")]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("seed", "--set seed: expected key=value"),
        ("=3", "--set =3: '' is no key; write it as in 'workload.kwargs.epochs=1'"),
        ("a..b=3", "--set a..b=3: 'a..b' is no key; write it as in 'workload.kwargs.epochs=1'"),
        ("faults[2].rank=3", "--set faults[2].rank=3: faults is a list, its entries are 0 to 0"),
        ("faults.x=3", "--set faults.x=3: faults is a list, its entries are 0 to 0"),
        ("seed.x=3", "--set seed.x=3: seed is the number 0, not a table"),
    ],
)
def test_what_cannot_be_set_is_reported(override: str, problem: str) -> None:
    problems: list[Problem] = []

    apply_overrides({"seed": 0, "faults": [{}]}, [override], problems)

    assert [str(each) for each in problems] == [problem]
