"""Processes that the host program forks while a world runs: they have none of the world's threads."""

from __future__ import annotations

import contextlib
import json
import multiprocessing as mp
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import SimdistError, UnsupportedError
from tests.beside import wait_for_host

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def small() -> tuple[str, float]:
    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return os.environ["RANK"], tensor.item()


def state() -> list[Any]:
    return [os.environ.get("RANK"), dist.is_initialized(), random.random(), len(os.sched_getaffinity(0))]


def in_child(call: Callable[[], Any]) -> Any:
    """Return the result of `call` in a forked process."""
    answers, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(answer, json.dumps(call()).encode())
        os._exit(0)
    os.close(answer)
    with os.fdopen(answers, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return json.loads(text)


FORKS_BESIDE_THREADS = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")
"""Before Python 3.15 the filter "error" had no effect on this warning."""


@pytest.fixture
def world() -> Callable[[Callable[[], Any]], tuple[Any, list[Any]]]:
    """A function that runs a world, and a call on another thread while one of its ranks runs."""

    def run(call: Callable[[], Any]) -> tuple[Any, list[Any]]:
        begun, ended, found = threading.Event(), threading.Event(), []

        def beside() -> None:
            assert begun.wait(30)
            try:
                found.append(call())
            finally:
                ended.set()

        def body() -> tuple[str, float]:
            random.seed(os.environ["RANK"])
            if os.environ["RANK"] == "0":
                begun.set()
                wait_for_host(ended)
            return small()

        thread = threading.Thread(target=beside)
        thread.start()
        values = simdist.run(body, world_size=2).values
        thread.join()
        return found[0], values

    return run


@FORKS_BESIDE_THREADS
def test_a_child_is_as_if_no_world_ran_and_may_run_its_own(world: Any) -> None:
    random.seed(3)
    expected = [None, False, random.random(), len(os.sched_getaffinity(0))]
    random.seed(3)

    found, values = world(lambda: in_child(lambda: [state(), simdist.run(small, world_size=2).values]))

    assert found == [expected, [["0", 2.0], ["1", 2.0]]]
    assert values == [("0", 2.0), ("1", 2.0)]


@FORKS_BESIDE_THREADS
def test_a_child_that_goes_on_in_the_run_itself_is_reported() -> None:
    children: list[int] = []
    answers, answer = os.pipe()

    def progress(now_ns: int, events: int) -> None:
        if not children:
            children.append(os.fork())

    def body() -> None:
        while not children:
            threading.Event().wait(0.01)
            time.sleep(1)

    try:
        simdist.run(body, world_size=2, progress=progress)
    except SimdistError as error:
        os.write(answer, str(error).encode())
    if children[0] == 0:
        os._exit(0)
    os.close(answer)
    with os.fdopen(answers, encoding="utf-8") as stream:
        reported = stream.read()
    os.waitpid(children[0], 0)

    assert reported == "this process was forked while a simulated world ran; the world goes on in its parent only"


def test_a_rank_may_not_fork() -> None:
    def body() -> None:
        with pytest.raises(UnsupportedError, match=r"rank 0: os\.forkpty .* would copy the whole world"):
            os.forkpty()

    simdist.run(body, world_size=1).raise_for_failure()


def forked(call: Callable[[], Any]) -> Any:
    """Return the result of `call` in a child that `multiprocessing` forks."""
    context: Any = mp.get_context("fork")
    answers, answer = context.Pipe(duplex=False)
    child = context.Process(target=lambda: answer.send(call()))
    child.start()
    result = answers.recv()
    child.join()
    return result


def lines_of_parent_and_child() -> tuple[Any, list[Any]]:
    """A `SimpleQueue` with two items, one of which is a list that refers to it."""
    line: queue.SimpleQueue[Any] = queue.SimpleQueue()
    item = [line]
    line.put("first")
    line.put(item)

    def take() -> list[Any]:
        line.put("child's")
        first, second, third = (line.get(timeout=1) for _ in range(3))
        return [first, second[0] is line, second is item, third, line.empty()]

    return forked(take), [line.get(timeout=1), line.get(timeout=1) is item, line.empty()]


def pools_of_parent_and_child() -> tuple[Any, Any]:
    """A pool of threads that has none in a child, and does not know it: it runs nothing there."""
    pool = ThreadPoolExecutor(1)
    assert pool.submit(os.getpid).result() == os.getpid()
    time.sleep(0.1)  # its thread waits for work

    def submit() -> str:
        try:
            pool.submit(os.getpid).result(timeout=1)
        except TimeoutError:
            return "no thread"
        return "ran"

    return forked(submit), pool.submit(os.getpid).result() == os.getpid()


QUEUES: dict[Callable[[], Any], Any] = {
    lines_of_parent_and_child: (["first", True, True, "child's", True], ["first", True, True]),
    pools_of_parent_and_child: ("no thread", True),
}


@pytest.mark.parametrize("body", QUEUES, ids=lambda body: body.__name__)
def test_a_forked_child_has_queues_of_its_own(body: Callable[[], Any]) -> None:
    assert simdist.run(body, world_size=2).values == [QUEUES[body]] * 2


@FORKS_BESIDE_THREADS
@pytest.mark.parametrize("body", QUEUES, ids=lambda body: body.__name__)
def test_queues_of_real_children_are_their_own(body: Callable[[], Any]) -> None:
    assert body() == QUEUES[body]
