"""Names that a module took before the world began meet virtual time, the rank's pid, environment and entropy."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import tempfile
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.faults import Crash
from simdist.process import original
from tests.beside import wait_for_host
from tests.host_state import host_state

IMPORTS = """
import collections, dataclasses, datetime, functools, os, random, secrets, tempfile, time, uuid
import numpy
"""
SLEPT_S = 1.5
RANKS = 2


@dataclass(frozen=True)
class Name:
    """A name that a program may take early: where it is, how it is called, and its result on a rank."""

    expression: str
    call: str = "{}()"
    value: Callable[[int], Any] | None = None  # by rank, after the sleep; None: random
    method: bool = False  # a method of a class: each access makes another object


BEGIN_S = 1_767_225_600  # since 1970; a world begins with the year 2026
NOW_S = BEGIN_S + SLEPT_S
UTC = datetime(2026, 1, 1, 0, 0, 1, 500_000)
LOCAL = datetime.fromtimestamp(NOW_S)
NAMES = [
    *(Name(f"time.{name}", value=lambda rank: SLEPT_S) for name in ("monotonic", "process_time", "thread_time")),
    Name("time.monotonic_ns", value=lambda rank: 1_500_000_000),
    # Each further reading shows a nanosecond more.
    Name("time.perf_counter", "round({}(), 6)", lambda rank: SLEPT_S),
    Name("time.perf_counter_ns", "round({}(), -3)", lambda rank: 1_500_000_000),
    Name("time.time", value=lambda rank: NOW_S),
    Name("time.time_ns", value=lambda rank: 1_767_225_601_500_000_000),
    Name("time.clock_gettime", "{}(0)", lambda rank: NOW_S),
    Name("time.clock_gettime", "{}(1)", lambda rank: SLEPT_S),
    Name("time.gmtime", "{}().tm_year", lambda rank: 2026),
    Name("time.ctime", value=lambda rank: time.ctime(NOW_S)),
    Name("time.strftime", "{}('%Y')", lambda rank: LOCAL.strftime("%Y")),
    Name("datetime.datetime.now", value=lambda rank: LOCAL, method=True),
    Name("datetime.datetime.utcnow", value=lambda rank: UTC, method=True),
    Name("datetime.datetime.today", value=lambda rank: LOCAL, method=True),
    Name("datetime.date.today", value=lambda rank: LOCAL.date(), method=True),
    Name("os.getpid", value=lambda rank: 1000 + rank),
    Name("os.getppid", value=lambda rank: 500),
    Name("os.getenv", "{}('RANK')", str),
    Name("os.environ.get", "{}('RANK')", str),
    Name("os.environ", "dict({}).get('RANK')", str),
    Name("os.urandom", "{}(8)"),
    Name("uuid.uuid4", "str({}())"),
    Name("uuid.uuid1", "str({}())"),
    Name("secrets.token_hex"),
    Name("secrets.randbelow", "{}(2**64)"),
    Name("random.Random", "{}().random()"),
    Name("random.SystemRandom", "{}().random()"),
    Name("numpy.random.default_rng", "{}().random()"),
    Name("numpy.random.SeedSequence", "{}().entropy"),
    Name("tempfile.mktemp"),
]
# The ways to take it: the code at the top of a module, and the expression by which its functions call it.
WAYS = {
    "from import": ("{early}", "taken"),
    "alias": ("taken = {it}", "taken"),
    "default argument": ("def give(taken={it}):\n    return taken", "give()"),
    "keyword-only default": ("def give(*, taken={it}):\n    return taken", "give()"),
    "lambda's default": ("give = lambda taken={it}: taken", "give()"),
    "class attribute": ("class Holder:\n    taken = staticmethod({it})", "Holder.taken"),
    "attribute of an object": ("holder = type('Holder', (), {{}})()\nholder.taken = {it}", "holder.taken"),
    "closure": ("def make(taken):\n    return lambda: taken\ngive = make({it})", "give()"),
    "list in a dictionary": ("held = {{'a': [None, {it}]}}", "held['a'][1]"),
    "partial": ("partial = functools.partial(lambda taken: taken, {it})", "partial()"),
    "dataclass": (
        "@dataclasses.dataclass\nclass Settings:\n    taken: object = dataclasses.field(default_factory=lambda: {it})\n"
        "settings = Settings()",
        "settings.taken",
    ),
    "module in a module": ("import types\ninner = types.SimpleNamespace(taken={it})", "inner.taken"),
}
taken = st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(WAYS)))


def written(name: Name, way: str) -> tuple[str, str]:
    """Return the source of a module that takes the name, and the call of it."""
    top, access = WAYS[way]
    module, _, last = name.expression.rpartition(".")
    plain = not name.method and module in ("time", "os", "uuid", "secrets", "random", "tempfile", "numpy.random")
    early = f"from {module} import {last} as taken" if plain else f"taken = {name.expression}"
    return IMPORTS + top.format(it=name.expression, early=early), name.call.format(access)


class Loaded:
    """A user's modules, which exist until the block ends."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def load(self, source: str, call: str) -> types.ModuleType:
        name = f"early_helper_{len(self.names)}_{os.getpid()}"
        module = types.ModuleType(name)
        module.__file__ = f"/home/user/{name}.py"
        sys.modules[name] = module
        self.names.append(name)
        exec(compile(f"{source}\n\ndef ask():\n    return {call}\n", module.__file__, "exec"), vars(module))
        return module

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            del sys.modules[name]


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    with Loaded() as modules:
        yield modules


