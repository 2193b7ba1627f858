"""A suite written for torch's MultiProcessTestCase ends the same way on simulated ranks and on real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tools.suite import SUITE, run_arm, with_changed_import

PARTS = 3  # at a time: most of the time goes by in timeouts


def test_every_test_of_a_suite_ends_alike() -> None:
    simulated = run_arm(SUITE, "simulated")["outcomes"]
    with ThreadPoolExecutor(PARTS) as pool:
        shares = pool.map(lambda part: run_arm(SUITE, "forked", part, PARTS)["outcomes"], range(PARTS))
        forked = {name: test for share in shares for name, test in share.items()}

    assert len(simulated) > 45
    assert {name: test["outcome"] for name, test in simulated.items()} == {
        name: test["outcome"] for name, test in forked.items()
    }
    assert {test["outcome"] for test in simulated.values()} == {"passed", "failed", "skipped", "expected failure"}


def test_one_line_is_changed() -> None:
    source = SUITE.read_text()
    changed = with_changed_import(source)

    pairs = zip(source.splitlines(), changed.splitlines(), strict=True)
    assert [ours for theirs, ours in pairs if theirs != ours] == ["from simdist.testing import MultiProcessTestCase"]
