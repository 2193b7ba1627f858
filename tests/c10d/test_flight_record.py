"""The flight recorder; tests/parity compares its entries with real Gloo's."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

import simdist
from simdist.errors import SimdistError
from tests.c10d.worlds import in_group, ones

_c: Any = torch._C._distributed_c10d


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pickle.loads(_c._dump_fr_trace())["entries"]
    return found


def test_an_entry_has_the_virtual_time_of_its_call() -> None:
    def body(rank: int) -> list[int]:
        for _ in range(2):
            dist.barrier()
        return [entry["time_created_ns"] for entry in entries()]

    assert in_group(body, 2)[0] == [200_000, 300_000]


def test_every_rank_has_a_record_of_its_own() -> None:
    def body(rank: int) -> list[str]:
        group = dist.new_group([1])
        if rank == 1:
            dist.all_reduce(ones(), group=group)
        dist.barrier()
        return [entry["profiling_name"] for entry in entries()]

    assert in_group(body, 2) == [["gloo:barrier"], ["gloo:all_reduce", "gloo:barrier"]]


def test_frames_are_kept_for_those_who_ask_for_a_buffer() -> None:
    def body(rank: int) -> list[str]:
        dist.barrier()
        return [frame["name"] for frame in entries()[0]["frames"]]

    assert in_group(body, 1) == [[]]
    assert in_group(body, 1, env={"TORCH_FR_BUFFER_SIZE": "10"})[0][:3] == ["barrier", "wrapper", "body"]


def test_a_list_of_reductions_counts_as_many_in_a_short_buffer() -> None:
    def body(rank: int) -> list[tuple[int, int]]:
        dist.barrier()
        dist.reduce_scatter(ones(2), [ones(2) for _ in range(3)])
        return [(entry["record_id"], entry["op_id"]) for entry in entries()]

    assert in_group(body, 3, env={"TORCH_FR_BUFFER_SIZE": "2"})[0] == [(2, 3), (3, 4)]


def test_a_size_that_is_no_number_is_refused() -> None:
    result = simdist.run(lambda: dist.init_process_group("gloo"), world_size=1, env={"TORCH_FR_BUFFER_SIZE": "many"})

    assert isinstance(result.ranks[0].exception, SimdistError)
    assert str(result.ranks[0].exception) == "TORCH_FR_BUFFER_SIZE is 'many'; expected a whole number"


def test_the_host_has_its_own_functions_back() -> None:
    before = _c._dump_fr_trace, _c._dump_fr_trace_json

    in_group(lambda rank: dist.barrier(), 2)

    assert (_c._dump_fr_trace, _c._dump_fr_trace_json) == before
