"""TORCH_DISTRIBUTED_DEBUG on simulated ranks; tests/parity compares it with real Gloo."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed
from hypothesis import given
from hypothesis import strategies as st

import simdist
from simdist.c10d.watch._fingerprint import Fingerprint
from simdist.errors import SimdistError, StrictError
from simdist.faults import Crash
from tests.c10d.worlds import ones, values

dist: Any = torch.distributed  # the stubs do not export every name
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def level() -> str:
    return str(dist.get_debug_level()).removeprefix("DebugLevel.")


def reduce_twice() -> int:
    dist.init_process_group("gloo")
    for _ in range(2):
        dist.all_reduce(ones())
    return int(dist.get_rank())


def test_the_level_is_the_world_s_environment_s_the_host_keeps_its_own() -> None:
    before = dist.get_debug_level()

    levels = values(level, 2, env={"TORCH_DISTRIBUTED_DEBUG": "info"})

    assert levels == ["INFO", "INFO"]
    assert dist.get_debug_level() == before


def test_ranks_have_levels_of_their_own() -> None:
    def body() -> list[str]:
        seen = [level()]
        if os.environ["RANK"] == "1":
            dist.set_debug_level(dist.DebugLevel.DETAIL)
        else:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
            dist.set_debug_level_from_env()
        seen.append(level())
        return seen

    assert values(body, 2) == [["OFF", "INFO"], ["OFF", "DETAIL"]]


def test_a_level_that_torch_does_not_know_is_refused_before_the_run() -> None:
    with pytest.raises(SimdistError, match="TORCH_DISTRIBUTED_DEBUG is 'LOUD'; expected OFF, INFO or DETAIL"):
        simdist.run(level, world_size=1, env={"TORCH_DISTRIBUTED_DEBUG": "LOUD"})


def test_the_comparisons_are_no_operations_of_the_rank() -> None:
    plain = simdist.run(reduce_twice, world_size=2)
    compared = simdist.run(reduce_twice, world_size=2, env=DETAIL)

    assert [rank.operations for rank in compared.ranks] == [rank.operations for rank in plain.ranks]
    assert compared.virtual_time_ns > plain.virtual_time_ns


def test_a_fault_counts_the_user_s_operations_only() -> None:
    result = simdist.run(reduce_twice, world_size=2, env=DETAIL, faults=[Crash(rank=1, nth=2, when="during")])

    assert result.ranks[1].exit_code == -signal.SIGKILL
    assert result.ranks[1].last_operation == "all_reduce #1 in group '0'"


def test_a_checked_run_is_the_same_twice() -> None:
    first = simdist.run(reduce_twice, world_size=3, env=DETAIL)
    second = simdist.run(reduce_twice, world_size=3, env=DETAIL)

    assert first.digest == second.digest


def test_a_destroyed_checked_group_gives_both_of_its_groups_up() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            dist.destroy_process_group()
            return ""
        with pytest.raises(RuntimeError, match="Ranks 1 failed to pass monitoredBarrier"):
            dist.barrier()
        with pytest.raises(RuntimeError, match="Monitored Barrier encountered error running collective") as caught:
            dist.barrier()
        return str(caught.value)

    result = simdist.run(body, world_size=2, env=DETAIL)

    assert "CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER). Error: \n" in result.values[0]
    assert "Connection closed by peer" in result.values[0]
    assert result.virtual_time_ns < 1_000_000


def test_a_strict_run_explains_why_ddp_would_crash() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))

    result = simdist.run(body, world_size=2, env=DETAIL, strict=True)

    assert [type(rank.exception) for rank in result.ranks] == [StrictError] * 2
    assert "make the group under INFO or OFF" in str(result.ranks[0].exception)


def test_the_ideal_backend_compares_by_itself() -> None:
    def body() -> None:
        dist.init_process_group()
        dist.all_reduce(ones(4 + dist.get_rank()))

    result = simdist.run(body, world_size=2, env=DETAIL, backend="sim")

    assert str(result.ranks[0].exception).startswith("ranks do not agree on collective #0")


@given(
    sequence=st.integers(0, 1 << 40),
    tensors=st.lists(
        st.builds(
            lambda shape, dtype: torch.empty(shape, dtype=dtype),
            st.lists(st.integers(0, 3), max_size=4),
            st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e5m2]),
        ),
        max_size=4,
    ),
)
def test_a_fingerprint_arrives_as_it_left(sequence: int, tensors: list[torch.Tensor]) -> None:
    fingerprint = Fingerprint.of("ALLREDUCE", sequence, tensors)

    assert Fingerprint.from_numbers(fingerprint.numbers()) == fingerprint
