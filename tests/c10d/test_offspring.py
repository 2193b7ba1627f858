"""Groups that are made from groups over Gloo: `split_group` and `merge_remote_group` of torch's C++ group (2.13)."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.inside.torch import Place
from tests.builds import VERSION
from tests.c10d.worlds import values
from tests.real_gloo import run_real

SOON = timedelta(seconds=4)
_dist: Any = dist
CPU = torch.device("cpu")


def said(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def reported(group: Any) -> Any:
    """Return a group's answers about itself, and the sum of its ranks."""
    if group is None:
        return None
    options = group._get_backend(CPU).options
    tensor = torch.tensor([2.0 ** int(os.environ["RANK"])])
    group.allreduce([tensor]).wait()
    mine = group.rank(), group.size(), group.group_name, group.group_desc
    return *mine, options._timeout.total_seconds(), options.group_name, tensor.item()


def splits(*, of_types: bool = True) -> list[Any]:
    """Split groups off in every form; `of_types`: also for some types of device only."""
    kept: list[Any]
    found: list[Any]
    dist.init_process_group("cpu:gloo", timeout=timedelta(seconds=8))
    group: Any = dist.group.WORLD
    own = group._get_backend(CPU).options
    made: dict[str, Callable[[], Any]] = {
        "named": lambda: group.split_group([2, 0], SOON, None, "some", "of us"),
        "with the parent's name": lambda: group.split_group([0, 1], group_desc="x"),
        "of options": lambda: group.split_group([1, 2], SOON, own, "more", "x"),
        "of the CPU": lambda: group.split_group([0, 1], None, None, "cpu", "x", [CPU]),
        "of all": lambda: group.split_group([0, 1, 2], None, None, "all", "x", []),
        "of nobody here": lambda: group.split_group([7, -1], None, None, "none", "x"),
    }
    if not of_types:
        del made["of the CPU"], made["of all"]
    kept, found = [], []  # real groups that are freed while others still connect can make these hang
    for make in made.values():
        kept.append(make())
        found.append(reported(kept[-1]))
        dist.barrier()
        time.sleep(0.3)
    child = group.split_group([0, 1, 2], None, None, "child", "a child")
    kept.append(child.split_group([2, 1]))
    found.append(reported(kept[-1]))
    refused: list[list[int]] = [[], [0, 0], [0, 1, 2, 3]]
    found += [said(functools.partial(group.split_group, ranks)) for ranks in refused]
    found.append(said(lambda: group.split_group([0], None, None, "gpu", "", [torch.device("cuda")])))
    return [*found, own._timeout.total_seconds(), own.group_name, group.group_name, group.group_desc]


def splits_for_all_types() -> list[Any]:
    """Split groups off without types: with them, real torch finds no default type in some processes, by chance."""
    return splits(of_types=False)


