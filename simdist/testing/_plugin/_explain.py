"""Finds out why two runs of a test differ: it runs in two more fresh processes, traced line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simdist.determinism import DeterminismReport, Job, compare, explained, in_fresh_process
from simdist.errors import SimdistError

__all__ = ["explanation", "run_test"]


def run_test(arguments: Sequence[str]) -> None:
    """Run pytest inside this process; called in a fresh one."""
    pytest.main(list(arguments))


def explanation(arguments: Sequence[str], nodeid: str) -> str:
    """Return the first difference of two runs with each side's code line, and the line that caused it; empty if none.

    `arguments` are pytest's. A difference that only earlier tests in the first process caused is not found.
    """
    job = Job(__name__, run_test.__name__, (tuple(arguments),), lines=True)
    try:
        one, other = in_fresh_process(job, "1"), in_fresh_process(replace(job, shake=True), "2")
    except SimdistError as error:
        return f"no reason was found: {error}"
    parting = compare(one, other)
    if parting is None:
        return (
            "two more runs, both in fresh processes, are the same: something that ran before this test makes it differ"
        )
    cause = explained(one, other, parting)
    return str(DeterminismReport(nodeid, one.digests, other.digests, "2", parting, cause))
