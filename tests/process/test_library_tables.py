"""The changes of a child to dictionaries, lists and sets of installed libraries are its own."""

from __future__ import annotations

import functools
import multiprocessing as mp
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import networkx
import pytest

import simdist
from simdist.process.modules import _library_tables
from tests.c10d.worlds import values

library: Any = networkx


class Registry:
    """Stands in for a class of a library."""

    entries: dict[str, str] = {}  # noqa: RUF012  # one table for all


Registry.__module__ = "networkx"
TABLES: dict[str, Callable[[], Any]] = {
    "counts": lambda: {"calls": 1, "inner": [1]},
    "names": lambda: ["first"],
    "seen": lambda: {"a"},
    "ordered": lambda: OrderedDict(b=1, a=2),
    "tally": lambda: Counter("aab"),
    "latest": lambda: deque([1, 2], maxlen=2),
    "large": lambda: dict.fromkeys(range(100)),
    "Registry": lambda: Registry,
}


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in TABLES.items():
        monkeypatch.setattr(networkx, name, make(), raising=False)
    monkeypatch.setattr(Registry, "entries", {})


def write(text: str) -> None:
    library.counts["calls"] += 1
    library.counts["inner"].append(text)
    library.names.insert(0, text)
    library.seen.clear()
    library.ordered.move_to_end("b")
    library.tally.update(text)
    library.latest.append(text)
    library.large[text] = 1
    library.Registry.entries[text] = text


def read() -> list[Any]:
    tables = (library.counts, library.names, library.seen, library.ordered, library.tally, library.latest)
    return [*map(repr, tables), len(library.large), dict(library.Registry.entries)]


def child(answers: Any, depth: int) -> None:
    write("c")
    time.sleep(1)
    if depth:
        answers.put(run_child("fork", depth - 1))
    answers.put(read())


def run_child(method: str, depth: int = 0) -> list[Any]:
    context: Any = mp.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(answers, depth))
    process.start()
    library.names.append("later")
    time.sleep(0.5)
    between = read()
    found = [answers.get() for _ in range(depth + 1)]
    process.join()
    return [*found, between, read()]


def written(text: str, times: int, *later: str) -> list[Any]:
    calls = [text] * times
    return [
        repr({"calls": 1 + times, "inner": [1, *calls]}),
        repr([*calls, "first", *later]),
        "set()",
        repr(OrderedDict(a=2, b=1)),
        repr(Counter(a=2, b=1) + Counter(text * times)),
        repr(deque([1, 2, *calls], maxlen=2)),
        101,
        {text: text},
    ]


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_child_writes_into_tables_of_a_library_is_its_own(method: str, isolate: bool) -> None:
    result = simdist.run(run_child, args=(method,), world_size=1, isolate=isolate)

    result.raise_for_failure()
    made = [repr(TABLES[name]()) for name in TABLES if name not in ("names", "large", "Registry")]
    untouched = [made[0], repr(["first", "later"]), *made[1:], 100, {}]
    assert result.values == [[written("c", 1), untouched, untouched]]
    assert read() == untouched


def test_a_child_of_a_child_begins_with_what_that_had() -> None:
    inner, childs, _, _ = values(run_child, 1, args=("fork", 1))[0]
    assert inner == [written("c", 2), written("c", 1, "later"), written("c", 1, "later")]
    assert childs == written("c", 1, "later")


def has_own_module() -> bool:
    return vars(sys.modules[__name__]) is globals()


ASSIGNS = """
def assign(text):
    global of_process, other_of_process
    found = globals().get("of_process"), globals().get("other_of_process")
    of_process = text
    if "other_of_process" in globals():
        del other_of_process
    else:
        other_of_process = text
    return found

class Assigning:
    @classmethod
    def assign(cls, text):
        def inside():
            global of_class
            before, of_class = globals().get("of_class"), text
            return before
        return inside()
"""


@pytest.fixture
def assigning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a library that assign its variables."""
    names: dict[str, Any] = {}
    exec(ASSIGNS, vars(networkx), names)
    names["Assigning"].__module__ = "networkx"
    for name, value in {**names, "of_process": "at first", "other_of_process": 0, "of_class": 1}.items():
        monkeypatch.setattr(networkx, name, value, raising=False)


def assigned(text: str) -> list[Any]:
    return [*library.assign(text), library.Assigning.assign(text)]


def assign_in_child(answers: Any, *, also_from_outside: bool) -> None:
    answers.put(assigned("child's"))
    if also_from_outside:
        library.of_process = "set by the child"
    time.sleep(1)
    answers.put(assigned("child's again"))


def assign_beside_child(*, also_from_outside: bool) -> list[Any]:
    context: Any = mp.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=assign_in_child, args=(answers,), kwargs={"also_from_outside": also_from_outside})
    process.start()
    time.sleep(0.5)
    between = assigned("parent's")
    process.join()
    return [answers.get(), answers.get(), between, assigned("parent's again")]


def expected(again: str) -> list[list[Any]]:
    return [["at first", 0, 1], [again, None, "child's"], ["at first", 0, 1], ["parent's", None, "parent's"]]


OUTSIDE = {False: expected("child's"), True: expected("set by the child")}


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("also_from_outside", OUTSIDE)
def test_what_functions_of_a_library_assign_in_a_child_is_its_own(
    isolate: bool, also_from_outside: bool, assigning: None
) -> None:
    body = functools.partial(assign_beside_child, also_from_outside=also_from_outside)

    assert simdist.run(body, world_size=1, isolate=isolate).values == [OUTSIDE[also_from_outside]]
    assert (library.of_process, library.of_class) == ("parent's again", "parent's again")


def test_so_it_is_beside_tables_with_many_entries(monkeypatch: pytest.MonkeyPatch, assigning: None) -> None:
    monkeypatch.setattr(_library_tables, "_MANY", 0)

    assert values(functools.partial(assign_beside_child, also_from_outside=False), 1) == [OUTSIDE[False]]


@pytest.mark.real
@pytest.mark.parametrize("also_from_outside", OUTSIDE)
def test_so_it_is_in_real_children(also_from_outside: bool, assigning: None) -> None:
    assert assign_beside_child(also_from_outside=also_from_outside) == OUTSIDE[also_from_outside]


def modules_of_a_child() -> list[bool]:
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=report_modules, args=(answers,))
    process.start()
    found = [answers.get()]
    process.join()
    return [*found, has_own_module()]


def report_modules(answers: Any) -> None:
    answers.put(has_own_module())


def test_a_library_that_has_a_name_for_all_modules_moves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networkx, "loaded", sys.modules, raising=False)

    assert values(modules_of_a_child, 1, isolate=True) == [[True, True]]


def test_a_library_that_nobody_names_is_left_alone_and_so_is_compiled_code() -> None:
    names = _library_tables._named_libraries().keys()

    assert "networkx" in names
    assert {"json", "torch", "numpy", "simdist", "pytest"}.isdisjoint(names)


def test_a_world_without_children_does_not_look_at_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_library_tables, "_named_libraries")

    assert simdist.run(len, args=("ab",), world_size=2).values == [2, 2]


@pytest.mark.real
def test_real_children_do_that() -> None:
    found, between, after = run_child("fork")

    assert found == written("c", 1)
    assert between == after != found
