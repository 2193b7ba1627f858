"""A forked child has its own copies of the program's globals, classes and closures, as they were at the fork."""

from __future__ import annotations

import contextvars
import dataclasses
import decimal
import functools
import io
import itertools
import json
import multiprocessing as mp
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import simdist
from tests.c10d.worlds import values

_MISSING = object()
COUNT = 0
TABLE: dict[str, Any] = {"rows": [1]}
WEIGHTS = torch.zeros(3)
NOTICED: list[int] = []
REGISTRY: dict[str, Any] = {}
LOCK = threading.Lock()


class Config:
    rate = 1
    table = TABLE
    seen: list[int] = []  # noqa: RUF012  # all instances share it on purpose

    @classmethod
    def raise_rate(cls) -> None:
        cls.rate += 1


class Settings:
    """A class with one instance."""

    def __init__(self) -> None:
        self.depth = 1
        self.nested = {"config": Config()}


SETTINGS = Settings()


def registered(function: Callable[..., Any]) -> Callable[..., Any]:
    calls = [0]

    @functools.wraps(function)
    def counting(*args: Any) -> Any:
        calls[0] += 1
        return function(calls[0], *args)

    REGISTRY[function.__name__] = counting
    return counting


@registered
def note(call: int, missing: Any = _MISSING, noticed: list[int] = NOTICED) -> None:
    global COUNT  # the test is about a child's assignments to it
    assert missing is _MISSING
    assert noticed is NOTICED
    assert Config.table is TABLE
    with LOCK:
        COUNT += call
    globals()["NEW"] = COUNT
    noticed.append(COUNT)
    TABLE["rows"].append(COUNT)
    TABLE[f"added {call}"] = call
    WEIGHTS.add_(1)
    Config.raise_rate()
    Config.seen.append(call)
    SETTINGS.depth += 1
    SETTINGS.nested["config"].rate = "an instance's"  # type: ignore[assignment]


def state() -> list[Any]:
    inside = SETTINGS.depth, vars(SETTINGS.nested["config"])
    defaults = note.__wrapped__.__defaults__[1]  # type: ignore[attr-defined]
    rows = TABLE["rows"], len(TABLE), REGISTRY["note"] is note
    return [COUNT, NOTICED, *rows, WEIGHTS.tolist(), Config.rate, Config.seen, *inside, "NEW" in globals(), defaults]


def in_child(answers: Any) -> None:
    note()
    time.sleep(1)
    note()
    answers.put(state())


def child_and_parent() -> list[Any]:
    global COUNT
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    COUNT = 10
    TABLE["rows"].append("of the parent")
    children = [context.Process(target=in_child, args=(answers,)) for _ in range(2)]
    for child in children:
        child.start()
    COUNT = 20  # after the fork
    found = [answers.get() for _ in children]
    for child in children:
        child.join()
    return [*found, state(), [child.exitcode for child in children]]


def grandchild() -> list[Any]:
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    held = ["closed over"]
    count = 0

    def inner(depth: int) -> None:
        nonlocal count
        count += 1
        held.append(f"depth {depth}")
        note()
        if depth < 2:
            child = context.Process(target=inner, args=(depth + 1,))
            child.start()
            child.join()
        answers.put([depth, count, list(held), COUNT])

    child = context.Process(target=inner, args=(1,))
    child.start()
    found = [answers.get() for _ in range(2)]
    child.join()
    return [*found, count, held, COUNT]


def pooled() -> list[Any]:
    context = mp.get_context("fork")
    with context.Pool(2) as pool:
        counts = pool.map(count_up, [0] * 4, chunksize=2)
    return [sorted(counts) in ([1, 1, 2, 2], [1, 2, 3, 4]), COUNT]


def count_up(_: int) -> int:
    global COUNT
    COUNT += 1
    return COUNT


class Closing:
    """Reports its end."""

    def __init__(self, name: str, ended: Any) -> None:
        self.name = name
        self.calls: list[int] = []
        self.ended = ended

    def __del__(self) -> None:
        if self.ended is not None:
            self.ended.put([self.name, self.calls])


