"""A suite written for torch's MultiProcessTestCase ends the same way on simulated ranks and on real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.suite import SUITES, run_arm, run_suites, with_changed_import

PARTS = 3  # parts that run at the same time: they mostly wait for timeouts


def test_every_test_of_a_suite_ends_alike() -> None:
    simulated = run_suites(SUITES, "simulated")["outcomes"]
    with ThreadPoolExecutor(PARTS) as pool:
        parts = [(suite, "forked", part, PARTS) for suite in SUITES for part in range(PARTS)]
        shares = pool.map(lambda each: run_arm(*each)["outcomes"], parts)
        forked = {name: test for share in shares for name, test in share.items()}

    assert len(simulated) > 45
    assert {name: test["outcome"] for name, test in simulated.items()} == {
        name: test["outcome"] for name, test in forked.items()
    }
    assert {test["outcome"] for test in simulated.values()} == {"passed", "failed", "skipped", "expected failure"}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.stem)
def test_one_line_is_changed(suite: Path) -> None:
    source = suite.read_text()
    changed = with_changed_import(source)

    pairs = zip(source.splitlines(), changed.splitlines(), strict=True)
    assert [ours for theirs, ours in pairs if theirs != ours] == ["from simdist.testing import MultiProcessTestCase"]
