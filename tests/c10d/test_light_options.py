"""Options that torch's own functions make while a world lives: they show torch's own attributes and texts."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

import simdist
from simdist.c10d.surface._options import AllReduceOptions, BroadcastOptions

groups: Any = dist.ProcessGroup
fakes: Any = FakeProcessGroup
ENUM: Any = dist.ReduceOp


class Watching(groups):  # type: ignore[misc]  # Any: the stubs have other arguments
    """A program's own group, which keeps the options that it gets."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.given: list[Any] = []

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        self.given.append(opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        self.given.append(opts)


def seen(opts: Any) -> list[Any]:
    """Return every attribute of options, and True for each of torch's classes that they are instances of."""
    names = [name for name in dir(type(opts)) if name in ("asyncOp", "rootRank", "rootTensor", "timeout")]
    operation = [opts.reduceOp == dist.ReduceOp.MAX, type(opts.reduceOp)] if hasattr(opts, "reduceOp") else []
    kinds = [isinstance(opts, each) for each in (dist.AllreduceOptions, dist.BroadcastOptions)]
    return [{name: getattr(opts, name) for name in names}, operation, kinds]


def watched() -> list[Any]:
    group = Watching()
    dist.all_reduce(torch.ones(1), dist.ReduceOp.MAX, group=group, async_op=True)
    dist.all_reduce(torch.ones(1), ENUM(dist.ReduceOp.MAX), group=group)
    dist.distributed_c10d._world.pg_group_ranks[group] = {0: 0}
    dist.broadcast(torch.ones(1), group_src=0, group=group)
    del dist.distributed_c10d._world.pg_group_ranks[group]
    return group.given


def test_a_group_of_a_program_finds_what_it_finds_outside_of_worlds() -> None:
    outside = watched()

    def body() -> tuple[list[type], list[Any]]:
        inside = watched()
        return [type(each) for each in inside], [seen(each) for each in inside]

    ((types, inside),) = simdist.run(body, world_size=1).values
    assert types == [AllReduceOptions, AllReduceOptions, BroadcastOptions]
    assert inside == [seen(each) for each in outside]
    assert [type(each) for each in outside] == [dist.AllreduceOptions, dist.AllreduceOptions, dist.BroadcastOptions]


def test_a_group_of_a_program_may_change_them_and_hand_them_on() -> None:
    class Hasty(Watching):
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            opts.timeout = timedelta(milliseconds=5)
            opts.reduceOp = dist.ReduceOp.MAX
            return dist.group.WORLD.allreduce(tensors, opts)  # type: ignore[union-attr]  # there is a group

    def body() -> Any:
        dist.init_process_group("gloo")
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor, group=Hasty())
        if dist.get_rank() == 0:
            with pytest.raises(ValueError, match="not initialized in the world group map") as caught:
                dist.all_reduce(tensor, group=Hasty())  # torch wants to log the group's name
            assert "Timed out waiting 5ms" in str(caught.value.__context__)
        else:
            time.sleep(1)
        return tensor.item()

    assert simdist.run(body, world_size=2).values == [1.0, 1.0]


def on_fake() -> list[float]:
    fake = fakes._create_internal(0, 2)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=fake)
    work: list[float] = tensor.tolist()
    return work


def test_a_group_of_cxx_takes_them() -> None:
    assert simdist.run(on_fake, world_size=1).values == [[1.0]]


def test_threads_that_are_no_ranks_call_groups_of_cxx_meanwhile() -> None:
    said: list[object] = []
    over = threading.Event()

    def host() -> None:
        while not over.is_set():
            try:
                said.append(on_fake())
            except Exception as error:
                said.append(error)

    thread = threading.Thread(target=host)
    thread.start()
    try:
        ranks = simdist.run(lambda: [on_fake() for _ in range(2000)], world_size=1).values[0]
    finally:
        over.set()
        thread.join()

    assert ranks == [[1.0]] * 2000
    assert said == [[1.0]] * len(said)


def test_a_method_of_cxx_under_a_class_of_python_ends() -> None:
    class Bare(groups):  # type: ignore[misc]  # Any: as above
        pass

    def body() -> str:
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(1), group=Bare(0, 1))
        return str(caught.value)

    outside = body()
    assert simdist.run(body, world_size=1).values == [outside]


def refusal(**kwargs: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        dist.all_reduce(torch.ones(1), **kwargs)
    return f"{type(caught.value).__name__}: {str(caught.value).partition('Invoked with')[0]}"


@pytest.mark.parametrize(
    ("given", "begun"),
    [({"op": "sum"}, True), ({"op": "sum"}, False), ({"op": None}, True), ({"async_op": "yes"}, True)],
)
def test_values_that_torch_refuses_are_refused_in_its_words(given: dict[str, Any], begun: bool) -> None:
    expected = refusal(**given)

    def body() -> str:
        if begun:
            dist.init_process_group("gloo")
        return refusal(**given)

    assert "incompatible function arguments" in expected
    assert simdist.run(body, world_size=1).values == [expected]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_counts_as_a_boolean_is_one_in_the_events(backend: str) -> None:
    def body(async_op: Any) -> None:
        dist.init_process_group(backend)
        tensor = torch.ones(1, device="cpu" if backend == "gloo" else f"cuda:{dist.get_rank()}")
        work = dist.all_reduce(tensor, async_op=async_op)
        if work is not None:
            work.wait()

    runs = [simdist.run(body, args=(given,), world_size=2, backend=backend) for given in (True, 1, False, 0)]
    assert all(run.ok for run in runs)
    digests = [run.digest for run in runs]
    assert digests[0] == digests[1] != digests[2] == digests[3]


def test_a_group_of_a_program_may_ask_the_work_before_torch_waits() -> None:
    class Asking(Watching):
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            work = dist.group.WORLD.allreduce(tensors, opts)  # type: ignore[union-attr]  # there is a group
            self.given += [isinstance(work, dist.Work), work.exception()]
            work.get_future().then(lambda future: self.given.append(future.value()[0].item()))
            return work

    def body() -> list[Any]:
        dist.init_process_group("gloo")
        group, tensor = Asking(), torch.ones(1)
        dist.all_reduce(tensor, group=group)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        work.wait()
        return [*group.given, type(work).__mro__[1] is dist.Work]

    assert simdist.run(body, world_size=2).values == [[True, None, 2.0, True, None, 4.0, True]] * 2
