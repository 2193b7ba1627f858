"""Stores and a model: generated programs have the same results on a dict with waiters, simulated and real stores.

A program is a list of calls by two or three ranks, one after the other; the program goes on when a call waits. The real
arm has a thread for each rank, in this process: a store's effects on its clients do not depend on processes.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.c10d.stores import FILE
from tests.c10d.worlds import values
from tests.parity.arms import template
from tests.real_gloo import reserve_port

dist: Any = torch.distributed  # the stubs do not export the stores

KINDS = ("tcp", "prefix", "file", "hash")
BRIEFLY = timedelta(seconds=0.03)
GRACE_S = 0.03  # after this time a real call that should wait is waiting
STUCK_S = 10.0

Step = tuple[Any, ...]  # the name of a call and its arguments

# -- programs ----------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["x", "a/x", "p/a/x"])  # names that meet below the prefixes of `clients`
VALUES = st.binary(max_size=3)
KEY_LISTS = st.lists(KEYS, min_size=1, max_size=3, unique=True)

STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("wait"), KEY_LISTS),
    st.tuples(st.just("wait_briefly"), KEY_LISTS),
    st.tuples(st.just("check"), KEY_LISTS),
    st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
    st.tuples(st.just("delete_key"), KEYS),
    st.tuples(st.just("add"), st.just("n"), st.integers(-3, 3)),
    st.tuples(st.just("append"), KEYS, VALUES),
    st.tuples(st.just("multi_set"), st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)),
    st.tuples(st.just("multi_get"), KEY_LISTS),
    st.tuples(st.just("queue_push"), st.just("q"), VALUES),
    st.tuples(st.just("queue_pop"), st.just("q")),
    st.tuples(st.just("queue_pop_now"), st.just("q")),
    st.tuples(st.just("queue_len"), st.just("q")),
    st.tuples(st.just("num_keys")),
)
PROGRAMS = st.lists(st.tuples(st.integers(0, 2), STEPS), min_size=3, max_size=25)

# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Waiter:
    """A call that waits: the names that it lacks, and a function that returns its result once it lacks none."""

    step: int
    lacking: list[str]
    finish: Callable[[], Any]


@dataclass(slots=True)
class Planned:
    """A call, with a flag if it waits, and the ranks whose calls it ends."""

    rank: int
    step: Step
    waits: bool
    releases: list[int]


@dataclass(slots=True)
class Model:
    """A dict with waiters. `names` are the prefixes of the ranks' clients."""

    kind: str
    names: Sequence[str]
    data: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, list[bytes]] = field(default_factory=dict)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    results: list[list[Any]] = field(default_factory=list)
    plan: list[Planned] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)  # keys that a step has used but not set

    def run(self, program: Sequence[tuple[int, Step]]) -> None:
        """Run the program, without impossible calls: those of a rank that waits, and those that would never end."""
        self.results = [[] for _ in self.names]
        for rank, step in program:
            if rank >= len(self.names) or rank in self.waiters or not self._possible(step):
                continue
            lacking, finish = self._lacking(rank, step)
            waits = bool(lacking)
            if waits and self.kind == "hash":
                continue  # every rank has its own HashStore
            if waits and any(
                set(lacking) & set(other.lacking) & {self.names[rank] + "q"} for other in self.waiters.values()
            ):
                continue  # which of two poppers gets the element is a race
            self.results[rank].append(None)
            if waits:
                self.waiters[rank] = Waiter(len(self.results[rank]) - 1, lacking, finish)
            else:
                self.results[rank][-1] = finish()
            self.plan.append(Planned(rank, step, waits, self._released()))

    def lacking(self) -> list[str]:
        """Return the names that must be set at the end so that no call waits."""
        return sorted({name for waiter in self.waiters.values() for name in waiter.lacking})

    def end(self) -> None:
        """Set or push everything that is lacking, as the host does."""
        for name in self.lacking():
            if name.endswith("q"):
                self.queues.setdefault(name, []).append(b"end")
            else:
                self.data[name] = b"end"
        self._released()

    def _possible(self, step: Step) -> bool:
        name = step[0]
        if self.kind == "file":
            # A FileStore waits in whole seconds, has no queues, and appends by get and set.
            return not name.startswith("queue") and name not in ("wait_briefly", "append", "multi_set", "multi_get")
        return True

    def _lacking(self, rank: int, step: Step) -> tuple[list[str], Callable[[], Any]]:
        prefix = self.names[rank]
        name, *arguments = step
        if name in ("get", "wait", "multi_get"):
            keys = [arguments[0]] if name == "get" else arguments[0]
            full = [prefix + key for key in keys]

            def finish() -> Any:
                found = [self.data.get(key, b"") for key in full]
                return {"get": found[0], "wait": None, "multi_get": found}[name]

            return [key for key in full if key not in self.data], finish
        if name == "queue_pop":
            full_name = prefix + arguments[0]
            held = self.queues.setdefault(full_name, [])
            return ([] if held else [full_name]), lambda: held.pop(0)
        return [], lambda: self._do(prefix, name, arguments)

    def _do(self, prefix: str, name: str, arguments: list[Any]) -> Any:
        data, full = self.data, prefix + str(arguments[0]) if arguments else ""
        match name:
            case "set":
                data[full] = arguments[1]
            case "multi_set":
                data.update({prefix + key: value for key, value in arguments[0].items()})
            case "wait_briefly" | "check":
                present = all(prefix + key in data for key in arguments[0])
                return present if name == "check" else None if present else "DistStoreError"
            case "compare_set":
                expected, desired = arguments[1:]
                if full not in data and expected:
                    self.touched.append(full)
                    return expected
                if data.get(full, b"") == expected:
                    data[full] = desired
                return data[full]
            case "delete_key":
                return data.pop(full, None) is not None or self.kind == "file"
            case "add":
                data[full] = str(int(data.get(full, b"0")) + arguments[1]).encode()
                return int(data[full])
            case "append":
                data[full] = data.get(full, b"") + arguments[1]
            case "queue_push":
                self.queues.setdefault(full, []).append(arguments[1])
            case "queue_pop_now":
                held = self.queues.get(full)
                return held.pop(0) if held else "QueueEmptyError"
            case "queue_len":
                return len(self.queues.get(full, []))
            case "num_keys":
                counted = sum(self.kind != "hash" or key.startswith(prefix) for key in data)
                return counted + (self.kind == "file")  # its clients announce themselves by a key
        return None

    def _released(self) -> list[int]:
        """End the calls that lack nothing any more; returns their ranks."""
        over = []
        # A TCPStore's server releases the waits for a key that a compare_set has used, even if it was not set.
        touched, self.touched = self.touched if self.kind in ("tcp", "prefix") else [], []
        for rank, waiter in list(self.waiters.items()):
            gone = [name for name in waiter.lacking if name in self.data or self.queues.get(name) or name in touched]
            # A TCPStore's server counts down the keys that a client waits for, and does not check them again.
            if self.kind in ("tcp", "prefix"):
                waiter.lacking = [name for name in waiter.lacking if name not in gone]
                ended = not waiter.lacking
            else:
                ended = len(gone) == len(waiter.lacking)
            if ended:
                del self.waiters[rank]
                self.results[rank][waiter.step] = waiter.finish()
                over.append(rank)
        return over