def finalizers() -> list[Any]:
    context = mp.get_context("fork")
    ended = context.SimpleQueue()
    kept, dropped = Closing("kept", ended), [Closing("dropped", ended)]

    def child(handed: Closing) -> None:
        for place, each in enumerate((handed, kept, *dropped)):
            each.calls.append(place)
        dropped.clear()

    process = context.Process(target=child, args=(Closing("handed", ended),))
    process.start()  # and drops its arguments
    process.join()
    found = []
    while not ended.empty():
        found.append(ended.get())
    kept.ended = dropped[0].ended = None  # the queue may end before them
    return [sorted(found), kept.calls, dropped[0].calls]


NOTED_TWICE = [13, [11, 13], [1, "of the parent", 11, 13], 3, True, [2.0] * 3, 3, [1, 2], 3]
# By what is the same object wherever it is asked for: torch's operators, and what a library holds under a name.
HELD = {torch.ops.aten.cat.default: "overload", torch.ops.aten.cat: "operator", dataclasses.MISSING: "sentinel"}


def things_of_libraries() -> list[Any]:
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    database = sqlite3.connect(":memory:", check_same_thread=False)
    cursor = database.execute("SELECT 1 UNION SELECT 2")
    context.Process(target=look_at, args=(answers, database, cursor)).start()
    found = [answers.get(), answers.get()]
    database.close()
    return found


