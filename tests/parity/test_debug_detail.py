"""TORCH_DISTRIBUTED_DEBUG=DETAIL: the errors of ranks that are about to call different things. One body, two arms."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed

from tests.parity.arms import Case, Log, simulated, story_test
from tests.real_gloo import run_real

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

dist: Any = torch.distributed  # the stubs do not export every name
c10d: Any = torch.distributed.distributed_c10d
CPU = torch.device("cpu")
END_S = 1.4


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (4,), dtype=dtype)


def parts(count: int) -> list[torch.Tensor]:
    return [ones() for _ in range(count)]


def set_level(name: str) -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = name
    dist.set_debug_level_from_env()


def checked(act: Callable[[Log, int], object], timeout_s: float = 1.0, end_s: float = END_S) -> Callable[[], Log]:
    """Return a body whose default group is made under DETAIL; each rank does `act` and lives to the end."""

    def body() -> Log:
        set_level("DETAIL")
        log = Log.of_world(timeout_s)
        act(log, dist.get_rank())
        log.sleep_until(end_s)
        return log

    return body


def mismatches(log: Log, rank: int) -> None:
    odd = rank == 1
    log.call("operations", lambda: dist.all_reduce(ones()) if rank else dist.broadcast(ones(), 0))
    log.call("shapes", lambda: dist.all_reduce(ones(5 if odd else 4)))
    log.call("dimensions", lambda: dist.all_reduce(ones(2, 2) if odd else ones(4)))
    log.call("types", lambda: dist.all_reduce(ones(dtype=torch.int64 if odd else torch.float32)))
    log.call("complex", lambda: dist.all_reduce(ones(dtype=torch.complex64 if odd else torch.bfloat16)))
    log.call("all shapes", lambda: dist.all_reduce(ones(4 + rank)))
    log.call("barrier", lambda: dist.all_reduce(ones()) if rank else dist.barrier())
    log.call("no dimension", lambda: dist.all_reduce(torch.ones(()) if odd else ones(1)))
    log.call("nothing in it", lambda: dist.all_reduce(torch.ones(0) if odd else ones(1)))
    log.call("many dimensions", lambda: dist.all_reduce(torch.ones((1,) * (14 if odd else 13))))
    log.call("several", lambda: dist.group.WORLD.allreduce(parts(2) if odd else parts(1)).wait())
    log.call("lists", lambda: dist.group.WORLD.allreduce(parts(5)).wait() if odd else dist.barrier())
    log.call(
        "functional", lambda: torch.distributed._functional_collectives.all_reduce(ones(4 + rank), "sum", [0, 1, 2])
    )
    log.call("reductions differ", lambda: dist.all_reduce(ones(), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM))
    log.call("then all agree", lambda: dist.all_reduce(ones()))


def two_orders(log: Log, rank: int) -> None:
    calls = [lambda: dist.all_reduce(ones()), lambda: dist.all_gather(parts(3), ones())]
    for call in calls if rank == 0 else calls[::-1]:
        log.call("call", call)


def gathers_and_scatters(log: Log, rank: int) -> None:
    root, odd = rank == 0, rank == 1
    log.call("gather", lambda: dist.gather(ones(), parts(3) if root else None))
    log.call("gather sizes", lambda: dist.gather(ones(5) if root else ones(), [ones(5)] * 3 if root else None))
    log.call("scatter", lambda: dist.scatter(ones(), parts(3) if root else None))
    log.call("scatter sizes", lambda: dist.scatter(ones(3 + (rank == 2)), [ones(3)] * 3 if root else None))
    log.call(
        "scatter or gather", lambda: dist.gather(ones()) if odd else dist.scatter(ones(), parts(3) if root else None)
    )
    log.call("reduce_scatter", lambda: dist.reduce_scatter(ones(), parts(3)))
    log.call("reduce_scatter sizes", lambda: dist.reduce_scatter(ones(4 + odd), [ones(4 + odd)] * 3))
    log.call("reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(ones(), ones(12)))
    log.call("reduce_scatter_tensor sizes", lambda: dist.reduce_scatter_tensor(ones(4 + odd), ones(12 + 3 * odd)))
    log.call("or all_reduce", lambda: dist.reduce_scatter_tensor(ones(), ones(12)) if rank else dist.all_reduce(ones()))
    log.call("all_gather", lambda: dist.all_gather(parts(3), ones()))
    log.call("all_gather of several sizes", lambda: dist.all_gather([ones(4 + i) for i in range(3)], ones(4 + rank)))
    log.call("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(ones(12), ones()))
    log.call("all_gather sizes", lambda: dist.all_gather_into_tensor(ones(12 + 3 * odd), ones(4 + odd)))
    log.call("sequence", dist.group.WORLD._get_sequence_number_for_group, str)


def coalesced(log: Log, rank: int) -> None:
    def manager(*calls: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            with c10d._coalescing_manager():
                for call in calls:
                    call()

        return run

    shapes = [ones(), ones(3)]
    log.call("all_reduce_coalesced", lambda: dist.all_reduce_coalesced(shapes if rank else shapes[::-1]))
    log.call("or all_reduce", lambda: dist.all_reduce_coalesced(shapes) if rank else dist.all_reduce(ones(7)))
    log.call("all_gather_coalesced", lambda: dist.all_gather_coalesced([[ones(), ones(3)] for _ in range(3)], shapes))
    log.call("reductions", manager(*[lambda: dist.all_reduce(ones())] * 2))
    log.call("gathers", manager(*[lambda: dist.all_gather_into_tensor(ones(12), ones())] * 2))
    log.call("scatters", manager(*[lambda: dist.reduce_scatter_tensor(ones(), ones(12))] * 2))
    log.call("sequence", dist.group.WORLD._get_sequence_number_for_group, str)
    log.call(
        "all_to_all", lambda: dist.all_to_all_single(ones(3), ones(3)) if rank else dist.all_to_all(parts(3), parts(3))
    )


def objects(log: Log, rank: int) -> None:
    log.call("all_gather_object", lambda: dist.all_gather_object([None] * 3, "x" * rank))
    log.call("broadcast_object_list", lambda: dist.broadcast_object_list([rank], 0))
    log.call("scatter_object_list", lambda: dist.scatter_object_list([None], [1, 2, 3] if rank == 0 else None, 0))
    log.call("or", lambda: dist.all_gather_object([None] * 3, 1) if rank else dist.broadcast_object_list([1], 0))


def refused(log: Log, rank: int) -> None:
    log.call("int16", lambda: dist.all_reduce(ones(dtype=torch.int16)))
    log.call("sizes", lambda: dist.all_gather([ones(3)] * 3, ones()))
    log.call("root", lambda: dist.broadcast(ones(), 7))
    log.call("roots", lambda: dist.all_reduce(ones()))


def messages_part_the_numbers(log: Log, rank: int) -> None:
    if rank < 2:
        log.call("message", lambda: dist.recv(ones(), 0) if rank else dist.send(ones(), 1))
    log.call("call", lambda: dist.all_reduce(ones()))
    log.call("sequence", dist.group.WORLD._get_sequence_number_for_group, str)
    log.call("monitored", dist.monitored_barrier)
    log.call("call", lambda: dist.all_reduce(ones()))


def messages_are_not_compared(log: Log, rank: int) -> None:
    def around() -> list[bool]:
        there, back = (rank + 1) % 3, (rank - 1) % 3
        operations = [dist.P2POp(dist.isend, ones(), there), dist.P2POp(dist.irecv, ones(), back)]
        return [work.wait() for work in dist.batch_isend_irecv(operations)]

    log.call("batch", around, str)
    if rank == 0:
        log.call("no partner", lambda: dist.recv(ones(), 1))


def without(*missing: int) -> Callable[[Log, int], None]:
    def act(log: Log, rank: int) -> None:
        if rank not in missing:
            log.call("first", lambda: dist.all_reduce(ones()))
            log.call("second", dist.barrier)

    return act


def late(log: Log, rank: int) -> None:
    if rank == 1:
        log.sleep_until(0.5)
    log.call("first", lambda: dist.all_reduce(ones()))


def too_late(log: Log, rank: int) -> None:
    if rank == 1:
        log.sleep_until(1.5)
    log.call("first", lambda: dist.all_reduce(ones()))
    log.call("second", lambda: dist.all_reduce(ones()))


def dead(victim: int) -> Callable[[Log, int], None]:
    def act(log: Log, rank: int) -> None:
        if rank == victim:
            log.sleep_until(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(END_S)
        log.sleep_until(0.2)
        log.call("first", lambda: dist.all_reduce(ones()))
        log.call("second", lambda: dist.all_reduce(ones()))

    return act


def groups(log: Log, rank: int) -> None:
    pair = dist.new_group([0, 2])
    if rank != 1:
        log.call("in time", lambda: dist.all_reduce(ones(), group=pair))
        log.call("of a pair", lambda: dist.all_reduce(ones(4 + rank), group=pair))
    short = dist.new_group([2, 1, 0], timeout=timedelta(seconds=0.5))
    log.call("of all", lambda: dist.all_reduce(ones(4 + (rank == 2)), group=short))
    if rank != 1:
        log.call("missing", lambda: dist.all_reduce(ones(), group=short))


def levels(log: Log, rank: int) -> None:
    dist.set_debug_level(dist.DebugLevel.INFO)
    log.call("level", dist.get_debug_level, str)
    log.call("still compared", lambda: dist.all_reduce(ones(4 + rank)))
    log.call("not compared", lambda: isinstance(wrapper(dist.new_group([0, 1])), c10d._ProcessGroupWrapper), str)
    dist.set_debug_level(dist.DebugLevel.DETAIL if rank else dist.DebugLevel.OFF)
    log.call("parted", lambda: dist.new_group([0, 1], timeout=timedelta(seconds=0.5)) and None)


def wrapper(group: Any) -> Any:
    return group._get_backend(CPU)


def introspection(log: Log, rank: int) -> None:
    group = dist.group.WORLD
    backend = wrapper(group)
    for name, ask in {
        "names": lambda: (group.name(), backend.name(), backend.wrapped_pg.name(), dist.get_backend()),
        "kinds": lambda: (isinstance(backend, c10d._ProcessGroupWrapper), isinstance(backend, dist.ProcessGroupGloo)),
        "sizes": lambda: (group.size(), group.rank(), backend.size(), backend.rank(), group.group_desc),
        "numbers": lambda: (group._get_sequence_number_for_group(), backend._get_sequence_number_for_group()),
        "supports": lambda: (backend.supports_splitting, backend.supports_coalescing, backend.supports_shrinking),
        "get_error": lambda: backend.get_error(),
        "through the wrapper": lambda: backend.allreduce([ones(4 + rank)]).wait(),
        "past the wrapper": lambda: backend.wrapped_pg.allreduce([ones()]).wait(),
        "keys": lambda: sorted(c10d._get_default_store().list_keys()),
        "set_timeout": lambda: group.set_timeout(timedelta(seconds=3)),
        "timeout": lambda: backend.options._timeout,
        "shutdown": lambda: backend.shutdown(),
    }.items():
        log.call(name, ask, str)


def made_by_hand(log: Log, rank: int) -> None:
    store = dist.PrefixStore("by hand", c10d._get_default_store())
    group = c10d._create_process_group_wrapper(
        dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=1)), "mine", store, rank, 2, timedelta(seconds=1)
    )
    log.call("kind", lambda: isinstance(group, c10d._ProcessGroupWrapper), str)
    log.call("differ", lambda: group.allreduce([ones(4 + rank)]).wait())
    log.call("same", lambda: group.allreduce([ones()]).wait(), str)
    log.call("missing", lambda: group.barrier().wait() if rank else time.sleep(1.2))  # and no rank drops the group


def models_that_differ(log: Log, rank: int) -> None:
    wrap = torch.nn.parallel.DistributedDataParallel
    log.call("counts", lambda: wrap(torch.nn.Linear(4, 4, bias=rank == 0)))


STORIES: dict[str, tuple[Callable[[], Log], int]] = {
    "calls that differ": (checked(mismatches), 3),
    "two orders": (checked(two_orders), 3),
    "gathers and scatters": (checked(gathers_and_scatters), 3),
    "coalesced calls": (checked(coalesced), 3),
    "objects": (checked(objects), 3),
    "calls that are refused": (checked(refused), 3),
    "numbers parted by messages": (checked(messages_part_the_numbers), 3),
    "messages": (checked(messages_are_not_compared), 3),
    "one is missing": (checked(without(1)), 3),
    "rank 0 is missing": (checked(without(0)), 3),
    "two are missing": (checked(without(1, 2)), 4),
    "one is late": (checked(late), 3),
    "one is too late": (checked(too_late, end_s=2.0), 3),
    "one has died": (checked(dead(1), end_s=1.8), 3),
    "rank 0 has died": (checked(dead(0)), 3),
    "groups": (checked(groups), 3),
    "levels": (checked(levels), 2),
    "what a wrapper says": (checked(introspection), 2),
    "a wrapper made by hand": (checked(made_by_hand), 2),
    "models that differ": (checked(models_that_differ), 2),
}
CASES = [Case(name, body, size) for name, (body, size) in STORIES.items()]


test_the_same_story = story_test(CASES)


def test_ddp_on_a_checked_group_takes_the_process_with_it() -> None:
    def body() -> None:
        set_level("DETAIL")
        dist.init_process_group("gloo")
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

    simulation, reality = simulated(body, 2), run_real(body, 2, timeout_s=20)

    assert [(rank.status, rank.exit_code) for rank in simulation] == [("killed", -signal.SIGSEGV)] * 2
    assert [(rank.status, rank.exit_code) for rank in reality] == [("killed", -signal.SIGSEGV)] * 2


def test_ddp_names_unused_parameters_as_the_level_says() -> None:
    def body() -> list[Any]:
        found: list[Any] = []
        for level in ("OFF", "INFO"):
            set_level(level)
            dist.is_initialized() or dist.init_process_group("gloo")
            model: Any = torch.nn.parallel.DistributedDataParallel(TwoLayers())
            found.append(model._get_ddp_logging_data()["torch_distributed_debug"])
            model(torch.ones(1, 2)).sum().backward()
            try:
                model(torch.ones(1, 2))
            except RuntimeError as error:
                found.append(str(error))
        return found

    simulation, reality = simulated(body, 2), run_real(body, 2, timeout_s=20)

    assert [rank.value for rank in simulation] == [rank.value for rank in reality]
    assert "second.bias, second.weight" in simulation[0].value[3]


class TwoLayers(torch.nn.Module):
    """Two layers, of which the second is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply only the first layer."""
        result: torch.Tensor = self.first(x)
        return result
