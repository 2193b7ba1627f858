"""Groups: sub-groups, their members, and what is left after they are destroyed."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import simdist
from simdist.c10d.calls import _unseen
from simdist.c10d.surface.state import _rank_world
from simdist.inside.torch import c10d_bindings
from tests.c10d.stores import FILE
from tests.c10d.worlds import Diary, attempt, in_group, now_ns, ones, outcome, sleep_s, values

c10d: Any = dist  # the stubs do not export every name
UNINITIALISED = (
    "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
)


def summed(value: float, group: Any = None) -> float:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def test_overlapping_groups_do_not_disturb_each_other() -> None:
    def body(rank: int) -> list[float]:
        groups = [dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])]
        mine = [group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER]
        # Ranks 1 and 2 use both groups in the same order; the others are in one only.
        return [summed(2.0**rank, group) for group in mine] + [summed(1.0)]

    assert in_group(body, 4) == [[7, 4], [7, 14, 4], [7, 14, 4], [14, 4]]


def test_a_non_member_gets_a_placeholder_at_once() -> None:
    def body(rank: int) -> tuple[bool, int, int]:
        begin = now_ns()
        group = dist.new_group([0, 1])
        return group is dist.GroupMember.NON_GROUP_MEMBER, dist.get_rank(group), (now_ns() - begin) // 10_000_000

    assert in_group(body, 3) == [(False, 0, 0), (False, 1, 0), (True, -1, 0)]


def test_ranks_of_a_group_are_sorted_whatever_the_order_given() -> None:
    def body(rank: int) -> tuple[int, list[int]]:
        group = dist.new_group([2, 0, 1])
        return dist.get_rank(group), dist.get_process_group_ranks(group)

    assert in_group(body, 3) == [(rank, [0, 1, 2]) for rank in range(3)]


def test_group_ranks_translate_to_global_ones_and_back() -> None:
    def body(rank: int) -> tuple[int, int, str]:
        group = dist.new_group([1, 3])
        if rank % 2 == 0:
            return 0, 0, ""
        assert not isinstance(group, int)
        refused = attempt(lambda: dist.get_group_rank(group, 0))
        return dist.get_global_rank(group, 1), dist.get_group_rank(group, 3), refused

    reported = in_group(body, 4)

    for translated, back, refused in (reported[1], reported[3]):
        assert (translated, back) == (3, 1)
        assert refused.startswith("ValueError: Global rank 0 is not part of group")


def test_a_group_of_one_needs_nobody() -> None:
    def body(rank: int) -> tuple[float, int]:
        group = [dist.new_group([one]) for one in range(3)][rank]
        begin = now_ns()
        total = summed(float(rank), group)
        dist.barrier(group)
        return total, now_ns() - begin

    assert in_group(body, 3) == [(0, 0), (1, 0), (2, 0)]


def test_new_subgroups_cuts_the_world_evenly() -> None:
    def body(rank: int) -> float:
        new_subgroups: Any = dist.new_subgroups
        group, _ = new_subgroups(2)
        return summed(2.0**rank, group)

    assert in_group(body, 4) == [3, 3, 12, 12]


def test_names_count_up_and_describe_the_backend() -> None:
    def body(rank: int) -> list[Any]:
        world = dist.group.WORLD
        group = dist.new_group([0, 1])
        assert world is not None
        assert not isinstance(group, int)
        return [
            world.group_name,
            group.group_name,
            world.group_desc,
            group.group_desc,
            world.name(),
            dist.get_backend(),
            world._get_backend_name(),
            world.bound_device_id,
            dist.get_world_size(group),
            isinstance(group, dist.ProcessGroup),
            world._get_backend(torch.device("cpu")).supports_splitting,
        ]

    expected = ["0", "1", "default_pg", "undefined", "gloo", "gloo", "gloo", None, 2, True, True]
    assert in_group(body, 2) == [expected] * 2


def test_a_group_reports_its_own_timeout() -> None:
    def body(rank: int) -> list[timedelta]:
        groups = [dist.group.WORLD, dist.new_group([0, 1], timeout=timedelta(seconds=9))]
        return [group._get_backend(torch.device("cpu")).options._timeout for group in groups if group is not None]

    assert in_group(body, 2, timeout_s=5) == [[timedelta(seconds=5), timedelta(seconds=9)]] * 2


@pytest.mark.parametrize(
    ("ranks", "refusal"),
    [
        ([0, 1, 2], "the new group's world size should be less or equal to the world size set by init_process_group"),
        ([0, 0], "ranks list must not contain duplicate entries, got [0, 0]"),
        ([0, 5], "Rank 5 is out of range. Valid ranks are 0 to 1 (world_size=2)"),
    ],
)
def test_ranks_that_make_no_group_are_refused(ranks: list[int], refusal: str) -> None:
    assert in_group(lambda rank: attempt(lambda: dist.new_group(ranks)), 2) == [f"ValueError: {refusal}"] * 2


# -- (k): a member never calls new_group -------------------------------------------------------------------------------


def test_new_group_ends_after_its_own_timeout_and_names_the_missing_key() -> None:
    def body(rank: int) -> tuple[str, float]:
        if rank == 1:
            return "", 0.0
        begin = now_ns()
        said = attempt(lambda: dist.new_group([0, 1, 2], timeout=timedelta(seconds=1)))
        return said, round((now_ns() - begin) / 1e9, 2)

    reported = in_group(body, 3, timeout_s=2)

    for rank in (0, 2):
        said, after_s = reported[rank]
        assert said.startswith("DistStoreError: wait timeout after 1000ms, keys: /")
        assert said.endswith("default_pg/0//1//cpu//0/1")
        assert after_s == 1.0


def test_new_group_s_timeout_is_half_an_hour_whatever_the_default_s_is() -> None:
    def body(rank: int) -> float:
        begin = now_ns()
        if rank == 0:
            attempt(lambda: dist.new_group([0, 1]))
        return round((now_ns() - begin) / 1e9, 1)

    assert in_group(body, 3, timeout_s=2)[0] == 1800.0


def test_a_non_member_need_not_call_new_group() -> None:
    def body(rank: int) -> float:
        return summed(1.0, dist.new_group([0, 1])) if rank < 2 else 0.0

    assert in_group(body, 3) == [2, 2, 0]


# -- (o): the end of a group -------------------------------------------------------------------------------------------


def test_after_destroy_everything_says_so_and_a_new_group_can_be_made() -> None:
    def body() -> list[str]:
        dist.init_process_group("gloo")
        dist.all_reduce(ones())
        dist.destroy_process_group()
        said = [
            str(dist.is_initialized()),
            attempt(lambda: dist.all_reduce(ones())),
            attempt(dist.destroy_process_group),
        ]
        dist.init_process_group("gloo")
        said.append(str(summed(1.0)))
        said.append(attempt(lambda: dist.init_process_group("gloo")))
        return said

    expected = [
        "False",
        UNINITIALISED,
        "AssertionError: Process group cannot be None",
        "2.0",
        "ValueError: trying to initialize the default process group twice!",
    ]
    assert values(body, 2) == [expected] * 2


def test_destroying_a_sub_group_leaves_the_world_alone() -> None:
    def body(rank: int) -> tuple[float, str]:
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        return summed(1.0), attempt(lambda: dist.get_rank(group))

    for total, said in in_group(body, 2):
        assert total == 2.0
        assert said.startswith("ValueError: ")


def test_before_init_everything_says_so() -> None:
    def body() -> list[str]:
        calls = [lambda: dist.all_reduce(ones()), lambda: dist.barrier(), lambda: dist.new_group([0])]
        return [str(dist.is_initialized()), *(attempt(call) for call in calls)]

    assert values(body, 1)[0] == ["False", *[UNINITIALISED] * 3]


# -- init_process_group: every way to meet -----------------------------------------------------------------------------

ALONE = {"TORCHELASTIC_USE_AGENT_STORE": "False"}


def total_after(**arguments: Any) -> list[float]:
    def body() -> float:
        ready = {name: value() if callable(value) else value for name, value in arguments.items()}
        dist.init_process_group("gloo", **ready)
        return summed(1.0)

    return values(body, 3, env=ALONE)


def rank_of_env() -> int:
    return int(os.environ["RANK"])


def test_ranks_meet_through_the_environment() -> None:
    assert total_after() == [3.0] * 3
    assert total_after(init_method="env://") == [3.0] * 3


def test_ranks_meet_through_an_address() -> None:
    assert total_after(init_method="tcp://127.0.0.1:5555", rank=rank_of_env, world_size=3) == [3.0] * 3
    assert total_after(init_method=lambda: f"tcp://127.0.0.1:5555?rank={rank_of_env()}&world_size=3") == [3.0] * 3


def test_ranks_meet_through_a_file() -> None:
    assert total_after(init_method=f"file://{FILE}", rank=rank_of_env, world_size=3) == [3.0] * 3


def test_ranks_meet_through_a_store() -> None:
    def store() -> Any:
        stores: Any = dist  # the stubs do not export them
        return stores.TCPStore("127.0.0.1", 5556, 3, rank_of_env() == 0)

    assert total_after(store=store, rank=rank_of_env, world_size=3) == [3.0] * 3


def test_ranks_that_are_spawned_meet_through_an_address() -> None:
    totals: dict[int, float] = {}

    def main(rank: int, size: int) -> None:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:5557", rank=rank, world_size=size)
        totals[rank] = summed(1.0)

    simdist.spawn(main, (4,), nprocs=4)

    assert totals == dict.fromkeys(range(4), 4.0)


# (j): real clients try again for a while longer than the timeout that they name, so only the texts are compared.
def failed_init(missing: int) -> list[tuple[str, float, bool]]:
    def body() -> tuple[str, float, bool]:
        if rank_of_env() == missing:
            sleep_s(20)
            return "", 0.0, False
        diary = Diary(now_ns())
        where: dict[str, Any] = {"init_method": "tcp://127.0.0.1:5558", "rank": rank_of_env(), "world_size": 3}
        diary.call("init", lambda: dist.init_process_group("gloo", timeout=timedelta(seconds=2), **where))
        entry = diary.entries[0]
        return entry.outcome, round(entry.ended_ms / 1000, 2), dist.is_initialized()

    return values(body, 3, env=ALONE)


def test_init_without_a_client_fails_in_the_store_and_in_the_group() -> None:
    refused = failed_init(missing=1)

    assert refused[0] == (
        "DistStoreError: Timed out after 3 seconds waiting for clients. 2/3 clients joined.",
        3.0,
        False,
    )
    assert refused[2] == ("DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//cpu//0/0", 2.0, False)


def test_init_without_the_host_of_the_store_fails_to_connect() -> None:
    for said, _, initialised in failed_init(missing=0)[1:]:
        assert said.startswith(
            "DistNetworkError: The client socket has timed out after 2000ms while trying to connect to (127.0.0.1, "
        )
        assert not initialised


def test_a_store_made_outside_the_simulation_is_refused_with_the_way_on() -> None:
    stores: Any = dist  # the stubs do not export them
    store = stores.HashStore()

    def main() -> None:
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    result = simdist.run(main, world_size=1)

    assert result.ranks[0].exception is not None
    assert "make the store inside the rank's function" in outcome(result.ranks[0].exception)


def test_ranks_keep_their_groups_when_torchs_threaded_mode_ends() -> None:
    def body() -> float:
        c10d_bindings._set_thread_isolation_mode(False)  # as torch's threaded test cases do
        dist.init_process_group("gloo")
        return float(functional.all_reduce(torch.ones(1), "sum", c10d.group.WORLD))

    assert values(body, 2) == [2.0, 2.0]


def test_shutdown_and_abort_leave_the_connections_open() -> None:
    def body(rank: int) -> float:
        group = dist.group.WORLD
        assert group is not None
        group.shutdown()
        group.abort()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert in_group(body, 2) == [2, 2]


def test_inference_tensors_and_parameters_are_reduced_in_place() -> None:
    def body(rank: int) -> list[float]:
        with torch.inference_mode():
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
        dist.all_reduce(tensor)
        parameter = torch.nn.Parameter(torch.ones(2))
        dist.all_reduce(parameter)
        return tensor.tolist() + parameter.tolist()

    assert in_group(body, 2) == [[4, 4, 4, 2, 2]] * 2
    assert not _unseen.inference_tensors  # it would slow the next world


def test_a_group_of_a_name_that_was_used_before_may_have_another_size() -> None:
    def body() -> list[int]:
        dist.init_process_group("gloo")
        for part in ([0], [1, 2]):
            dist.new_group(part)
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1, 2])
        tensor = torch.tensor([dist.get_rank()])
        dist.all_reduce(tensor, group=group)
        return tensor.tolist()

    assert values(body, 3) == [[3]] * 3


def test_a_group_that_was_destroyed_keeps_no_store() -> None:
    def main() -> str:
        for _ in range(2):
            store = c10d.TCPStore("0.0.0.0", 2222, world_size=1, is_master=True)
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
            del store  # so that its port is free again
        return "ended"

    assert simdist.run(main, world_size=1).values == ["ended"]


def test_a_default_group_that_torch_finds_in_another_way_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def found_otherwise() -> object:
        return dist.distributed_c10d._world.pg_map

    found = _rank_world._default_group()
    _rank_world._default_group.cache_clear()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_group", found_otherwise)
    other = _rank_world._default_group()
    monkeypatch.undo()
    _rank_world._default_group.cache_clear()

    assert other == []
    assert _rank_world._default_group() == found != []
