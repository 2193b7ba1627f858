"""The table of the specification's tests is complete and correct."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.conformance.seeds import COVERED, NOT_HERE


@pytest.mark.parametrize("seed", sorted(COVERED))
def test_a_covered_seed_test_names_tests_that_exist(seed: str) -> None:
    for name in COVERED[seed]:
        file, owner, test = name.split("::")
        module = importlib.import_module(f"tests.conformance.{Path(file).stem}")

        assert callable(getattr(getattr(module, owner), test))


def test_no_seed_test_is_both_covered_and_left_out() -> None:
    assert not COVERED.keys() & NOT_HERE.keys()
    assert all(NOT_HERE.values())
    assert len(COVERED) + len(NOT_HERE) == 67
