"""A test whose rank keeps the GIL: the stacks bypass pytest's capture, and pytest's own timers still work."""

from __future__ import annotations

import signal
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the system has no such timers"),
    pytest.mark.real,  # the system's timers, in real time
]

HOG = """
import re
import pytest
from simdist.kernel import _lock_watch

_lock_watch._LEAST_S, _lock_watch._REPEAT_S = 0.5, 1


@pytest.mark.simdist(world_size=2, stall_s=0.1)
def test_backtracks(rank):
    re.match(r"(a+)+$", "a" * 60 + "b")
"""


@pytest.mark.parametrize(
    "options", [(), ("-o", "faulthandler_timeout=0.2")], ids=["alone", "with faulthandler_timeout"]
)
def test_the_stacks_name_the_test_and_its_line(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_hog=HOG)

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    text = result.stderr.str()
    assert result.ret == -int(signal.SIGRTMAX - 2)
    assert "in test_backtracks" in text
    assert "in rank 0" in text
    assert "in simdist: a rank has kept the GIL for 0.5 s" in text
    assert ("Timeout (0:00:00.200000)!" in text) is bool(options)