# -- the arms ----------------------------------------------------------------------------------------------------------


def clients(kind: str, make: Callable[[], Any], ranks: int) -> list[tuple[str, Callable[[], Any]]]:
    """Return for each rank its client's prefix, which the model puts before keys, and a function that makes it."""
    if kind == "hash":  # one for each rank, so that no rank sees another's names
        return [(f"{rank}: ", make) for rank in range(ranks)]
    if kind != "prefix":
        return [("", make)] * ranks
    prefixed = [
        ("p/", lambda: dist.PrefixStore("p", make())),
        ("p/a/", lambda: dist.PrefixStore("a", dist.PrefixStore("p", make()))),
        ("", make),
    ]
    return prefixed[:ranks]


def call(store: Any, step: Step) -> Any:
    """Make one call; returns its value, or the type and text of its error."""
    name, *arguments = step
    calls: dict[str, Callable[[], Any]] = {
        "wait_briefly": lambda: store.wait(arguments[0], BRIEFLY),
        "multi_set": lambda: store.multi_set(list(arguments[0]), list(arguments[0].values())),
        "queue_pop_now": lambda: store.queue_pop(arguments[0], False),
    }
    try:
        return (calls.get(name) or (lambda: getattr(store, name)(*arguments)))()
    except Exception as error:
        return f"{type(error).__name__}: {template(str(error))}"


def give(store: Any, names: Sequence[str]) -> None:
    for name in names:
        if name.endswith("q"):
            store.queue_push(name, b"end")
        else:
            store.set(name, b"end")


def simulated_results(kind: str, plan: Sequence[Planned], lacking: Sequence[str], ranks: int) -> list[list[Any]]:
    """Make each call at a second of its own; the last rank is the host, and ends the calls that still wait."""

    def body() -> list[Any]:
        rank = int(os.environ["RANK"])
        host = rank == ranks

        def make() -> Any:
            if kind == "file":
                return dist.FileStore(FILE, -1)
            if kind == "hash":
                return dist.HashStore()
            return dist.TCPStore("127.0.0.1", 1234, None, host, timedelta(seconds=100), False)

        if host:
            store = make()
            time.sleep(len(plan) + 1)
            give(store, lacking)
            time.sleep(1)
            return []
        store = clients(kind, make, ranks)[rank][1]()
        results = []
        for second, planned in enumerate(plan, start=1):
            if planned.rank == rank:
                time.sleep(second - time.monotonic())  # the clock starts at 0
                results.append(call(store, planned.step))
        return results

    return list(values(body, ranks + 1)[:ranks])


