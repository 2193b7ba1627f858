"""Runs one test: its body on every rank, or its own drive of worlds; and the steps after it."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from simdist.errors import RunFailedError, SimdistError
from simdist.process import own
from simdist.result import RunResult
from simdist.testing._plugin._arguments import Arguments
from simdist.testing._plugin._frames import hides
from simdist.testing._plugin._live import LiveWorld
from simdist.testing._plugin._settings import Settings
from simdist.testing._plugin._worlds import Worlds, without_seed, worlds_of

__all__ = ["default_group", "simulated_call"]


@contextlib.contextmanager
def simulated_call(item: pytest.Function) -> Iterator[None]:
    """Surrounds pytest's call of a simulated test.

    For a marked test it replaces the function by one that runs it on ranks. It ends a world that a test with `sim`
    leaves behind, and with `--simdist-check-determinism` it repeats the test.
    """
    __tracebackhide__ = True
    worlds = worlds_of(item)
    original = item.obj
    if not worlds.drives:
        item.obj = _on_ranks(item, worlds)
    try:
        yield
    except (Exception, pytest.fail.Exception):
        worlds.leave()
        _repeat(item, worlds, failed=True)
        raise
    else:
        worlds.leave()
        _repeat(item, worlds, failed=False)
    finally:
        worlds.leave()
        item.obj = original


def _on_ranks(item: pytest.Function, worlds: Worlds) -> Callable[..., None]:
    """Return the function that pytest calls in place of the test's."""
    function, settings = item.obj, worlds.settings
    _refuse(item, function)

    def body(**arguments: object) -> None:
        __tracebackhide__ = hides
        each = Arguments(function, arguments)
        returned: list[object] = []

        def call(rank: int) -> None:
            test, mine = each.on(rank)
            with default_group(settings, wanted=settings.init is not False):
                value = own(test)(**mine)
            if value is not None:
                returned.append(value)

        try:
            live = LiveWorld(worlds, call, settings, seed=worlds.seed)
        except SimdistError as error:
            raise pytest.fail.Exception(f"{item.nodeid}: {error}", pytrace=False) from None
        with live:
            first = live.finish()
        _explore(item, worlds, call, first)
        if returned:
            warnings.warn(
                pytest.PytestReturnNotNoneWarning(
                    f"Test functions should return None, but {item.nodeid} returned {type(returned[0])!r} on a rank.\n"
                    "Did you mean to use `assert` instead of `return`?"
                ),
                stacklevel=2,
            )

    return body


def _explore(item: pytest.Item, worlds: Worlds, call: Callable[[int], None], first: RunResult) -> None:
    """Run the test under the other schedules of `--simdist-explore`; the first failure fails the test."""
    __tracebackhide__ = True
    count = item.config.option.simdist_explore or 0
    if not count:
        return
    from simdist.searches import Facts, schedule

    facts, settings = Facts.of(first), worlds.settings
    for number in range(1, count + 1):
        attempt = schedule(number, worlds.seed, facts)
        worlds.schedule = number
        faults = (*settings.faults_for(worlds.seed), *attempt.faults)
        with LiveWorld(worlds, call, replace(settings, policy=attempt.policy), seed=worlds.seed, faults=faults) as live:
            live.finish()
        worlds.records.pop()
    worlds.schedule = 0


@contextlib.contextmanager
def default_group(settings: Settings, *, wanted: bool) -> Iterator[None]:
    """On a rank: initialise the default group for the test's code, if it is wanted; over NCCL with a device."""
    if not wanted:
        yield
        return
    timeout = None if settings.timeout is None else datetime.timedelta(microseconds=settings.timeout / 1000)
    if settings.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # else all ranks would take the first
    dist.init_process_group(settings.backend, timeout=timeout)
    try:
        yield
    except ValueError as error:
        if "initialize the default process group twice" in str(error):
            error.add_note("simdist has done so already; init=False leaves it to the test")
        raise
    if dist.is_initialized():
        dist.destroy_process_group()


def _refuse(item: pytest.Item, function: Callable[..., object]) -> None:
    test = inspect.unwrap(function)
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        pytest.fail(
            f"{item.nodeid}: a rank runs plain functions, and this one is async; make it an ordinary function",
            pytrace=False,
        )
    if inspect.isgeneratorfunction(test):
        pytest.fail(
            f"{item.nodeid}: a test with a yield can't run on ranks; it has to be an ordinary function", pytrace=False
        )
    if getattr(function, "is_hypothesis_test", False):
        pytest.fail(
            f"{item.nodeid}: @given would draw on each rank by itself; draw once, and run each example with 'sim' "
            "or simdist.run",
            pytrace=False,
        )


def _repeat(item: pytest.Item, worlds: Worlds, *, failed: bool) -> None:
    __tracebackhide__ = True
    results = [record.result for record in worlds.records if record.result is not None]
    if not item.config.option.simdist_check_determinism or not results:
        return
    from simdist.testing._plugin._repeat import repetition

    try:
        difference = repetition(item, worlds.seed, results, without_seed(item, worlds.seed), failed=failed)
    except RunFailedError as error:
        if not failed:
            raise
        difference = str(error)
    outside = dict.fromkeys(f"  {line}" for result in results for line in result.programs)
    if outside:
        worlds.notes.append("\n".join(["no seed decides what programs outside the simulation do:", *outside]))
    if difference is None:
        worlds.notes.append("a second run, in a fresh process, was the same, event for event")
    elif failed:
        worlds.notes.append(difference)
    else:
        pytest.fail(difference, pytrace=False)