def look_at(answers: Any, database: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
    answers.put([HELD.get(each) for each in (torch.ops.aten.cat.default, torch.ops.aten.cat, dataclasses.MISSING)])
    answers.put([cursor.fetchall(), database.execute("SELECT 3").fetchall()])


class Refusal(Exception):
    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class Pair(tuple[int, int]):
    def __new__(cls, one: int, other: int) -> Pair:
        return super().__new__(cls, (one, other))


class Opened:
    """What is made anew only by who has its key, as a file of h5py."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse_key, (), {"key": 1}


def refuse_key() -> Opened:
    raise ValueError("no key")


def beside_what_can_not_be_pickled() -> list[Any]:
    """A real fork copies what pickle can't make anew; and all that stands beside it."""
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    held = [Refusal("no", code=[7]), Pair(1, 2), Opened(), ["parent's"]]  # type: ignore[arg-type]
    process = context.Process(target=change_held, args=(answers, held))
    process.start()
    process.join()
    return [answers.get(), held[0].code, vars(held[2]), held[3]]  # type: ignore[attr-defined]


def change_held(answers: Any, held: list[Any]) -> None:
    refusal, pair, opened, beside = held
    refusal.code.append(8)
    beside.append("child's")
    answers.put([str(refusal), refusal.code, type(pair) is Pair, list(pair), type(opened) is Opened, beside])


NAMES: contextvars.ContextVar[list[str]] = contextvars.ContextVar("NAMES")


def context_of_parent() -> list[Any]:
    NAMES.set(["parent's"])
    with numpy.errstate(divide="raise"), decimal.localcontext(prec=7):
        context = mp.get_context("fork")
        answers = context.SimpleQueue()
        process = context.Process(target=look_around, args=(answers,))
        process.start()
        process.join()
        return [answers.get(), NAMES.get(), decimal.getcontext().prec]


def look_around(answers: Any) -> None:
    NAMES.get().append("child's")
    prec, decimal.getcontext().prec = decimal.getcontext().prec, 3
    answers.put([NAMES.get(), prec, numpy.geterr()["divide"]])


def files_in_memory() -> list[Any]:
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    files = [io.BytesIO(b"abc"), io.StringIO("abc")]
    files[1].read(1)
    process = context.Process(target=read_on, args=(answers, files))
    process.start()
    process.join()
    return [answers.get(), [each.read() for each in files]]


def read_on(answers: Any, files: list[Any]) -> None:
    answers.put([each.read(2) for each in files])


class Unmade:
    """Pickle can write it, and not read it."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def ends_beside_what_can_not_be_copied() -> list[Any]:
    context = mp.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    answers = context.SimpleQueue()
    all_of_it: dict[str, Any] = {"end": receiver, "other": Unmade()}

    def child() -> None:
        answers.put([receiver.recv(), all_of_it["end"].recv()])

    process = context.Process(target=child)
    process.start()
    sender.send(1)
    sender.send(2)
    process.join()
    return [process.exitcode, answers.get()]


def number_that_a_child_closed() -> list[Any]:
    receiver, sender = mp.Pipe(duplex=False)
    number = receiver.fileno()

    def child() -> None:
        sender.close()
        os.close(number)
        assert receiver
        time.sleep(2)

    process = mp.get_context("fork").Process(target=child)
    process.start()
    time.sleep(1)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    process.join()
    closed = 0
    for each in files:
        try:
            os.close(each)
        except OSError:
            closed += 1
    return [process.exitcode, closed]


def warned_and_bound() -> list[object]:
    """Warnings that a child is shown, its filters, and a list that it knows by its method."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pushed: list[str] = []
        push = pushed.append

        def warn() -> None:
            warnings.warn("child's", stacklevel=1)
            push(str(caught[0].message))
            assert pushed == ["child's"]
            warnings.simplefilter("error")

        process = mp.get_context("fork").Process(target=warn)
        process.start()
        process.join()
        warnings.warn("parent's", stacklevel=1)
        return [process.exitcode, pushed, [str(each.message) for each in caught]]


BODIES: dict[Callable[[], Any], Any] = {
    files_in_memory: [[b"ab", "bc"], [b"abc", "bc"]],
    context_of_parent: [[["parent's", "child's"], 7, "raise"], ["parent's"], 7],
    beside_what_can_not_be_pickled: [
        ["no", [7, 8], True, [1, 2], True, ["parent's", "child's"]],
        [7],
        {},
        ["parent's"],
    ],
    things_of_libraries: [["overload", "operator", "sentinel"], [[(1,), (2,)], [(3,)]]],
    child_and_parent: [
        [*NOTED_TWICE, {"rate": "an instance's"}, True, [11, 13]],
        [*NOTED_TWICE, {"rate": "an instance's"}, True, [11, 13]],
        [20, [], [1, "of the parent"], 1, True, [0.0] * 3, 1, [], 1, {}, False, []],
        [0, 0],
    ],
    grandchild: [
        [2, 2, ["closed over", "depth 1", "depth 2"], 3],
        [1, 1, ["closed over", "depth 1"], 1],
        0,
        ["closed over"],
        0,
    ],
    pooled: [True, 0],
    ends_beside_what_can_not_be_copied: [0, [1, 2]],
    number_that_a_child_closed: [0, 0],
    warned_and_bound: [0, [], ["parent's"]],
    finalizers: [[["dropped", [2]], ["handed", []]], [], []],
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_what_a_forked_child_writes_is_its_own(body: Callable[[], Any]) -> None:
    assert values(body, 2, isolate=True) == [BODIES[body]] * 2
    assert state()[:3] == [0, [], [1]]


def test_so_it_is_where_ranks_share_their_modules() -> None:
    try:
        assert simdist.run(grandchild, world_size=1).values == [BODIES[grandchild]]
        assert simdist.run(pooled, world_size=1).values == [BODIES[pooled]]
    finally:
        REGISTRY["note"] = note

    assert state()[:3] == [0, [], [1]]


def test_a_child_has_what_its_parent_set_on_shared_modules_and_imported() -> None:
    assert simdist.run(parents_settings, world_size=2, isolate=True).values == [["parent's", "child's", "parent's"]] * 2


def parents_settings() -> list[Any]:
    import json

    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    library: Any = json
    library.dialect = "parent's"

    def child() -> None:
        answers.put(library.dialect)
        library.dialect = "child's"
        time.sleep(1)
        answers.put(library.dialect)

    process = context.Process(target=child)
    process.start()
    found = [answers.get(), answers.get(), library.dialect]
    process.join()
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("isolate", [False, ["simpy"]], ids=["shared", "isolated"])
def test_what_a_child_sets_on_a_library_never_reaches_its_parent(method: str, isolate: bool | list[str]) -> None:
    result = simdist.run(childs_settings, args=(method,), world_size=2, isolate=isolate)

    result.raise_for_failure()
    assert result.values == [["child's", "child's", True, "child's", (None, None, False, None)]] * 2
    assert settings_of_libraries() == (None, None, False, None)


def settings_of_libraries() -> tuple[Any, ...]:
    import decimal

    import simpy

    library: Any = simpy
    return (
        getattr(library, "dialect", None),
        getattr(library.Environment, "dialect", None),
        hasattr(decimal, "dialect"),
        getattr(torch.nn.Linear, "dialect", None),
    )


def settle(answers: Any) -> None:
    import decimal

    import simpy

    libraries: list[Any] = [simpy, simpy.Environment, decimal, torch.nn.Linear]
    for library in libraries:
        library.dialect = "child's"
    time.sleep(1)
    for each in settings_of_libraries():
        answers.put(each)


def childs_settings(method: str) -> list[Any]:
    context = mp.get_context(method)
    answers: Any = context.SimpleQueue()
    process = context.Process(target=settle, args=(answers,))  # type: ignore[attr-defined]
    process.start()
    time.sleep(0.5)
    between = settings_of_libraries()
    found = [answers.get() for _ in range(4)]
    process.join()
    assert between == settings_of_libraries()
    return [*found, between]


def test_what_a_parent_sets_on_a_library_after_its_child_did_stays() -> None:
    def body() -> list[Any]:
        library: Any = json

        def child() -> None:
            library.dialect = "child's"
            time.sleep(2)
            assert library.dialect == "child's"

        process = mp.get_context("fork").Process(target=child)
        process.start()
        time.sleep(1)
        library.dialect = "parent's"
        process.join()
        assert process.exitcode == 0
        return [library.dialect]

    try:
        assert simdist.run(body, world_size=1).values == [["parent's"]]
        assert vars(json)["dialect"] == "parent's"  # ranks share modules here, also with the host
    finally:
        vars(json).pop("dialect", None)


def test_what_can_not_be_copied_is_shared() -> None:
    text = (letter for letter in "ab")

    def main() -> None:
        process = mp.get_context("fork").Process(target=lambda: next(text))
        process.start()
        process.join()
        assert process.exitcode == 0

    simdist.run(main, world_size=1).raise_for_failure()

    assert next(text) == "b"


def test_a_child_that_is_killed_or_left_finalizes_nothing() -> None:
    class Noting:
        process = 0

        def __del__(self) -> None:
            next(ended)

    ended = (number for number in itertools.count())  # processes share it
    held = [Noting()]
    context = mp.get_context("fork")

    def child() -> None:
        held[0].process = os.getpid()
        time.sleep(1000)

    def main() -> None:
        killed, left = (context.Process(target=child, daemon=daemon) for daemon in (False, True))
        killed.start()
        left.start()
        time.sleep(1)
        killed.kill()
        killed.join()
        os._exit(3)

    assert simdist.run(main, world_size=1).ranks[0].exit_code == 3

    assert next(ended) == 0
    held.clear()
    assert next(ended) == 2


class Deprecated:
    """Warns whenever an attribute is read, as `torch.distributed.reduce_op` does."""

    __slots__ = ("__dict__", "place")

    def __init__(self) -> None:
        object.__setattr__(self, "place", [1])
        object.__getattribute__(self, "__dict__")["value"] = [2]

    def __getattribute__(self, name: str) -> Any:
        warnings.warn(f"{name} is deprecated", FutureWarning, stacklevel=2)
        return object.__getattribute__(self, name)


DEPRECATED = Deprecated()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_nothing_asks_the_objects_of_a_program_when_a_child_begins(method: str) -> None:
    def main() -> list[Any]:
        context: Any = mp.get_context(method)
        queue = context.SimpleQueue()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            process = context.Process(target=change_deprecated, args=(queue,))
            process.start()
            process.join()
            found = queue.get()
        mine = [object.__getattribute__(DEPRECATED, name) for name in ("place", "value")]
        return [found, mine, [str(each.message) for each in caught]]

    assert values(main, 1, isolate=True) == [[[[1, 3], [2, 3]], [[1], [2]], []]]


def change_deprecated(queue: Any) -> None:
    found = [object.__getattribute__(DEPRECATED, name) for name in ("place", "value")]
    for each in found:
        each.append(3)
    queue.put(found)


@pytest.mark.real
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_real_children_do_that(body: Callable[[], Any]) -> None:
    context = mp.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    runner = context.Process(target=answer, args=(theirs, body))
    runner.start()
    theirs.close()

    assert mine.recv() == BODIES[body]
    runner.join()


def answer(end: Any, body: Callable[[], Any]) -> None:
    end.send(body())
