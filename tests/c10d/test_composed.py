"""Groups that a program puts together itself: `ProcessGroup(store, rank, size)` with backends that it registers."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.cluster import build
from simdist.inside.torch import c10d_bindings
from tests.builds import VERSION
from tests.c10d.worlds import BROKEN, CLOSED, RESET, outcome, plain, sleep_s, values, world
from tests.real_gloo import run_real

_dist: Any = dist
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TYPES: Any = dist.ProcessGroup.BackendType


def place() -> tuple[Any, int, int]:
    """Return a store, the caller's rank and the number of ranks."""
    return next(iter(_dist.rendezvous("env://")))  # type: ignore[no-any-return]


def composed(store: Any, rank: int, size: int, prefix: str = "by hand/") -> Any:
    """Make a group in the way of torch and other libraries."""
    store = _dist.PrefixStore(prefix, store)
    group: Any = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(TYPES.GLOO)
    backend = _dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=5))
    backend._set_sequence_number_for_group()
    group._register_backend(CPU, TYPES.GLOO, backend)
    return group


def said(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return plain(f"{type(error).__name__}: {error}".partition("\n")[0])


def asked(group: Any) -> list[Any]:
    """Return a group's answers about itself, and its errors for what it lacks."""
    calls: list[Callable[[], Any]] = [
        group.name,
        group._get_backend_name,
        lambda: [each.type for each in group._device_types],
        lambda: group.group_name,
        lambda: group.group_desc,
        lambda: (group.rank(), group.size(), group.bound_device_id, group._has_hooks()),
        lambda: group._get_backend(CPU) is group._get_backend(CPU),
        lambda: group._get_backend(CUDA) is group._get_backend(CPU),
        lambda: group.allreduce([torch.ones(1)]).wait(),
        lambda: group.barrier().wait(),
        lambda: group.monitored_barrier(),
        group._get_sequence_number_for_group,
        group._set_sequence_number_for_group,
        group._get_sequence_number_for_group,
        lambda: group._start_coalescing(CPU),
        lambda: group._register_on_completion_hook(lambda _: None),
        group._wait_for_pending_works,
        lambda: group.set_timeout(timedelta(seconds=7)),
        lambda: [group.shutdown(), group.abort()],
    ]
    return [said(call) for call in calls]


def life() -> list[Any]:
    """Build a group step by step; returns its answers after each step."""
    store, rank, size = place()
    bare: Any = dist.ProcessGroup(_dist.PrefixStore("bare", store), rank, size)
    found = asked(bare)
    bare._set_default_backend(TYPES.GLOO)
    bare._register_backend(CUDA, TYPES.GLOO)
    found += asked(bare)
    group = composed(store, rank, size)
    found += asked(group)
    group._register_backend(CUDA, TYPES.GLOO)
    group._set_group_name("mine")
    group._set_group_desc("made by hand")
    found += asked(group)
    found += [said(lambda: dist.get_world_size(group)), said(lambda: dist.destroy_process_group(group))]
    wrong: list[tuple[Any, ...]] = [(CPU, TYPES.GLOO, group), ("cpu", TYPES.GLOO), (CPU, "gloo")]
    found += [said(lambda: group._register_backend(*each)) for each in wrong]  # noqa: B023
    found += [said(lambda: dist.ProcessGroup(store, "0", 1)), isinstance(group, dist.ProcessGroup)]  # type: ignore[arg-type]
    composed(store, rank, size, "last/").barrier().wait()  # no rank leaves before
    return found


def sums() -> list[Any]:
    """Return the results of collectives over the group, through all functions that lead to it."""
    store, rank, size = place()
    group = composed(store, rank, size)
    tensor = torch.full((2,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    found: list[Any] = [tensor.tolist()]
    gathered = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(gathered, tensor + rank, group=group)
    dist.broadcast(tensor.add_(rank), group=group, group_src=1)
    found += [[each.tolist() for each in gathered], tensor.tolist()]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    if rank == 0:
        group.send([tensor], 1, 7).wait()
    else:
        group.recv([tensor], 0, 7).wait()
    group._set_group_name("mine")
    c10d_bindings._register_process_group("mine", group)
    operators: Any = torch.ops._c10d_functional
    found += [objects, operators.wait_tensor(operators.all_reduce(torch.ones(1), "sum", "mine")).tolist()]
    c10d_bindings._unregister_process_group("mine")
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 1)
    model = DistributedDataParallel(layer, process_group=group)
    model(torch.full((1, 2), float(rank))).sum().backward()
    assert layer.weight.grad is not None
    # Gloo's thread drops the last operation, for which it needs the GIL. A group that goes meanwhile waits for this
    # thread with the GIL in hand, for ever.
    time.sleep(0.5)
    return [*found, layer.weight.grad.tolist()]


@pytest.mark.real
@pytest.mark.skipif(VERSION < (2, 13), reason="the words are those of torch 2.13")
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            life, marks=pytest.mark.skipif(torch.version.cuda is not None, reason="a torch for CUDA crashes there")
        ),
        sums,
    ],
)
def test_a_group_put_together_by_hand_is_like_torch_s(body: Callable[[], list[Any]]) -> None:
    assert values(body, 2) == [each.value for each in run_real(body, 2)]


