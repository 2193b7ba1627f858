"""DTensor on uneven shapes: each rank makes its own plan."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor, rand

import simdist
from tests.c10d.worlds import values

pytestmark = pytest.mark.filterwarnings("ignore")

PLACEMENTS = st.sampled_from([Shard(0), Shard(1), Replicate()])


def round_trip(shape: tuple[int, int], mesh_shape: tuple[int, int], layouts: list[list[Placement]]) -> bool:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", mesh_shape)
    whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    tensor = distribute_tensor(whole, mesh, layouts[0])
    for layout in layouts[1:]:
        tensor = tensor.redistribute(mesh, layout)
    return torch.equal(tensor.full_tensor(), whole)


def test_nine_rows_on_two_by_two_ranks_come_back_whole() -> None:
    assert values(lambda: round_trip((9, 5), (2, 2), [[Shard(0), Shard(0)]]), 4) == [True] * 4


@settings(max_examples=10, deadline=None)
@given(
    st.tuples(st.integers(1, 11), st.integers(1, 7)),
    st.sampled_from([(2, 2), (1, 3), (3, 2)]),
    st.lists(st.lists(PLACEMENTS, min_size=2, max_size=2), min_size=1, max_size=4),
)
def test_a_tensor_survives_any_chain_of_layouts(
    shape: tuple[int, int], mesh_shape: tuple[int, int], layouts: list[list[Placement]]
) -> None:
    ranks = mesh_shape[0] * mesh_shape[1]

    assert values(lambda: round_trip(shape, mesh_shape, layouts), ranks) == [True] * ranks


def test_meshes_of_one_rank_are_equal_and_those_of_two_are_not() -> None:
    meshes: dict[int, DeviceMesh] = {}

    def body() -> list[bool]:
        dist.init_process_group("gloo")
        mine = init_device_mesh("cpu", (2,))
        meshes[dist.get_rank()] = mine
        assert hash(mine)
        again = init_device_mesh("cpu", (2,))
        dist.barrier()
        other = meshes[1 - dist.get_rank()]
        return [mine == again, hash(mine) == hash(again), hash(mine) == hash(other)]

    assert values(body, 2) == [[True, True, False]] * 2


def test_partial_sums_are_reduced_over_an_uneven_mesh() -> None:
    def body() -> list[float]:
        from torch.distributed.tensor import DTensor

        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (3, 2))
        local = torch.full((3,), float(dist.get_rank()))
        result: list[float] = DTensor.from_local(local, mesh, [Partial(), Partial()]).full_tensor().tolist()
        return result

    assert values(body, 6) == [[15.0] * 3] * 6


def test_no_mesh_outlives_its_world_in_a_cache_without_a_bound() -> None:
    plans: Any = sys.modules["torch.distributed.tensor._redistribute"]
    before = (
        plans._gen_transform_infos,
        plans._planner_cache,
        len(plans._planner_cache),
        "_thread_id" in vars(DeviceMesh),
    )

    values(lambda: round_trip((9, 5), (2, 2), [[Shard(0), Shard(0)], [Shard(1), Replicate()]]), 4)

    after = (
        plans._gen_transform_infos,
        plans._planner_cache,
        len(plans._planner_cache),
        "_thread_id" in vars(DeviceMesh),
    )
    assert after == before


def test_a_mesh_of_the_host_keeps_what_torch_gave_it() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        init_device_mesh("cpu", (1,))

    mesh = DeviceMesh("cpu", torch.arange(1), _init_backend=False, _rank=0)
    before = hash(mesh), mesh._thread_id
    simdist.run(body, world_size=1).raise_for_failure()

    assert (hash(mesh), mesh._thread_id) == before


def test_random_numbers_on_devices_begin_alike_in_every_world() -> None:
    def body() -> list[Any]:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        torch.manual_seed(rank)  # all follow rank 0: a broadcast that torch makes once in a process
        time.sleep(rank)
        mesh = init_device_mesh("cuda", (2,))
        drawn: Any = rand(4, 2, device_mesh=mesh, placements=[Shard(0)])
        dist.barrier()
        return [drawn.full_tensor().tolist(), torch.rand(1, device="cuda").item()]

    first, again = (simdist.run(body, world_size=2, backend="nccl") for _ in range(2))

    first.raise_for_failure()
    assert first.values[0] == first.values[1] == again.values[0] == again.values[1]
    assert first.digest == again.digest
    issued = [event.data["op"] for event in first.events if event.rank == 1 and event.kind == "issue"]
    assert issued[0] == "broadcast"
