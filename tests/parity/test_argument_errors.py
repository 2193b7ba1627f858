"""Wrong arguments: real Gloo's refusals, word for word. No call here sends anything, so one world runs them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from tests.parity.arms import Log, simulated
from tests.real_gloo import RealOutcome, run_real

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (4,), dtype=dtype)


INT16, INT64, FLOAT64, COMPLEX = torch.int16, torch.int64, torch.float64, torch.complex64
OPS = dist.ReduceOp


def calls(me: int) -> dict[str, Callable[[], object]]:
    """Return the calls of each of two ranks; `me` is the caller's rank."""
    other = 1 - me
    return {
        "send to self": lambda: dist.send(ones(), me),
        "send to nobody's tag": lambda: dist.send(ones(), other, tag=-1),
        "send strided": lambda: dist.send(ones(8)[::2], other),
        "recv strided": lambda: dist.recv(ones(8)[::2], other),
        "send a list": lambda: dist.send([1], other),  # type: ignore[arg-type]
        "all_gather short list": lambda: dist.all_gather([ones()], ones()),
        "all_gather long list": lambda: dist.all_gather([ones()] * 3, ones()),
        "all_gather no list": lambda: dist.all_gather([], ones()),
        "all_gather other dtype": lambda: dist.all_gather([ones(), ones(dtype=FLOAT64)], ones()),
        "all_gather other shapes": lambda: dist.all_gather([ones(6), ones(6)], ones()),
        "all_gather one other shape": lambda: dist.all_gather([ones(), ones(6)], ones()),
        "all_gather_into_tensor other size": lambda: dist.all_gather_into_tensor(ones(7), ones(4)),
        "all_gather_into_tensor other dtype": lambda: dist.all_gather_into_tensor(ones(8, dtype=FLOAT64), ones()),
        "gather with a list on a leaf": lambda: dist.gather(ones(), [ones(), ones()], other),
        "gather without a list on the root": lambda: dist.gather(ones(), None, me),
        "gather short list": lambda: dist.gather(ones(), [ones()], me),
        "gather other shape": lambda: dist.gather(ones(), [ones(), ones(6)], me),
        "gather other dtype": lambda: dist.gather(ones(), [ones(), ones(dtype=INT64)], me),
        "gather to nobody": lambda: dist.gather(ones(), None, 9),
        "scatter without a list on the root": lambda: dist.scatter(ones(), None, me),
        "scatter with a list on a leaf": lambda: dist.scatter(ones(), [ones(), ones()], other),
        "scatter short list": lambda: dist.scatter(ones(), [ones()], me),
        "scatter other shape": lambda: dist.scatter(ones(), [ones(), ones(6)], me),
        "scatter other dtype": lambda: dist.scatter(ones(), [ones(), ones(dtype=INT64)], me),
        "scatter from nobody": lambda: dist.scatter(ones(), None, 9),
        "reduce_scatter short list": lambda: dist.reduce_scatter(ones(), [ones()]),
        "reduce_scatter other dtype": lambda: dist.reduce_scatter(ones(), [ones(), ones(dtype=INT64)]),
        "reduce_scatter_tensor other size": lambda: dist.reduce_scatter_tensor(ones(4), ones(7)),
        "reduce_scatter_tensor other dtype": lambda: dist.reduce_scatter_tensor(ones(4, dtype=FLOAT64), ones(8)),
        "all_to_all_single output splits": lambda: dist.all_to_all_single(ones(4), ones(4), [1, 2], [2, 2]),
        "all_to_all_single input splits": lambda: dist.all_to_all_single(ones(4), ones(4), [2, 2], [1, 2]),
        "all_to_all_single number of splits": lambda: dist.all_to_all_single(ones(4), ones(4), [4], [2, 2]),
        "all_to_all_single other dtype": lambda: dist.all_to_all_single(ones(4, dtype=INT64), ones(4)),
        "all_to_all short lists": lambda: dist.all_to_all([ones()], [ones()]),
        "all_to_all other dtype": lambda: dist.all_to_all([ones(), ones(dtype=INT64)], [ones(), ones()]),
        "broadcast from nobody": lambda: dist.broadcast(ones(), 9),
        "broadcast from -1": lambda: dist.broadcast(ones(), -1),
        "broadcast without a source": lambda: dist.broadcast(ones()),
        "reduce to nobody": lambda: dist.reduce(ones(), 9),
        "all_reduce a list": lambda: dist.all_reduce([ones()]),
        "all_reduce in no group": lambda: dist.all_reduce(ones(), group="x"),
        "all_reduce sparse MAX": lambda: dist.all_reduce(torch.eye(2).to_sparse(), OPS.MAX),
        "all_reduce_coalesced dtypes": lambda: dist.all_reduce_coalesced([ones(), ones(dtype=FLOAT64)]),
        "all_reduce BAND float32": lambda: dist.all_reduce(ones(), OPS.BAND),
        "all_reduce BOR float64": lambda: dist.all_reduce(ones(dtype=FLOAT64), OPS.BOR),
        "all_reduce BXOR bfloat16": lambda: dist.all_reduce(ones(dtype=torch.bfloat16), OPS.BXOR),
        "all_reduce MAX complex": lambda: dist.all_reduce(ones(dtype=COMPLEX), OPS.MAX),
        "all_reduce PRODUCT complex": lambda: dist.all_reduce(ones(dtype=COMPLEX), OPS.PRODUCT),
        "all_reduce SUM int16": lambda: dist.all_reduce(ones(dtype=INT16)),
        "all_reduce AVG int16": lambda: dist.all_reduce(ones(dtype=INT16), OPS.AVG),
        "all_reduce SUM uint16": lambda: dist.all_reduce(ones(dtype=torch.uint16)),
        "all_reduce SUM float8": lambda: dist.all_reduce(ones(dtype=torch.float8_e4m3fn)),
        "all_reduce PREMUL_SUM": lambda: dist.all_reduce(ones(), _make_nccl_premul_sum(2.0)),
        "reduce MAX complex": lambda: dist.reduce(ones(dtype=COMPLEX), 0, OPS.MAX),
        "reduce_scatter_tensor MAX complex": lambda: dist.reduce_scatter_tensor(
            ones(2, dtype=COMPLEX), ones(dtype=COMPLEX), OPS.MAX
        ),
        "reduce BAND float": lambda: dist.reduce(ones(), 0, OPS.BAND),
        "all_reduce nothing of int16": lambda: dist.all_reduce(ones(0, dtype=INT16)),
        "broadcast int16": lambda: dist.broadcast(ones(dtype=INT16), 0),
        "all_gather int16": lambda: dist.all_gather([ones(dtype=INT16)] * 2, ones(dtype=INT16)),
        "all_to_all_single int16": lambda: dist.all_to_all_single(ones(dtype=INT16), ones(dtype=INT16)),
        "new_group too large": lambda: dist.new_group([0, 1, 2]),
        "new_group twice the same": lambda: dist.new_group([0, 0]),
        "new_group with a stranger": lambda: dist.new_group([0, 5]),
        # These two communicate first: each rank sums, then the division fails.
        "all_reduce AVG int64": lambda: dist.all_reduce(ones(dtype=INT64), OPS.AVG),
        "all_reduce AVG bool": lambda: dist.all_reduce(ones(dtype=torch.bool), OPS.AVG),
        "init_process_group twice": lambda: dist.init_process_group("gloo"),
        "all_reduce": lambda: dist.all_reduce(ones()),
    }


NAMES = list(calls(0))


def all_of_them() -> Log:
    log = Log.of_world(5)
    for name, call in calls(dist.get_rank()).items():
        log.call(name, call)
    return log


@pytest.fixture(scope="module")
def reality() -> list[RealOutcome]:
    return run_real(all_of_them, 2)


@pytest.fixture(scope="module")
def simulation() -> list[RealOutcome]:
    return simulated(all_of_them, 2)


def test_every_call_comes_back_in_both_arms(simulation: list[RealOutcome], reality: list[RealOutcome]) -> None:
    for arm in (simulation, reality):
        assert [outcome.status for outcome in arm] == ["returned"] * 2, arm


@pytest.mark.parametrize("name", NAMES)
def test_the_same_refusal(name: str, simulation: list[RealOutcome], reality: list[RealOutcome]) -> None:
    index = NAMES.index(name)

    ours, theirs = (
        [(entry.outcome, entry.text) for entry in (outcome.value.entries[index] for outcome in arm)]
        for arm in (simulation, reality)
    )
    assert ours == theirs
