"""An exception that a fault raises in place of a call leaves no trace of the call, as if it had not been made."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Raise

registry: Any = torch._C._distributed_c10d
c10d: Any = dist.distributed_c10d


def counted() -> tuple[int, list[tuple[str, int]]]:
    """Return the group's sequence number, and the collectives of the flight recorder."""
    entries = pickle.loads(registry._dump_fr_trace())["entries"]
    number = c10d._get_default_group()._get_sequence_number_for_group()
    return number, [(entry["profiling_name"], entry["collective_seq_id"]) for entry in entries]


def exchange() -> None:
    inputs, outputs = torch.ones(2), torch.zeros(2)
    dist.all_to_all_single(outputs, inputs)


def list_of_reductions() -> None:
    dist.reduce_scatter(torch.zeros(1), [torch.ones(1), torch.ones(1)])


def message() -> None:
    if dist.get_rank():
        dist.send(torch.ones(1), 0)
    else:
        dist.recv(torch.ones(1), 1)


CALLS: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1)),
    "barrier": lambda: dist.barrier(),
    "all_to_all": exchange,
    "reduce_scatter": list_of_reductions,
    "send": message,
    "monitored_barrier": lambda: dist.monitored_barrier(),
}


@pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")
@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
@pytest.mark.parametrize("op", CALLS)
def test_a_caught_exception_leaves_every_counter_as_it_was(op: str, debug: str) -> None:
    def body(faulty: bool) -> Any:
        dist.init_process_group("gloo")
        call = CALLS[op]
        call()
        if faulty and dist.get_rank() == 1:
            with pytest.raises(ConnectionError, match="NIC reset"):
                call()
        call()
        return counted()

    faults = [Raise(rank=1, op=op, nth=2, error="ConnectionError", message="NIC reset")]
    env = {"TORCH_DISTRIBUTED_DEBUG": debug}
    with_fault = simdist.run(body, world_size=2, args=(True,), faults=faults, env=env)
    with_fault.raise_for_failure()
    without = simdist.run(body, world_size=2, args=(False,), env=env)

    assert with_fault.values == without.values
    assert [rank.operations for rank in with_fault.ranks] == [rank.operations for rank in without.ranks]


def test_under_detail_the_fault_strikes_before_ranks_compare() -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        try:
            dist.all_reduce(torch.ones(1))
        except ConnectionError:
            dist.all_reduce(torch.ones(1))
        return None

    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    result = simdist.run(body, world_size=2, faults=[Raise(rank=0, op="all_reduce", error="ConnectionError")], env=env)

    result.raise_for_failure()
    assert result.virtual_time_ns < 10_000_000
    groups = {event.data["group"] for event in result.events if event.kind in ("issue", "complete", "result")}
    assert groups == {"0"}  # the operations that compare calls do not count as the program's
