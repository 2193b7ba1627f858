"""Every call of torch.distributed is in the table of calls for simulated ranks, and works as the table says."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed

import simdist
from simdist.c10d.surface._coverage import FUNCTIONS, METHODS, Coverage
from simdist.c10d.surface._group import SimProcessGroup
from tests.builds import VERSION
from tests.c10d.stores import FILE

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

dist: Any = torch.distributed  # the stubs do not export every name
c10d: Any = torch.distributed.distributed_c10d
CPU = torch.device("cpu")
SOON = timedelta(seconds=1)
WHAT_TO_DO = (
    "torch has calls which simdist/c10d/_coverage.py does not know: {}. Add each: as supported, with a call "
    "of it in tests/test_completeness.py; as refused, with the error that a simulated rank gets; or as local, if it "
    "talks to no other rank."
)

Body = Callable[[int], object]
GroupBody = Callable[[Any, int], object]


def functions_of_torch() -> set[str]:
    """Return the public functions of the two modules, and other callables in them that are no classes."""
    found = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a deprecated name warns when it is read
        for module in (dist, c10d):
            for name in dir(module):
                value = getattr(module, name)
                home = getattr(value, "__module__", None) or ""
                if (
                    not name.startswith("_")
                    and callable(value)
                    and not isinstance(value, type)
                    and home.startswith(("torch.distributed", "torch._C"))
                ):
                    found.add(name)
    return found


def methods_of_torch() -> set[str]:
    """Return the methods of both classes, also those with one underscore: torch's own Python code calls them."""
    return {
        name
        for kind in (dist.ProcessGroup, c10d.ProcessGroupGloo)
        for name in dir(kind)
        if not name.startswith("__")
        and name != "_pybind11_conduit_v1_"  # pybind11's, not torch's
        and inspect.isroutine(getattr(kind, name))
    }


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def rows(count: int = 2) -> list[torch.Tensor]:
    return [torch.zeros(2) for _ in range(count)]


def total(tensor: torch.Tensor, expected: float) -> None:
    assert float(tensor.sum()) == expected


def listed(call: Callable[..., object], make: Callable[[], Any], *arguments: Any) -> Any:
    """Call a function that fills the object that `make` makes, and return that object."""
    filled = make()
    call(filled, *arguments)
    return filled


def exchange(rank: int, send: Callable[..., Any], recv: Callable[..., Any]) -> torch.Tensor | None:
    """Send on rank 0, receive on rank 1; asynchronously if the calls return works."""
    tensor = row(3.0, 4.0) if rank == 0 else torch.zeros(2)
    work = send(tensor, 1) if rank == 0 else recv(tensor, 0)
    if hasattr(work, "wait"):
        work.wait()
    total(tensor, 7)
    return tensor


def batch(rank: int) -> None:
    tensor = row(3.0, 4.0) if rank == 0 else torch.zeros(2)
    operation = dist.P2POp(dist.isend if rank == 0 else dist.irecv, tensor, 1 - rank)
    for work in dist.batch_isend_irecv([operation]):
        work.wait()
    total(tensor, 7)


def summed(tensor: torch.Tensor, call: Callable[[torch.Tensor], object]) -> None:
    call(tensor)
    total(tensor, 4)


def gathered_on_0(rank: int) -> None:
    parts = rows() if rank == 0 else None
    dist.gather(row(1.0, 1.0), parts, 0)
    total(torch.cat(parts) if parts else torch.zeros(1), 4 if parts else 0)


def objects(call: Callable[[list[Any]], object], expected: list[Any]) -> None:
    assert listed(call, lambda: [None] * len(expected)) == expected


def in_new_group(group: Any, rank: int, members: int) -> None:
    tensor = row(1.0, 1.0)
    dist.all_reduce(tensor, group=group)
    total(tensor, 2.0 * members)


def scattered(rank: int) -> None:
    total(listed(dist.scatter, lambda: torch.zeros(2), [row(1.0, 1.0)] * 2 if rank == 0 else None, 0), 2)


def met(rank: int) -> None:
    store, me, size = next(dist.rendezvous(f"file://{FILE}", rank, 2))
    store.set(f"from {me}", str(size))
    assert store.get(f"from {1 - me}") == b"2"


def started_again(rank: int) -> None:
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    in_new_group(None, rank, 2)


