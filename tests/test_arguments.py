"""Arguments of `simdist.run` and its siblings that make no sense: each gets one line, before anything runs."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import simdist
from simdist.cluster import Cluster, build
from simdist.errors import ArgumentError, FaultError, SimdistError, TopologyError
from simdist.faults import Crash, Fault, Hang, Partition, SlowRank


def nothing(*args: object, **kwargs: object) -> None:
    """Do nothing."""


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ASYNC = "fn: expected an ordinary function, in which asyncio.run may be called; waiting is async"


async def waiting() -> None:
    pass


class Steps:
    def yielding(self) -> Iterator[int]:
        yield 1


class Answering:
    """Has every attribute, as a proxy or a mock does."""

    def __getattr__(self, name: str) -> Answering:
        return self

    def __call__(self) -> int:
        return 3


def test_an_object_with_every_attribute_can_be_called_on_ranks() -> None:
    assert simdist.run(Answering(), world_size=2).values == [3, 3]


def refusal(**arguments: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        simdist.run(arguments.pop("fn", nothing), **{"world_size": 2, **arguments})
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"fn": 3}, "fn: expected a function, found the number 3"),
        ({"fn": waiting}, ASYNC),
        ({"fn": functools.partial(waiting)}, ASYNC),
        (
            {"fn": Steps().yielding},
            "fn: expected an ordinary function; yielding has a yield, so a call only makes a generator",
        ),
        ({"args": 3}, "args: expected a sequence, found the number 3"),
        ({"args": "ab"}, "args: expected a sequence, found the text 'ab'"),
        ({"kwargs": [1]}, "kwargs: expected a mapping with names as keys, found the list [1]"),
        ({"kwargs": {1: 2}}, "kwargs: expected a mapping with names as keys, found the dict {1: 2}"),
        ({"world_size": 0}, "world_size: 0 is too small; the least is 1"),
        ({"world_size": -2}, "world_size: -2 is too small; the least is 1"),
        ({"world_size": "4"}, "world_size: expected a whole number, found the text '4'"),
        ({"world_size": True}, "world_size: expected a whole number, found True"),
        ({"world_size": 2.0}, "world_size: expected a whole number, found the number 2.0"),
        (
            {"world_size": 10**30},
            "world_size: 1000000000000000000000000000000 is too large; the most is 32768, for each rank is a thread of "
            "this process",
        ),
        (
            {"world_size": 2**63 - 1},
            "world_size: 9223372036854775807 is too large; the most is 32768, for each rank is a thread of this "
            "process",
        ),
        ({"seed": "x"}, "seed: expected a whole number, found the text 'x'"),
        ({"seed": 2**64}, "seed: 18446744073709551616 is too large; the most is 18446744073709551615"),
        ({"seed": -(10**5000)}, "seed: -(more than 4,300 digits) is too small; the least is 0"),
        ({"backend": 3}, "backend: expected 'gloo' or 'nccl' or 'sim', found the number 3"),
        ({"backend": "mpi"}, "backend: unknown 'mpi'; known: gloo, nccl, sim"),
        ({"max_restarts": -1}, "max_restarts: -1 is too small; the least is 0"),
        ({"cluster": 3}, "cluster: expected a Cluster from simdist.cluster, found the number 3"),
        ({"faults": "crash"}, "faults: expected a sequence of faults from simdist.faults, found the text 'crash'"),
        ({"faults": None}, "faults: expected a sequence of faults from simdist.faults, found None"),
        ({"env": 3}, "env: expected a mapping, found the number 3"),
        ({"env": {"A": 1}}, "env.A: expected a text, found the number 1"),
        ({"env": {1: "A"}}, "env: expected texts as keys, found the number 1"),
        ({"env": {"A=B": "x"}}, "env.\"A=B\": is no name of a variable: it is empty or has a '='"),
        ({"env": {"A": "\0"}}, "env.A: its value has a NUL character, which no environment can hold"),
        ({"env": {"A": "\ud800"}}, "env.A: its value has a character that no environment can hold"),
        ({"argv": "x"}, "argv: expected a sequence of texts, found the text 'x'"),
        ({"argv": ["x", 1]}, "argv[1]: expected a text, found the number 1"),
        ({"policy": "lifo"}, "policy: unknown 'lifo'; did you mean 'fifo'?"),
        ({"policy": None}, "policy: expected 'fifo' or 'random', found None"),
        ({"strict": "yes"}, "strict: expected True or False, found the text 'yes'"),
        ({"record_results": 1}, "record_results: expected True or False, found the number 1"),
        ({"stall_s": 0}, "stall_s: 0 is too small; it must be greater than 0"),
        ({"stall_s": float("nan")}, "stall_s: expected a finite number, found the number nan"),
        ({"stall_s": "30s"}, "stall_s: expected a number, found the text '30s'"),
        ({"echo": 1}, "echo: expected a function, found the number 1"),
        ({"progress": 1}, "progress: expected a function, found the number 1"),
        ({"replay": 1}, "replay: expected a text, found the number 1"),
        ({"cluster": Loud()}, "cluster: expected a Cluster from simdist.cluster, found the Loud (its __repr__ raises)"),
    ],
)
def test_a_bad_argument_is_one_sentence_that_names_it(arguments: dict[str, Any], line: str) -> None:
    assert refusal(**arguments) == f"simdist.run: {line}"


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            "crash",
            "faults[0]: expected a fault from simdist.faults, found the text 'crash'; write simdist.faults.Crash(...)",
        ),
        (
            SlowRank,
            "faults[0]: expected a fault from simdist.faults, found the class SlowRank; call it with its arguments",
        ),
        (3, "faults[0]: expected a fault from simdist.faults, found the number 3"),
        (Crash(rank=1.5, nth=1), "faults[0].rank: expected a whole number, found the number 1.5"),  # type: ignore[arg-type]
        (Crash(rank=True, nth=1), "faults[0].rank: expected a whole number, found True"),
        (Crash(rank=0, nth="x"), "faults[0].nth: expected a whole number, found the text 'x'"),  # type: ignore[arg-type]
        (Crash(rank=0, op=3), "faults[0].op: expected the name of an operation, found the number 3"),  # type: ignore[arg-type]
        (
            Crash(rank=0, nth=1, life="x"),  # type: ignore[arg-type]
            "faults[0].life: expected a life counted from 0, or None, found the text 'x'",
        ),
        (Crash(rank=0, nth=1, life=-1), "faults[0].life: expected a life counted from 0, or None, found the number -1"),
        (
            Crash(rank=0, nth=1, life=1),
            "faults[0].life: 1 never comes: with max_restarts = 0 the last life is 0",
        ),
        (Crash(rank=0, nth=1, exit_code="x"), "faults[0].exit_code: expected a whole number, found the text 'x'"),  # type: ignore[arg-type]
        (Crash(rank=0, at_ns="3ms"), "faults[0].at_ns: expected nanoseconds, a whole number, found the text '3ms'"),  # type: ignore[arg-type]
        (
            Crash(rank=0, at_ns=2**63),
            "faults[0].at_ns: 9223372036854775808 ns is longer than virtual time can be (292 years)",
        ),
        (Crash(rank=0, nth=1, signal=9), "faults[0].signal: expected a text, found the number 9"),  # type: ignore[arg-type]
        (Partition(groups=3), "faults[0].groups: expected a sequence of groups of ranks, found the number 3"),  # type: ignore[arg-type]
        (
            Partition(groups=((0,), ("a",))),  # type: ignore[arg-type]
            "faults[0].groups[1][0]: expected a whole number, found the text 'a'",
        ),
    ],
)
def test_a_bad_fault_is_one_sentence_that_names_its_field(fault: Fault, line: str) -> None:
    with pytest.raises(FaultError) as caught:
        simdist.run(nothing, world_size=2, faults=[fault])

    assert str(caught.value) == line


def test_all_that_is_wrong_is_reported_at_once_and_nothing_runs() -> None:
    ran: list[int] = []

    text = refusal(fn=lambda: ran.append(1), seed="x", env=3, faults=[3, Crash(rank=9, nth=1)], cluster=build(3))

    assert text == (
        "simdist.run: 5 problems\n"
        "  seed: expected a whole number, found the text 'x'\n"
        "  env: expected a mapping, found the number 3\n"
        "  faults[0]: expected a fault from simdist.faults, found the number 3\n"
        "  faults[1].rank: rank 9 is outside the world of 2 ranks\n"
        "  cluster: the cluster places 3 ranks, the world has 2"
    )
    assert ran == []


def test_an_argument_error_is_what_python_raises_for_them_and_pickles() -> None:
    error = ArgumentError("simdist.run", ["seed: bad", "env: bad"])

    assert isinstance(error, SimdistError)
    assert isinstance(error, ValueError)
    assert isinstance(error, TypeError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


class Odd:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def test_a_value_that_cannot_be_compared_is_reported_like_any_other() -> None:
    with pytest.raises(FaultError, match=r"^faults\[0\]\.life: expected a life counted from 0, or None, found the Odd"):
        simdist.run(nothing, world_size=1, faults=[Crash(rank=0, nth=1, life=Odd())])  # type: ignore[arg-type]


def test_numpys_whole_numbers_are_as_good_as_pythons() -> None:
    fault: Fault = Crash(rank=np.int64(1), at_ns=np.int32(5))  # type: ignore[arg-type]
    one = simdist.run(nothing, world_size=np.int64(2), seed=np.uint8(3), faults=[fault])  # type: ignore[arg-type]
    other = simdist.run(nothing, world_size=2, seed=3, faults=[Crash(rank=1, at_ns=5)])

    assert one.digest == other.digest
    assert one.replay == other.replay
    assert fault == Crash(rank=1, at_ns=5)
    assert Partition(groups=[[0], np.array([1])]) == Partition(groups=((0,), (1,)))  # type: ignore[arg-type]


def test_spawn_checks_its_arguments() -> None:
    with pytest.raises(ArgumentError) as caught:
        simdist.spawn(nothing, nprocs="2", seed=-1, faults=[3], join=0)  # type: ignore[arg-type,list-item]

    assert str(caught.value) == (
        "simdist.spawn: 4 problems\n"
        "  nprocs: expected a whole number, found the text '2'\n"
        "  join: expected True or False, found the number 0\n"
        "  seed: -1 is too small; the least is 0\n"
        "  faults[0]: expected a fault from simdist.faults, found the number 3"
    )


def test_check_determinism_checks_its_arguments_before_anything_runs() -> None:
    with pytest.raises(ArgumentError) as caught:
        simdist.check_determinism(nothing, world_size=0, sed=3, env=[])  # type: ignore[call-arg, arg-type]

    assert str(caught.value) == (
        "simdist.check_determinism: 3 problems\n"
        "  world_size: 0 is too small; the least is 1\n"
        "  sed: unknown argument; did you mean 'seed'?\n"
        "  env: expected a mapping, found the list []"
    )


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: build("4"), "world_size: expected a whole number, found the text '4'"),  # type: ignore[arg-type]
        (
            lambda: build(4, hosts=None, latency_ns="1ms"),  # type: ignore[arg-type]
            "hosts: expected a whole number, found None; latency_ns: expected nanoseconds, a whole number, found the "
            "text '1ms'",
        ),
        (
            lambda: build(4, reduction_slowdown=float("nan")),
            "reduction_slowdown: expected a finite number, found the number nan",
        ),
        (
            lambda: Cluster("graph", ("a",)),  # type: ignore[arg-type]
            "graph: expected an undirected networkx.Graph without parallel links, found the text 'graph'",
        ),
        (
            lambda: Cluster(nx.Graph(), (1,), local_latency_ns=-1),  # type: ignore[arg-type]
            "placement[0]: expected a text, found the number 1; local_latency_ns: -1 ns lies before the start",
        ),
    ],
)
def test_a_cluster_reports_what_is_wrong_with_it(make: Callable[[], Cluster], line: str) -> None:
    with pytest.raises(TopologyError) as caught:
        make()

    assert str(caught.value) == line


# -- the replay line ------------------------------------------------------------------------------------------------


def test_the_replay_has_every_argument_that_determines_the_run() -> None:
    result = simdist.run(
        nothing,
        world_size=2,
        args=(1, "two", torch.ones(2)),
        kwargs={"rate": 0.5},
        seed=3,
        backend="sim",
        policy="random",
        max_restarts=2,
        cluster=build(2, hosts=2, latency_ns=1000),
        env={"A": "b"},
        argv=["train.py", "--fast"],
        strict=True,
        record_results=True,
        faults=[Hang(rank=1, at_ns=5)],
    )

    assert result.replay == (
        "simdist.run(nothing, world_size=2, seed=3, args=(1, 'two', tensor([1., 1.])), kwargs={'rate': 0.5}, "
        "backend='sim', policy='random', max_restarts=2, cluster=simdist.cluster.build(2, hosts=2, latency_ns=1000), "
        "env={'A': 'b'}, argv=('train.py', '--fast'), strict=True, record_results=True, "
        "faults=[simdist.faults.Hang(rank=1, at_ns=5)])"
    )


def test_the_replay_says_what_it_has_shortened() -> None:
    graph: Any = nx.Graph()
    graph.add_edge("a", "b", latency_ns=1, bandwidth=1)
    result = simdist.run(
        functools.partial(nothing, 3, rate=2),
        world_size=1,
        args=("x" * 1000,),
        kwargs={"t": torch.ones(1000), "object": object(), "loud": Loud()},
        cluster=Cluster(graph, ("a",)),
        env={"A": "short"},
    )

    assert result.replay.startswith(
        "simdist.run(functools.partial(nothing, 3, rate=2), world_size=1, seed=0, args=('xxxx"
    )
    assert result.replay.endswith(", env={'A': 'short'})  # shortened: args, kwargs, cluster")
    assert " at 0x" not in result.replay
    assert len(result.replay) < 1000


def test_a_replay_that_is_given_is_taken() -> None:
    assert simdist.run(nothing, world_size=1, replay="make it").replay == "make it"
