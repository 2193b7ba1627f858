"""joblib on ranks: its workers are simulated children, with the same results as loky's."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from typing import Any

import pytest

import simdist
from tests.process.test_multiprocessing import failure_of, open_files

joblib: Any = pytest.importorskip("joblib")

OFFSET = 3


def moved(number: int) -> float:
    return math.sqrt(number) + OFFSET


def parallel() -> Any:
    factor = 2
    calls = joblib.Parallel(n_jobs=2)
    squares = calls(joblib.delayed(lambda number: number**2 * factor)(number) for number in range(4))
    failure = failure_of(lambda: calls(joblib.delayed(math.sqrt)(number) for number in (1, -1)))
    lazily = list(joblib.Parallel(n_jobs=2, return_as="generator")(joblib.delayed(moved)(n) for n in (1, 4)))
    with joblib.parallel_config(backend="loky", n_jobs=2):
        others = set(joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(2)))
    return squares, failure, lazily, os.getpid() in others


def test_ranks_call_functions_in_parallel() -> None:
    refused = failure_of(lambda: math.sqrt(-1))  # the text of this Python
    before, loky = open_files(), sys.modules["joblib._parallel_backends"].get_memmapping_executor

    result = simdist.run(parallel, world_size=2)

    result.raise_for_failure()
    assert result.values == [([0, 2, 8, 18], refused, [4.0, 5.0], False)] * 2
    assert result.programs == ()
    assert multiprocessing.active_children() == []
    assert open_files() == before
    assert sys.modules["joblib._parallel_backends"].get_memmapping_executor is loky


@pytest.mark.real
def test_real_workers_do_so() -> None:
    try:
        assert simdist.run(parallel, world_size=1).values == [parallel()]
    finally:
        joblib.externals.loky.get_reusable_executor().shutdown()  # its workers would wait for more work
    assert multiprocessing.active_children() == []