def mesh(rank: int) -> None:
    assert torch.distributed.device_mesh.init_device_mesh("cpu", (2,)).get_local_rank() == rank


# One call of every supported function, on each of two ranks in a Gloo world.
FUNCTION_BODIES: dict[str, Body] = {
    "all_gather": lambda rank: total(torch.cat(listed(dist.all_gather, rows, row(1.0, 1.0))), 4),
    "all_gather_coalesced": lambda rank: total(
        torch.cat(listed(dist.all_gather_coalesced, lambda: [rows(1), rows(1)], [row(1.0, 1.0)])[1]), 2
    ),
    "all_gather_into_tensor": lambda rank: total(
        listed(dist.all_gather_into_tensor, lambda: torch.zeros(4), row(1.0, 1.0)), 4
    ),
    "all_gather_object": lambda rank: objects(lambda into: dist.all_gather_object(into, "x"), ["x", "x"]),
    "all_gather_single": lambda rank: total(listed(dist.all_gather_single, lambda: torch.zeros(4), row(1.0, 1.0)), 4),
    "all_reduce": lambda rank: summed(row(1.0, 1.0), dist.all_reduce),
    "all_reduce_coalesced": lambda rank: summed(row(1.0, 1.0), lambda tensor: dist.all_reduce_coalesced([tensor])),
    "all_to_all": lambda rank: total(torch.cat(listed(dist.all_to_all, rows, [row(1.0, 1.0)] * 2)), 4),
    "all_to_all_single": lambda rank: total(
        listed(dist.all_to_all_single, lambda: torch.zeros(2), row(float(rank), 1.0)), 2.0 * rank or 1.0
    ),
    "barrier": lambda rank: dist.barrier(),
    "batch_isend_irecv": batch,
    "breakpoint": lambda rank: dist.breakpoint(rank=9),  # no rank gets the debugger, but all meet at a barrier
    "broadcast": lambda rank: total(listed(dist.broadcast, lambda: row(float(rank)), 1), 1),
    "broadcast_object_list": lambda rank: objects(
        lambda into: (into.__setitem__(0, "x") if rank == 0 else None, dist.broadcast_object_list(into, 0)), ["x"]
    ),
    "destroy_process_group": started_again,
    "gather": gathered_on_0,
    "gather_object": lambda rank: objects(
        lambda into: dist.gather_object("x", into if rank == 0 else None, 0), ["x", "x"] if rank == 0 else [None]
    ),
    "init_device_mesh": mesh,
    "init_process_group": started_again,
    "irecv": lambda rank: exchange(rank, dist.send, dist.irecv),
    "isend": lambda rank: exchange(rank, dist.isend, dist.recv),
    "monitored_barrier": lambda rank: dist.monitored_barrier(timeout=SOON),
    "new_group": lambda rank: in_new_group(dist.new_group([0, 1]), rank, 2),
    "new_subgroups": lambda rank: in_new_group(dist.new_subgroups(1)[0], rank, 1),
    "new_subgroups_by_enumeration": lambda rank: in_new_group(
        dist.new_subgroups_by_enumeration([[0], [1]])[0], rank, 1
    ),
    "recv": lambda rank: exchange(rank, dist.isend, dist.recv),
    "recv_object_list": lambda rank: (
        dist.send_object_list(["x"], 1) if rank == 0 else objects(lambda into: dist.recv_object_list(into, 0), ["x"])
    ),
    "reduce": lambda rank: total(listed(dist.reduce, lambda: row(1.0, 1.0), 0), 4 if rank == 0 else 2),
    "reduce_scatter": lambda rank: total(listed(dist.reduce_scatter, lambda: torch.zeros(2), [row(1.0, 1.0)] * 2), 4),
    "reduce_scatter_single": lambda rank: total(
        listed(dist.reduce_scatter_single, lambda: torch.zeros(1), row(1.0, 1.0)), 2
    ),
    "reduce_scatter_tensor": lambda rank: total(
        listed(dist.reduce_scatter_tensor, lambda: torch.zeros(1), row(1.0, 1.0)), 2
    ),
    "rendezvous": met,
    "scatter": scattered,
    "scatter_object_list": lambda rank: objects(
        lambda into: dist.scatter_object_list(into, [0, 1] if rank == 0 else None, 0), [rank]
    ),
    "send": lambda rank: exchange(rank, dist.send, dist.irecv),
    "send_object_list": lambda rank: (
        dist.send_object_list(["x"], 1) if rank == 0 else objects(lambda into: dist.recv_object_list(into, 0), ["x"])
    ),
}
REFUSED_FUNCTION_BODIES: dict[str, Body] = {
    "gather_into_tensor": lambda rank: c10d.gather_into_tensor(row(1.0), row(1.0, 1.0)),
    "gather_single": lambda rank: c10d.gather_single(row(1.0), row(1.0, 1.0)),
    "shrink_group": lambda rank: dist.shrink_group([1]),
    "split_group": lambda rank: dist.split_group(split_ranks=[[0, 1]]),
}