def asked(modules: list[types.ModuleType], seed: int = 0) -> list[list[Any]]:
    """Return what every rank gets from the modules, after a sleep."""

    def body() -> list[Any]:
        time.sleep(SLEPT_S)
        return [module.ask() for module in modules]

    return simdist.run(body, world_size=RANKS, seed=seed).values


@pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")  # since Python 3.12
@settings(max_examples=25, deadline=None)
@given(st.lists(taken, min_size=1, max_size=6), st.booleans())
def test_no_program_finds_a_real_clock_pid_or_entropy(chosen: list[tuple[Name, str]], used_before: bool) -> None:
    with Loaded() as loaded:
        modules = [loaded.load(*written(name, way)) for name, way in chosen]
        if used_before:  # by a world, and outside of worlds
            asked([])
            for module in modules:
                module.ask()

        first, second, other = asked(modules), asked(modules), asked(modules, seed=1)

        assert first == second
        for index, (name, _) in enumerate(chosen):
            values = [rank[index] for rank in first]
            if name.value is not None:
                assert values == [name.value(rank) for rank in range(RANKS)]
            else:
                assert len({*map(str, values), str(other[0][index])}) == RANKS + 1


@pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")  # likewise
@pytest.mark.parametrize("way", sorted(WAYS))
def test_every_name_in_every_way(way: str, loaded: Loaded) -> None:
    modules = [loaded.load(*written(name, way)) for name in NAMES]

    values, again = asked(modules), asked(modules)

    for index, name in enumerate(NAMES):
        found = [rank[index] for rank in values]
        if name.value is not None:
            assert found == [name.value(rank) for rank in range(RANKS)], name
        else:
            assert found == [rank[index] for rank in again], name
            assert found[0] != found[1], name


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=4))
def test_no_program_really_sleeps(ways: list[str]) -> None:
    with Loaded() as loaded:
        modules = [loaded.load(*written(Name("time.sleep", "{}(3600)"), way)) for way in ways]

        began = time.monotonic()
        result = simdist.run(lambda: [module.ask() for module in modules], world_size=RANKS)

        assert result.virtual_time_ns == 3600 * 10**9 * len(ways)
        assert time.monotonic() - began < 600


def test_a_module_that_takes_more_after_a_world_is_searched_again(loaded: Loaded) -> None:
    module = loaded.load(*written(Name("datetime.datetime.now"), "alias"))
    asked([module])
    exec("later = datetime.datetime.now\ndef ask(): return later()", vars(module))

    assert asked([module]) == [[LOCAL]] * RANKS


def test_what_a_modules_loader_holds_does_not_count_for_the_search(loaded: Loaded) -> None:
    module = loaded.load(f"{IMPORTS}taken = [[[[[datetime.datetime.now]]]]]", "taken[0][0][0][0][0]()")
    session: list[list[object]] = [[[] for _ in range(100)] for _ in range(100)]  # pytest's loader holds as much
    vars(module)["__loader__"] = vars(module)["__spec__"] = types.SimpleNamespace(session=session)

    assert asked([module]) == [[LOCAL]] * RANKS


def test_what_the_ranks_function_holds_is_found_too() -> None:
    clock = datetime.now

    def body(other: Callable[[], datetime], *, third: Callable[[], datetime]) -> list[datetime]:
        return [clock(), other(), third()]

    result = simdist.run(body, world_size=1, args=(datetime.now,), kwargs={"third": datetime.now})

    begin = datetime.fromtimestamp(BEGIN_S)
    assert result.values == [[begin] * 3]
    assert clock().year > 2000