class Caller:
    """A thread that makes one rank's calls."""

    def __init__(self, store: Any) -> None:
        self._steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(store,), daemon=True)
        self._thread.start()
        self.results: list[Any] = []

    def _main(self, store: Any) -> None:
        while (step := self._steps.get()) is not None:
            self._done.put(call(store, step))

    def begin(self, step: Step) -> None:
        self._steps.put(step)

    def end(self) -> None:
        """Wait until the call is over."""
        try:
            self.results.append(self._done.get(timeout=STUCK_S))
        except queue.Empty:
            self.results.append("still waiting")

    def close(self) -> None:
        self._steps.put(None)
        self._thread.join(timeout=1)


@contextmanager
def real_stores(kind: str, ranks: int) -> Iterator[tuple[list[Any], Any]]:
    """A client for each rank, and the host's client."""
    if kind == "hash":
        yield [dist.HashStore() for _ in range(ranks)], dist.HashStore()
    elif kind == "file":
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "store")
            yield [dist.FileStore(path, -1) for _ in range(ranks)], dist.FileStore(path, -1)
    else:
        with reserve_port() as holder:
            port = holder.getsockname()[1]

            def make(host: bool = False) -> Any:
                return dist.TCPStore("127.0.0.1", port, None, host, timedelta(seconds=100), False)

            host = make(True)
            yield [client() for _, client in clients(kind, make, ranks)], host


def real_results(kind: str, plan: Sequence[Planned], lacking: Sequence[str], ranks: int) -> list[list[Any]]:
    """Make one call after the other; after each, the calls that it releases end first."""
    with real_stores(kind, ranks) as (stores, host):
        callers = [Caller(store) for store in stores]
        waiting = set()
        for planned in plan:
            callers[planned.rank].begin(planned.step)
            if planned.waits:
                waiting.add(planned.rank)
                time.sleep(GRACE_S)
            else:
                callers[planned.rank].end()
            for rank in planned.releases:
                waiting.remove(rank)
                callers[rank].end()
        give(host, lacking)
        for rank in waiting:
            callers[rank].end()
        for caller in callers:
            caller.close()
        return [caller.results for caller in callers]


def as_planned(results: list[list[Any]]) -> list[list[Any]]:
    """Remove the texts of exceptions: the model knows only their types."""
    return [[value.split(":")[0] if isinstance(value, str) else value for value in reported] for reported in results]


def check(kind: str, program: Sequence[tuple[int, Step]], ranks: int) -> None:
    model = Model(kind, [prefix for prefix, _ in clients(kind, lambda: None, ranks)])
    model.run(program)
    plan, lacking = model.plan, model.lacking()
    model.end()

    ours = simulated_results(kind, plan, lacking, ranks)
    for _ in range(3):  # a busy machine may delay a real thread by more than `GRACE_S`
        theirs = real_results(kind, plan, lacking, ranks)
        if theirs == ours:
            break

    steps = [(planned.rank, planned.step) for planned in plan]
    assert ours == theirs, f"simulated != real: {steps}"
    assert as_planned(theirs) == model.results, f"real != model: {steps}"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(program=PROGRAMS, ranks=st.integers(2, 3))
def test_a_store_is_a_dict_with_waiters(kind: str, program: list[tuple[int, Step]], ranks: int) -> None:
    check(kind, program, ranks)


PROGRAMS_TO_KEEP: dict[str, list[tuple[int, Step]]] = {
    "a key that goes while another is awaited": [
        (0, ("wait", ["x", "a/x"])),
        (1, ("set", "x", b"1")),
        (1, ("delete_key", "x")),
        (1, ("set", "a/x", b"2")),
    ],
    "a key that goes while several values are awaited": [
        (0, ("multi_get", ["x", "a/x"])),
        (1, ("set", "x", b"1")),
        (1, ("delete_key", "x")),
        (1, ("set", "a/x", b"2")),
    ],
    "a compare_set in vain releases": [(0, ("get", "x")), (1, ("compare_set", "x", b"0", b"1")), (1, ("check", ["x"]))],
    "one set releases two": [(0, ("get", "x")), (1, ("wait", ["x"])), (2, ("compare_set", "x", b"", b"1"))],
    "a pop waits for its push": [(0, ("queue_pop", "q")), (1, ("queue_push", "q", b"1")), (2, ("queue_len", "q"))],
}


@pytest.mark.parametrize("name", PROGRAMS_TO_KEEP)
@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_a_waiter_is_released_as_by_the_real_store(kind: str, name: str) -> None:
    check(kind, PROGRAMS_TO_KEEP[name], 3)