def done(work: Any, tensor: torch.Tensor, expected: float) -> None:
    work.wait()
    total(tensor, expected)


def filling(count: int, expected: float, call: Callable[[torch.Tensor], Any]) -> None:
    tensor = torch.zeros(count)
    done(call(tensor), tensor, expected)


def filling_rows(expected: float, call: Callable[[list[torch.Tensor]], Any]) -> None:
    parts = rows()
    call(parts).wait()
    total(torch.cat(parts), expected)


def in_place(expected: float, call: Callable[[torch.Tensor], Any]) -> None:
    tensor = row(1.0, 1.0)
    done(call(tensor), tensor, expected)


def options(kind: str, **values: Any) -> Any:
    made = getattr(c10d, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def gathered_by(group: Any, rank: int) -> None:
    parts = rows()
    group.gather([parts] if rank == 0 else [], [row(1.0, 1.0)], options("GatherOptions", rootRank=0)).wait()
    total(torch.cat(parts), 4 if rank == 0 else 0)


def scattered_by(group: Any, rank: int) -> None:
    given = [[row(1.0, 1.0)] * 2] if rank == 0 else []
    filling(2, 2, lambda into: group.scatter([into], given, options("ScatterOptions", rootRank=0)))


def received_from_any(group: Any, rank: int) -> None:
    tensor = row(3.0, 4.0) if rank == 0 else torch.zeros(2)
    done(group.send([tensor], 1, 0) if rank == 0 else group.recv_anysource([tensor], 0), tensor, 7)


def for_the_cpu() -> Any:
    return dist.new_group(backend="cpu:gloo")


def left(group: Any, leave: Callable[[], object]) -> None:
    group.barrier().wait()
    leave()


METHOD_BODIES: dict[str, GroupBody] = {
    "_allgather_base": lambda g, rank: filling(4, 4, lambda into: g._allgather_base(into, row(1.0, 1.0))),
    "_reduce_scatter_base": lambda g, rank: filling(1, 2, lambda into: g._reduce_scatter_base(into, row(1.0, 1.0))),
    "abort": lambda g, rank: left(g, g.abort),
    "all_gather_single": lambda g, rank: filling(4, 4, lambda into: g.all_gather_single(into, row(1.0, 1.0))),
    "all_gather_single_coalesced": lambda g, rank: filling(
        4, 4, lambda into: g.all_gather_single_coalesced([into], [row(1.0, 1.0)])
    ),
    "all_to_all_single": lambda g, rank: filling(
        2, 2, lambda into: g.all_to_all_single(into, row(1.0, 1.0), [1, 1], [1, 1])
    ),
    "allgather": lambda g, rank: filling_rows(4, lambda parts: g.allgather([parts], [row(1.0, 1.0)])),
    "allgather_coalesced": lambda g, rank: filling_rows(
        4, lambda parts: g.allgather_coalesced([[parts[0]], [parts[1]]], [row(1.0, 1.0)])
    ),
    "allgather_into_tensor_coalesced": lambda g, rank: filling(
        4, 4, lambda into: g.allgather_into_tensor_coalesced([into], [row(1.0, 1.0)])
    ),
    "allreduce": lambda g, rank: in_place(4, lambda tensor: g.allreduce([tensor])),
    "allreduce_coalesced": lambda g, rank: in_place(4, lambda tensor: g.allreduce_coalesced([tensor])),
    "alltoall": lambda g, rank: filling_rows(4, lambda parts: g.alltoall(parts, [row(1.0, 1.0)] * 2)),
    "alltoall_base": lambda g, rank: filling(2, 2, lambda into: g.alltoall_base(into, row(1.0, 1.0), [1, 1], [1, 1])),
    "barrier": lambda g, rank: g.barrier().wait(),
    "broadcast": lambda g, rank: in_place(2, lambda tensor: g.broadcast([tensor], options("BroadcastOptions"))),
    "gather": gathered_by,
    "merge_remote_group": lambda g, rank: in_place(
        4, lambda tensor: for_the_cpu().merge_remote_group(g.get_group_store(), 2, SOON).allreduce([tensor])
    ),
    "monitored_barrier": lambda g, rank: g.monitored_barrier(SOON),
    "recv": lambda g, rank: exchange(
        rank, lambda tensor, peer: g.send([tensor], peer, 0), lambda tensor, peer: g.recv([tensor], peer, 0)
    ),
    "recv_anysource": received_from_any,
    "reduce": lambda g, rank: in_place(
        4 if rank == 0 else 2, lambda tensor: g.reduce([tensor], options("ReduceOptions"))
    ),
    "reduce_scatter": lambda g, rank: filling(2, 4, lambda into: g.reduce_scatter([into], [[row(1.0, 1.0)] * 2])),
    "reduce_scatter_single": lambda g, rank: filling(1, 2, lambda into: g.reduce_scatter_single(into, row(1.0, 1.0))),
    "reduce_scatter_single_coalesced": lambda g, rank: filling(
        1, 2, lambda into: g.reduce_scatter_single_coalesced([into], [row(1.0, 1.0)])
    ),
    "reduce_scatter_tensor_coalesced": lambda g, rank: filling(
        1, 2, lambda into: g.reduce_scatter_tensor_coalesced([into], [row(1.0, 1.0)])
    ),
    "scatter": scattered_by,
    "send": lambda g, rank: exchange(
        rank, lambda tensor, peer: g.send([tensor], peer, 0), lambda tensor, peer: g.recv([tensor], peer, 0)
    ),
    "shutdown": lambda g, rank: left(g, g.shutdown),
    "split_group": lambda g, rank: in_place(
        4, lambda tensor: for_the_cpu().split_group([1, 0], SOON).allreduce([tensor])
    ),
}
REFUSED_METHOD_BODIES: dict[str, GroupBody] = {
    "_backend_id": lambda g, rank: g._backend_id(dist.ProcessGroup.BackendType.GLOO),
    "_end_coalescing": lambda g, rank: g._end_coalescing(CPU),
    "_register_on_completion_hook": lambda g, rank: g._register_on_completion_hook(print),
    "_end_time_estimate": lambda g, rank: g._end_time_estimate(),
    "_start_coalescing": lambda g, rank: g._start_coalescing(CPU),
    "_start_time_estimate": lambda g, rank: g._start_time_estimate(),
    "_wait_for_pending_works": lambda g, rank: g._wait_for_pending_works(),
    "allreduce_sparse": lambda g, rank: g.allreduce_sparse([row(1.0)]),
    "allocate_tensor": lambda g, rank: g.allocate_tensor(4, dtype=torch.float32, device=CPU),
    "gather_into_tensor": lambda g, rank: g.gather_into_tensor(row(1.0), row(1.0, 1.0)),
    "gather_single": lambda g, rank: g.gather_single(row(1.0), row(1.0, 1.0)),
    "get_reconfigure_handle": lambda g, rank: g.get_reconfigure_handle(),
    "memory_stats": lambda g, rank: g.memory_stats(),
    "merge": lambda g, rank: g.merge(None, None, 0, 2),
    "new_window": lambda g, rank: g.new_window(),
    "reconfigure": lambda g, rank: g.reconfigure(None),
    "register_abort_hook": lambda g, rank: g.register_abort_hook(1, print),
    "register_post_hook": lambda g, rank: g.register_post_hook(1, print),
    "register_pre_hook": lambda g, rank: g.register_pre_hook(1, print),
    "resume": lambda g, rank: g.resume(),
    "shrink": lambda g, rank: g.shrink([1], 0),
    "split": lambda g, rank: g.split(None, [0, 1], None),
    "suspend": lambda g, rank: g.suspend(),
    "unregister_abort_hook": lambda g, rank: g.unregister_abort_hook(1),
    "unregister_post_hook": lambda g, rank: g.unregister_post_hook(1),
    "unregister_pre_hook": lambda g, rank: g.unregister_pre_hook(1),
}


def names(table: dict[str, Coverage] | Any, status: str) -> set[str]:
    return {name for name, coverage in table.items() if coverage.status == status}


def in_a_world(body: Body) -> simdist.RunResult:
    def main() -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        body(dist.get_rank())

    return simdist.run(main, world_size=2)


def with_the_group(body: GroupBody) -> Body:
    return lambda rank: body(c10d._get_default_group(), rank)


def refusal(coverage: Coverage, body: Body) -> Body:
    def main(rank: int) -> None:
        with pytest.raises(Exception) as caught:  # noqa: PT011 which one is in the table
            body(rank)
        assert type(caught.value).__name__ == coverage.error
        assert coverage.says in str(caught.value)

    return main


def test_every_function_of_torch_distributed_is_in_the_table() -> None:
    unknown = sorted(functions_of_torch() - set(FUNCTIONS))

    assert not unknown, WHAT_TO_DO.format(", ".join(unknown))


def test_every_method_of_a_process_group_is_in_the_table() -> None:
    unknown = sorted(methods_of_torch() - set(METHODS))

    assert not unknown, WHAT_TO_DO.format(", ".join(f"ProcessGroup.{name}" for name in unknown))


def test_every_entry_of_the_table_has_its_call_here() -> None:
    assert set(FUNCTION_BODIES) == names(FUNCTIONS, "supported")
    assert set(REFUSED_FUNCTION_BODIES) == names(FUNCTIONS, "refused")
    assert set(METHOD_BODIES) == names(METHODS, "supported")
    assert set(REFUSED_METHOD_BODIES) == names(METHODS, "refused")


def test_every_refusal_names_its_error() -> None:
    refused = [entry for table in (FUNCTIONS, METHODS) for entry in table.values() if entry.status == "refused"]

    assert [entry for entry in refused if not (entry.error and entry.says)] == []


@pytest.mark.parametrize("name", sorted(FUNCTION_BODIES))
def test_a_supported_function_works(name: str) -> None:
    if name not in functions_of_torch():
        pytest.skip(f"torch {torch.__version__} has no {name}")

    in_a_world(FUNCTION_BODIES[name]).raise_for_failure()


@pytest.mark.parametrize("name", sorted(REFUSED_FUNCTION_BODIES))
def test_a_refused_function_raises_the_error_of_the_table(name: str) -> None:
    if name not in functions_of_torch():
        pytest.skip(f"torch {torch.__version__} has no {name}")

    refused = FUNCTIONS[name]
    if name == "split_group" and VERSION >= (2, 15):  # torch no longer asks for a device, and the group refuses
        refused = Coverage("refused", "UnsupportedError", "Make the group for the CPU only, with backend='cpu:gloo'")
    in_a_world(refusal(refused, REFUSED_FUNCTION_BODIES[name])).raise_for_failure()


@pytest.mark.parametrize("name", sorted(METHOD_BODIES))
def test_a_supported_method_works(name: str) -> None:
    if name not in methods_of_torch():
        pytest.skip(f"torch {torch.__version__} has no {name}")

    in_a_world(with_the_group(METHOD_BODIES[name])).raise_for_failure()


@pytest.mark.parametrize("name", sorted(REFUSED_METHOD_BODIES))
def test_a_refused_method_raises_the_error_of_the_table(name: str) -> None:
    if name not in methods_of_torch():
        pytest.skip(f"torch {torch.__version__} has no {name}")
    assert name in vars(SimProcessGroup), "torch's C++ would answer in its place, for a backend that is not there"

    in_a_world(refusal(METHODS[name], with_the_group(REFUSED_METHOD_BODIES[name]))).raise_for_failure()


@pytest.mark.parametrize("name", sorted(names(METHODS, "local")))
def test_a_local_method_is_there(name: str) -> None:
    if name not in methods_of_torch():
        pytest.skip(f"torch {torch.__version__} has no {name}")

    def body(group: Any, rank: int) -> None:
        assert callable(getattr(group, name, None) or getattr(c10d.ProcessGroupGloo, name))

    in_a_world(with_the_group(body)).raise_for_failure()