def test_the_functions_stay_what_they_are() -> None:
    functions = [time.time, time.sleep, os.getpid, os.urandom, time.strftime, uuid.uuid1]

    def body() -> list[Any]:
        same = [time.time, time.sleep, os.getpid, os.urandom, time.strftime, uuid.uuid1]
        return [
            [a is b for a, b in zip(same, functions, strict=True)],
            [repr(each) for each in same[:5]],
            [pickle.loads(pickle.dumps(each)) is each for each in same],
            [each.__doc__ for each in same],
        ]

    reprs = [repr(each) for each in functions[:5]]
    documentation = [each.__doc__ for each in functions]

    assert simdist.run(body, world_size=1).values == [[[True] * 6, reprs, [True] * 6, documentation]]


def test_a_world_leaves_the_functions_as_they_were() -> None:
    def body() -> None:
        tempfile.mkdtemp()
        uuid.uuid1()
        raise ValueError("x")

    codes = uuid.uuid1.__code__, threading.Thread.start.__code__
    before = host_state(), tempfile.tempdir, vars(uuid).copy()

    simdist.run(body, world_size=2, faults=[Crash(rank=0, at_ns=0)])

    assert (host_state(), tempfile.tempdir, vars(uuid).copy()) == before
    assert (uuid.uuid1.__code__, threading.Thread.start.__code__) == codes
    assert time.time.__self__ is time  # type: ignore[attr-defined]
    assert time.time() > 1e9
    gc.collect()  # visits the objects that the functions refer to


def test_the_original_stays_within_reach() -> None:
    def body() -> tuple[float, bool]:
        return time.time(), original(time.time)() > 1e9

    assert simdist.run(body, world_size=1).values == [(BEGIN_S, True)]


def test_a_mock_of_the_program_stays_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    early = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def body() -> float:
        time.sleep(5)
        early(1)
        return time.monotonic()

    assert simdist.run(body, world_size=1).values == [1.0]


def test_other_threads_keep_the_real_functions_under_their_early_names() -> None:
    go, done = threading.Event(), threading.Event()
    clock, pid, chance, now = time.time, os.getpid, os.urandom, datetime.now
    seen: list[Any] = []

    def host() -> None:
        go.wait(10)
        seen.extend([clock() > 1e9, pid(), len(chance(4)), now().year > 2000, uuid.uuid1() != uuid.uuid1()])
        done.set()

    def body() -> tuple[float, int, int]:
        time.sleep(1)
        go.set()
        wait_for_host(done)
        return clock(), pid(), now().year

    thread = threading.Thread(target=host)
    thread.start()
    values = simdist.run(body, world_size=1).values
    thread.join()

    assert values == [(BEGIN_S + 1.0, 1000, LOCAL.year)]
    assert seen == [True, os.getpid(), 4, True, True]


def test_arguments_are_refused_as_outside() -> None:
    with pytest.raises(ValueError) as outside:  # noqa: PT011  # its text is another one since Python 3.15
        os.urandom(-1)

    def body() -> None:
        with pytest.raises(ValueError, match=str(outside.value)):
            os.urandom(-1)
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            os.urandom("8")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            time.time(1)  # type: ignore[call-arg]

    simdist.run(body, world_size=1).raise_for_failure()


def test_a_second_life_has_chance_of_its_own() -> None:
    drawn: list[str] = []

    def body() -> None:
        drawn.append(str(uuid.uuid4()))
        time.sleep(1)

    simdist.run(body, world_size=1, max_restarts=1, faults=[Crash(rank=0, at_ns=5)])

    assert len(set(drawn)) == 2


def test_a_rank_finds_the_temporary_folder_of_its_own_environment(tmp_path: Any) -> None:
    (tmp_path / "here").mkdir()

    def body() -> tuple[str, str]:
        tempfile.gettempdir()
        if os.environ["RANK"] == "1":
            tempfile.tempdir = str(tmp_path)
        time.sleep(0)
        return tempfile.gettempdir(), tempfile.mkdtemp()

    (first, made), (second, _) = simdist.run(body, world_size=2, env={"TMPDIR": str(tmp_path / "here")}).values

    assert first == str(tmp_path / "here")
    assert made.startswith(first)
    assert second == str(tmp_path)
    assert tempfile.gettempdir() not in (first, second)


def test_a_generator_of_torch_without_a_seed_gets_one_from_the_run() -> None:
    def body() -> tuple[int, int, float]:
        generator = torch.Generator()
        return generator.seed(), torch.seed(), torch.rand(1, generator=generator).item()

    first, second = simdist.run(body, world_size=2).values, simdist.run(body, world_size=2).values

    assert first == second
    assert first[0] != first[1]
    assert 0 <= first[0][0] < 2**53
