"""Errors in callbacks of futures on real processes over Gloo."""

from __future__ import annotations

from tests.c10d.test_callbacks import STORIES, stories
from tests.real_gloo import run_real


def test_real_ranks_get_the_same_errors_from_callbacks() -> None:
    assert [outcome.value for outcome in run_real(stories, 2)] == [STORIES] * 2