def test_a_group_without_a_backend_says_so() -> None:
    first = values(life, 2)[0]

    assert first[:6] == [
        "undefined",
        "undefined",
        [],
        "RuntimeError: ProcessGroup name not set",
        "",
        (0, 2, None, False),
    ]
    assert first[8] == "RuntimeError: No backend type associated with device type cpu"


def test_collectives_over_a_group_put_together_by_hand() -> None:
    expected = [
        [3.0, 3.0],
        [[3.0, 3.0], [4.0, 4.0]],
        [4.0, 4.0],
        [{"rank": 0}, {"rank": 1}],
        [2.0],
        [[0.5, 0.5]],
    ]

    assert values(sums, 2) == [expected] * 2


def test_modes_see_the_operators_of_a_group_put_together_by_hand() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.seen: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def body() -> list[str]:
        group, tensor, mode = composed(*place()), torch.ones(2), Noting()
        with mode:
            group.allreduce([tensor]).wait()
        assert tensor.tolist() == [2.0, 2.0]
        return mode.seen

    assert values(body, 2) == [["c10d.allreduce_.default"]] * 2


@pytest.mark.skipif(VERSION >= (2, 14), reason="torch has no `_dist2` any more")
def test_torch_s_new_groups_of_its_own_making_work() -> None:
    dist2: Any = importlib.import_module("torch.distributed._dist2")

    def body(backend: str, device: str) -> float:
        group = dist2.new_group(backend, timedelta(seconds=5), device)
        tensor = torch.ones(1, device=device)
        with dist2.process_group(group):
            dist2.current_process_group().allreduce([tensor]).wait()
        return tensor.item()

    assert values(lambda: body("gloo", "cpu"), 2) == [2.0, 2.0]
    found = values(
        lambda: body("nccl", f"cuda:{os.environ['LOCAL_RANK']}"),
        2,
        backend="nccl",
        cluster=build(2, devices_per_host=2),
    )
    assert found == [2.0, 2.0]


def test_a_group_over_two_backends_put_together_by_hand() -> None:
    def body() -> list[float]:
        store, rank, size = place()
        torch.cuda.set_device(rank)
        group: Any = dist.ProcessGroup(store, rank, size)
        group._set_default_backend(TYPES.NCCL)
        backends: list[tuple[torch.device, Any, Any]] = [
            (CPU, TYPES.GLOO, _dist.ProcessGroupGloo(_dist.PrefixStore("cpu", store), rank, size)),
            (CUDA, TYPES.NCCL, _dist.ProcessGroupNCCL(_dist.PrefixStore("cuda", store), rank, size)),
        ]
        for each in backends:
            group._register_backend(*each)
        tensors = [torch.ones(1), torch.full((1,), 2.0, device="cuda")]
        for tensor in tensors:
            group.allreduce([tensor]).wait()
        group.barrier().wait()
        return [tensor.item() for tensor in tensors]

    assert values(body, 2, backend="nccl", cluster=build(2, devices_per_host=2)) == [[2.0, 4.0]] * 2


