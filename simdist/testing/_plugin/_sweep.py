"""A test with `@pytest.mark.simdist_sweep`: its body runs on every rank, and must recover from every crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simdist.errors import SimdistError

__all__ = ["sweeping_call"]


@contextmanager
def sweeping_call(item: pytest.Function) -> Iterator[None]:
    """Let pytest call a sweep of the test's body, in place of one call."""
    marker = item.get_closest_marker("simdist_sweep")
    assert marker is not None
    body = item.obj
    names = ("world_size",)
    given = {**dict(zip(names, marker.args, strict=False)), **marker.kwargs}
    if len(marker.args) > len(names):
        pytest.fail("@pytest.mark.simdist_sweep takes the number of ranks, and keywords", pytrace=False)
    if any(each.name == "simdist" for each in item.own_markers):  # one of a class or module gives defaults to others
        pytest.fail(
            f"{item.nodeid}: @pytest.mark.simdist and @pytest.mark.simdist_sweep each run the body in their own way; "
            "give one of them",
            pytrace=False,
        )

    def swept(**fixtures: object) -> None:
        from simdist.sweeps import sweep

        try:
            report = sweep(body, **{"world_size": 2, **given}, args=(), kwargs=fixtures)
        except SimdistError as error:
            failed = str(error)
        else:
            failed = f"{report.failed}\n{report}" if report.cases else str(report)
            if report.ok:
                return
        pytest.fail(failed, pytrace=False)  # outside of `except`, or pytest shows the text twice

    item.obj = swept
    try:
        yield
    finally:
        item.obj = body