def merges() -> list[Any]:
    dist.init_process_group("cpu:gloo", timeout=timedelta(seconds=8))
    rank, group = dist.get_rank(), dist.group.WORLD
    halves: Any = [dist.new_group([0, 1], backend="cpu:gloo"), dist.new_group([2], backend="cpu:gloo")]
    half, store = halves[rank // 2], _dist.PrefixStore("m", group.get_group_store())  # type: ignore[union-attr]
    time.sleep((0.0, 0.8, 0.4)[rank])  # a later caller has a higher rank in the merged group
    found = [reported(half.merge_remote_group(store, 3, SOON, "merged", "all of us"))]
    found.append(said(lambda: half.merge_remote_group(store, 3, SOON).rank()))
    dist.barrier()
    time.sleep((0.0, 0.4, 0.8)[rank])
    others = _dist.PrefixStore("n", group.get_group_store())  # type: ignore[union-attr]
    found.append(said(lambda: reported(half.merge_remote_group(others, 4, timedelta(seconds=1)))))
    found.append(reported(half.merge_remote_group(_dist.HashStore(), 1, SOON)))
    own = half._get_backend(CPU).options
    return [*found, own._timeout.total_seconds(), own.group_name, half.group_name]


ENFORCED = f"RuntimeError: [enforce fail at {Place.RANK_IS_TOO_LARGE.path}] rank < size. "


def simulated(body: Callable[[], list[Any]]) -> list[Any]:
    return values(body, 3)


def test_groups_are_split_off_in_every_form() -> None:
    first, second, third = simulated(splits)

    assert first == [
        (0, 2, "some", "of us", 4.0, "some", 5.0),
        (0, 2, "0:split:[0, 1]", "x", 4.0, "0:split:[0, 1]", 3.0),
        None,
        (0, 2, "cpu", "x", 4.0, "cpu", 3.0),
        (0, 3, "all", "x", 4.0, "all", 7.0),
        None,
        None,
        "RuntimeError: Split ranks cannot be empty. Please provide a non-empty list of ranks to split the group.",
        "RuntimeError: Split ranks should not have duplicates. Please provide a list of unique ranks to split the "
        "group.",
        "RuntimeError: the split group's size should be no larger than the world_size set by init_process_group",
        "RuntimeError: Requested device type for splitGroup is not present in the parent process group: cuda",
        *(4.0, "child:split:[1, 2]", "0", "default_pg"),
    ]
    assert second[2] == (0, 2, "more", "x", 4.0, "more", 6.0)
    assert third[6][:4] == (1, 2, "child:split:[1, 2]", "a child:split:0")


def test_groups_are_merged_in_the_order_in_which_they_come() -> None:
    first, second, third = simulated(merges)

    assert [each[0][:4] for each in (first, third, second)] == [(n, 3, "merged", "all of us") for n in range(3)]
    assert [each[0][-1] for each in (first, second, third)] == [7.0] * 3
    assert {each[1][: len(ENFORCED)] for each in (first, second, third)} == {ENFORCED}
    assert first[2] == second[2] == third[2]
    assert first[2] == "DistStoreError: wait timeout after 1000ms, keys: /default_pg/0//n/0/3"
    assert first[3:] == [(0, 1, "1:merge", "undefined:merge", 4.0, "1:merge", 1.0), 4.0, "1:merge", "1"]


def on_real_gloo(body: Callable[[], list[Any]]) -> list[Any]:
    """Return the ranks' results of the first run in which all return: now and then Gloo loses a connection."""
    for _ in range(6):
        outcomes = run_real(body, 3)
        if all(each.status == "returned" for each in outcomes):
            return [each.value for each in outcomes]
    raise AssertionError(f"ranks never return: {outcomes}")


@pytest.mark.real
@pytest.mark.parametrize("body", [splits_for_all_types, merges])
def test_real_gloo_makes_groups_of_groups_alike(body: Callable[[], list[Any]]) -> None:
    real = on_real_gloo(body)

    for mine, theirs in zip(simulated(body), real, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            if isinstance(one, str) and one.startswith(ENFORCED):
                assert other.startswith(ENFORCED)
            elif isinstance(one, tuple) and ":split:0" in one[3]:  # its count begins with uninitialised memory
                assert (*one[:3], *one[4:]) == (*other[:3], *other[4:])
            else:
                assert one == other


@pytest.mark.parametrize("call", ["split_group", "merge_remote_group"])
def test_what_real_ranks_leave_to_chance_is_refused_with_the_way_out(call: str) -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        group: Any = dist.group.WORLD
        if call == "split_group":
            return said(lambda: group.split_group([0, 1]))
        return said(lambda: group.merge_remote_group(group.get_group_store(), 2))

    for text in simdist.run(body, world_size=2).values:
        assert text.startswith(f"UnsupportedError: {call} of a group whose devices all have Gloo is not simulated")
        assert text.endswith("with backend='cpu:gloo'")


def test_a_group_whose_calls_are_compared_is_split_as_well() -> None:
    def body() -> Any:
        dist.init_process_group("cpu:gloo")
        group: Any = dist.group.WORLD
        merged = group.merge_remote_group(_dist.PrefixStore("m", group.get_group_store()), 2)
        return reported(group.split_group([0, 1], None, None, "all", "x")), merged.size()

    result = simdist.run(body, world_size=2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})

    assert [(*each[0][:4], each[0][-1]) for each in result.values] == [(rank, 2, "all", "x", 3.0) for rank in (0, 1)]


# -- with devices ----------------------------------------------------------------------------------------------------


def of_both(group: Any) -> Any:
    """Return the sums on both kinds of device, and how long each backend waits."""
    if group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
        return None
    found = []
    for device in ("cpu", "cuda"):
        tensor = torch.tensor([2.0 ** int(os.environ["RANK"])], device=device)
        group.allreduce([tensor]).wait()
        found.append((tensor.item(), group._get_backend(torch.device(device)).options._timeout.total_seconds()))
    return found


def run_on_devices(body: Callable[[], Any], size: int = 3) -> simdist.RunResult:
    def main() -> Any:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return body()

    result = simdist.run(main, world_size=size, backend="nccl")
    result.raise_for_failure()
    return result


def test_a_group_of_two_backends_is_split_and_merged() -> None:
    def body() -> list[Any]:
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", int(os.environ["RANK"])))
        group: Any = dist.group.WORLD
        store = _dist.PrefixStore("m", group.get_group_store())
        cuda = [torch.device("cuda")]
        return [
            of_both(dist.split_group(group, [[0, 2]], timeout=SOON)),
            of_both(group.merge_remote_group(store, 3, SOON)),
            said(lambda: dist.split_group(group, [[0, 1]], backend="cpu:gloo")),
            [each.type for each in group.split_group([0, 1, 2], SOON, None, "cuda", "", cuda)._device_types],
        ]

    result = run_on_devices(body)
    first, second, _ = result.values

    # Up to torch 2.13 Gloo's part gets NCCL's options, ignores them, and waits for its default time.
    assert first[0] == [(5.0, 4.0 if VERSION >= (2, 14) else 1800.0), (5.0, 4.0)]
    assert second[0] is None
    assert first[1] == second[1] == [(7.0, 4.0), (7.0, 4.0)]
    assert first[2] == (
        "RuntimeError: splitGroup deviceTypes filter must include the parent process group's default backend device "
        "type."
        if VERSION >= (2, 13)
        else "TypeError: split_group() got an unexpected keyword argument 'backend'"
    )
    assert first[3] == ["cuda"]
    warning = "Warning: Tried to pass options to ProcessGroupGloo::split that are not ProcessGroupGloo::Options.Falling"
    assert [rank.stderr.count(warning) for rank in result.ranks] == ([0, 0, 0] if VERSION >= (2, 14) else [1, 0, 1])


def test_gloo_for_all_devices_can_not_be_split_even_if_it_is_bound() -> None:
    def body() -> Any:
        dist.init_process_group("gloo", device_id=torch.device("cuda", int(os.environ["RANK"])))
        group: Any = dist.group.WORLD
        return group.bound_device_id == torch.device("cuda", dist.get_rank()), said(
            lambda: dist.split_group(None, [[0, 1]])
        )

    for is_bound, text in run_on_devices(body).values:
        assert is_bound
        assert text.startswith("UnsupportedError: split_group of a group whose devices all have Gloo is not simulated")


def test_a_group_that_has_not_connected_is_split_by_its_present_members() -> None:
    def body() -> Any:
        dist.init_process_group("nccl")
        group: Any = dist.group.WORLD
        made = said(lambda: group.split_group([0, 1], SOON, None, "early", ""))
        if isinstance(made, str):
            return made
        tensor = torch.ones(1, device="cuda")
        made.allreduce([tensor]).wait()
        return tensor.item()

    first, second, third = run_on_devices(body).values

    assert (first, second) == (2.0, 2.0)
    assert third.startswith("UnsupportedError: a rank that has no communicator can't take part in a split that leaves")