def test_classes_that_derive_from_process_group_stay_as_they_are() -> None:
    class Own(dist.ProcessGroup):
        pass

    def body() -> list[str]:
        _, rank, size = place()
        made: list[Any] = [Own(rank, size), dist.ProcessGroup(rank, size)]  # type: ignore[call-arg]
        return [type(each).__name__ for each in made]

    assert values(body, 2) == [["Own", "ProcessGroup"]] * 2
    assert type(dist.ProcessGroup(_dist.HashStore(), 0, 1)) is dist.ProcessGroup


def test_a_split_of_a_group_that_has_gloo_twice_is_refused() -> None:
    def body() -> str:
        group = composed(*place())
        child = group.split_group([0, 1])
        assert child.size() == 2
        group._register_backend(CUDA, TYPES.GLOO)
        group._get_backend(CUDA)
        return str(said(lambda: group.split_group([0, 1])))

    assert all(
        each.startswith("UnsupportedError: split_group of a group whose devices all") for each in values(body, 2)
    )


# -- a group that is dropped -------------------------------------------------------------------------------------------


def dropped(make: Callable[..., Any]) -> list[Any]:
    """Drop a group on rank 0, while rank 1 goes on with it."""
    store, rank, size = place()
    kept, group = composed(store, rank, size, "kept/"), make(store, rank, size)
    group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()
    kept.barrier().wait()
    found = None
    if rank == 0:
        del group
    else:
        time.sleep(0.5)
        try:
            group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()
        except RuntimeError as error:
            found = outcome(error)
    kept.barrier().wait()
    return [found]


def bare(store: Any, rank: int, size: int) -> Any:
    return _dist.ProcessGroupGloo(_dist.PrefixStore("bare/", store), rank, size, timedelta(seconds=5))


@pytest.mark.parametrize("make", [composed, bare])
def test_the_connections_of_a_group_that_is_dropped_close(make: Callable[..., Any]) -> None:
    assert values(lambda: dropped(make), 2) == [[None], [CLOSED]]


@pytest.mark.real
@pytest.mark.parametrize("make", [composed, bare])
def test_real_connections_of_a_group_that_is_dropped_close(make: Callable[..., Any]) -> None:
    assert run_real(dropped, 2, args=(make,))[1].value[0] in (*BROKEN, RESET)


def test_a_group_is_dropped_after_what_is_under_way() -> None:
    def body() -> float:
        store, rank, size = place()
        group, tensor = bare(store, rank, size), torch.ones(1)
        sleep_s(rank)
        work = group.allreduce([tensor], dist.ReduceOp.SUM)
        del group
        work.wait()
        return tensor.item()

    assert values(body, 2) == [2.0, 2.0]


@pytest.mark.usefixtures("small_heap")
def test_a_group_in_a_reference_cycle_is_dropped_at_the_same_moment() -> None:
    def body() -> str:
        store, rank, size = place()
        other = composed(store, rank, size)
        held: list[Any] = [bare(store, rank, size)]
        group = held[0]
        held.append(held)
        del held
        if rank == 0:
            del group
        for _ in range(200):  # enough hand-overs for a garbage collection
            other.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()
            [[] for _ in range(int(os.environ["GARBAGE"]))]
        if rank == 0:
            sleep_s(3)  # so that no connection closes because the rank ends
            return ""
        try:
            group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()
        except RuntimeError as error:
            return outcome(error)
        return "ok"

    runs = [world(body, 2, env={"GARBAGE": str(count)}) for count in (1, 1_000)]
    gc.collect()

    assert runs[0].digest == runs[1].digest
    assert runs[0].values == runs[1].values == ["", CLOSED]
    assert runs[0].ranks[1].ended_ns < 1_000_000_000 < runs[0].ranks[0].ended_ns


def test_the_flight_recorder_knows_the_name_of_a_group_that_is_dropped() -> None:
    def body() -> list[str]:
        store, rank, size = place()
        group = composed(store, rank, size)
        group._set_group_name("mine")
        group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()
        del group
        return [each["process_group"][0] for each in dump()["entries"]]

    def dump() -> dict[str, Any]:
        loaded: dict[str, Any] = pickle.loads(c10d_bindings._dump_fr_trace())
        return loaded

    result = simdist.run(body, world_size=2, env={"TORCH_FR_BUFFER_SIZE": "10"})

    result.raise_for_failure()
    assert result.values == [["mine"]] * 2
