"""How an nccl group is made, what torch and programs see of NCCL, and worlds without it."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from simdist.cluster import build
from simdist.inside.torch import Place
from tests.builds import BUILT_FOR_CUDA, NCCL, VERSION
from tests.c10d.nccl.worlds import SAME_DEVICE, join, of, results, run, said
from tests.device.worlds import trained

_nccl: Any = c10d
_dist: Any = dist
nccl: Any = torch.cuda.nccl


def test_a_world_over_nccl_has_a_device_for_each_rank() -> None:
    def body() -> tuple[int, bool]:
        return torch.cuda.device_count(), dist.is_nccl_available()

    assert results(body, 3) == [(3, True)] * 3
    assert results(body, 4, cluster=build(4, hosts=2)) == [(2, True)] * 4
    assert results(body, 1, cluster=build(1, devices_per_host=4)) == [(4, True)]
    assert dist.is_nccl_available() is BUILT_FOR_CUDA
    assert hasattr(dist, "ProcessGroupNCCL") is BUILT_FOR_CUDA


def test_a_rank_that_sees_no_device_is_refused() -> None:
    result = run(lambda: dist.init_process_group("nccl"), 1, env={"CUDA_VISIBLE_DEVICES": ""})

    assert str(result.ranks[0].exception) == "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"


def test_torch_finds_its_nccl() -> None:
    def body() -> list[Any]:
        join()
        group: Any = dist.group.WORLD
        backend = group._get_backend(torch.device("cuda"))
        return [
            nccl.version(),
            dist.get_backend(),
            isinstance(backend, _nccl.ProcessGroupNCCL),
            backend._get_backend_name(),
            backend.supports_splitting and backend.supports_coalescing,
            [each.type for each in group._device_types],
            backend.options._timeout,
        ]

    found = [tuple(map(int, NCCL.split("."))), "nccl", True, "nccl", True, ["cuda"], timedelta(minutes=10)]
    assert results(body, 1) == [found]


def test_the_first_call_waits_for_all_ranks_and_device_id_brings_it_on() -> None:
    def body(device_id: bool) -> tuple[float, float]:
        rank = int(os.environ["RANK"])
        time.sleep(rank)
        begin = time.monotonic()
        join(device_id=torch.device("cuda", rank) if device_id else None)
        made = time.monotonic()
        dist.all_reduce(of(1))
        return round(made - begin, 1), round(time.monotonic() - made, 1)

    assert results(body, args=[False]) == [(0, 1), (0, 0)]
    assert results(body, args=[True]) == [(1, 0), (0, 0)]


def test_two_ranks_on_one_device_are_refused() -> None:
    def body() -> str:
        dist.init_process_group("nccl")
        return said(lambda: dist.all_reduce(torch.ones(1, device="cuda:0")))

    first, second = results(body)

    assert first == (
        f"DistBackendError: NCCL error in: {Place.CALL_FAILED.path_for_cuda}, invalid usage (run "
        f"with NCCL_DEBUG=WARN for details), NCCL version {NCCL}\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        f"Last error:\n{SAME_DEVICE[0]}"
    )
    assert second.endswith(SAME_DEVICE[1])


def test_two_ranks_may_share_a_device_if_their_nccl_lets_them() -> None:
    def body() -> tuple[str, float]:
        dist.init_process_group("nccl")
        tensor = torch.ones(1, device="cuda:0")
        return said(lambda: dist.all_reduce(tensor)), tensor.item()

    values = results(body, env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})

    if VERSION < (2, 14):
        assert [SAME_DEVICE[0] in values[0][0], SAME_DEVICE[1] in values[1][0]] == [True, True]
    else:
        assert values == [("nothing", 2)] * 2


def _of_job(number: int, dumps: str) -> tuple[int, float]:
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", MASTER_PORT="29777")
    os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = dumps
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    join()
    dist.barrier()  # without a device: torch guesses one by the rank
    tensor = of(number + 1.0)
    dist.all_reduce(tensor)
    return tensor.device.index, tensor.item()


@pytest.mark.filterwarnings("ignore:barrier")
def test_a_job_that_a_rank_starts_guesses_devices_by_its_own_ranks(tmp_path: Path) -> None:
    def body() -> list[tuple[int, float]]:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            return list(pool.map(_of_job, range(2), [f"{tmp_path}/dump"] * 2))

    assert results(body, 1, cluster=build(1, devices_per_host=2)) == [[(0, 3.0), (1, 3.0)]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump0.pipe", "dump1.pipe"]


def test_another_device_than_the_bound_one_is_refused() -> None:
    def body() -> str:
        rank = join(device_id=torch.device("cuda", int(os.environ["RANK"])))
        return said(lambda: dist.all_reduce(torch.ones(1, device=f"cuda:{1 - rank}")))

    result = run(body)

    text = "Attempt to perform collective on tensor not on device passed to init_process_group"
    assert result.values == [f"DistBackendError: {text}"] * 2
    assert "Tensor found on device cuda:1 but backend constrained to cuda:0" in result.ranks[0].stderr


@pytest.mark.parametrize("named", [True, False])
def test_groups_that_never_met_merge_at_a_store(named: bool) -> None:
    def body() -> list[Any]:
        join()
        rank = dist.get_rank()
        halves: Any = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        half = halves[rank // 2]
        time.sleep((0, 2, 1, 3)[rank])  # a later caller has a higher rank in the merged group
        store = _dist.TCPStore("host0", 29781, is_master=rank == 0, wait_for_workers=False)
        names = {"group_name": "merged", "group_desc": "all of us"} if named else {}
        merged = half.merge_remote_group(store, 4, timedelta(seconds=40), **names)
        tensor = of(1.0 + rank)
        merged.allreduce([tensor]).wait()
        backend = merged._get_backend(torch.device("cuda"))
        gathered = [torch.empty(1, device="cuda") for _ in range(4)]
        merged.allgather([gathered], [of(float(rank))]).wait()
        order = [int(each.item()) for each in gathered]
        assert backend.options._timeout == timedelta(seconds=40)
        assert half.allreduce([of(1.0)]) is not None
        return [merged.rank(), merged.size(), tensor.item(), order, merged.group_name, merged.group_desc]

    name, description = ("merged", "all of us") if named else ("1:merge", "undefined:merge")
    found = results(body, 4)

    assert [each[:4] for each in found] == [[place, 4, 10.0, [0, 2, 1, 3]] for place in (0, 2, 1, 3)]
    assert found[0][4:] == [name, description]


def test_the_default_is_the_backend_of_the_accelerator() -> None:
    def body() -> list[Any]:
        rank = join(None)
        tensor = of(rank)
        dist.all_reduce(tensor)
        group: Any = dist.group.WORLD
        return [tensor.item(), [each.type for each in group._device_types], group.name()]

    assert results(body) == [[1, ["cuda"], "nccl"]] * 2
    assert results(body, backend="gloo", cluster=build(2, devices_per_host=2)) == [[1, ["cuda"], "nccl"]] * 2


def test_one_group_has_gloo_for_the_cpu_and_nccl_for_devices() -> None:
    def body(backend: str) -> list[Any]:
        rank = join(backend)
        group: Any = dist.group.WORLD
        on_cpu, on_device = torch.tensor([float(rank)]), of(rank)
        dist.all_reduce(on_cpu)
        dist.all_reduce(on_device)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, rank)
        dist.barrier()
        group.monitored_barrier()
        own = dist.new_group([rank], use_local_synchronization=True)
        return [
            on_cpu.item(),
            on_device.item(),
            objects,
            group._get_backend("cpu").name(),
            group._get_backend("cuda").name(),
            [each.type for each in group._device_types],
            own._get_backend(torch.device("cuda")).name(),
            said(lambda: group._get_backend("xpu")),
        ]

    refused = "RuntimeError: No backend type associated with device type xpu"
    expected = [1, 1, [0, 1], "gloo", "nccl", ["cpu", "cuda"], "nccl", refused]
    assert results(body, args=["cpu:gloo,cuda:nccl"]) == [expected] * 2
    turned = [*expected[:5], ["cuda", "cpu"], *expected[6:]]
    assert results(body, args=["cuda:nccl,cpu:gloo"]) == [turned] * 2


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"])
def test_a_mesh_splits_a_bound_group_of_two_backends(backend: str) -> None:
    def body() -> list[Any]:
        rank = int(os.environ["RANK"])
        device = torch.device("cuda", rank)
        dist.init_process_group(backend, device_id=device)
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        found: list[Any] = []
        for name in ("replicate", "shard"):
            tensor = torch.tensor([float(rank)], device=device)
            dist.all_reduce(tensor, group=mesh.get_group(name))
            found.append(tensor.item())
        default: Any = dist.group.WORLD
        return [*found, default._get_backend(device).comm_split_count()]

    assert results(body, 4) == [[2, 1, 2], [4, 1, 2], [2, 5, 2], [4, 5, 2]]


def test_ddp_on_devices_over_nccl_ends_with_the_bits_of_gloo_on_the_cpu() -> None:
    def body() -> tuple[Any, Any]:
        rank = join("cpu:gloo,cuda:nccl")
        return trained(f"cuda:{rank}", [rank], 3), trained("cpu", None, 3)

    everything = [numbers for result in results(body) for numbers in result]

    for numbers in everything[1:]:
        assert all(torch.equal(one, other) for one, other in zip(everything[0], numbers, strict=True))


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4, 4)])
def test_synchronized_batch_norm_is_that_of_the_whole_batch(shape: tuple[int, ...]) -> None:
    def body() -> list[torch.Tensor]:
        rank = join()
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        part = (whole[:2] if rank == 0 else whole[2:]).cuda().requires_grad_()
        norm = nn.SyncBatchNorm(3).cuda()
        out = norm(part)
        (out * torch.arange(out.numel(), device="cuda").view_as(out)).sum().backward()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        found: list[Any] = [out, norm.running_mean, norm.running_var, part.grad]
        return [each.detach().cpu() for each in found]

    first, second = results(body)

    whole = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    norm: Any = nn.BatchNorm2d(3) if len(shape) == 4 else nn.BatchNorm1d(3)
    out: Any = norm(whole)
    weights = [torch.arange(each.numel(), dtype=torch.float32).view_as(each) for each in (first[0], second[0])]
    (out * torch.cat(weights)).sum().backward()
    assert whole.grad is not None
    assert torch.allclose(torch.cat([first[0], second[0]]), out.detach(), atol=1e-6)
    assert torch.allclose(first[1], norm.running_mean)
    assert torch.allclose(second[2], norm.running_var, atol=1e-6)
    assert torch.allclose(torch.cat([first[3], second[3]]), whole.grad, atol=1e-4)


def test_a_mesh_selects_the_device_of_a_program_that_has_not_used_cuda() -> None:
    def body() -> tuple[bool, int]:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=device)
        cuda: Any = torch.cuda
        begun = cuda.is_initialized()
        init_device_mesh("cuda", (2,))
        return begun, torch.cuda.current_device()

    assert results(body) == [(False, 0), (False, 1)]


def test_a_communicator_s_first_rank_is_awaited_as_long_as_the_store_waits() -> None:
    def body() -> str:
        rank = join(timeout=timedelta(seconds=20))
        if rank == 0:
            time.sleep(30)
            return ""
        return said(lambda: dist.all_reduce(of(1)))

    _, second = results(body)

    assert second == (
        "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: wait timeout after 20000ms, keys: /default_pg/0//cuda//0. "
        "This may indicate a possible application crash on rank 0 or a network set up issue."
    )


def test_another_rank_of_a_communicator_is_waited_for_without_end() -> None:
    def body() -> None:
        if join(timeout=timedelta(seconds=20)) == 0:
            dist.all_reduce(of(1))
        else:
            time.sleep(300)

    result = run(body)

    assert [rank.status for rank in result.ranks] == ["hung", "returned"]
    assert result.ranks[0].waiting == "making a communicator of group '0'; not there yet: [1]"


@pytest.mark.parametrize("eager", [False, True])
def test_a_message_outside_of_a_batch_is_warned_of_once(eager: bool) -> None:
    def body() -> None:
        rank = join(device_id=torch.device("cuda", int(os.environ["RANK"])) if eager else None)
        for _ in range(2):
            if rank == 0:
                dist.send(of(1), 1)
            else:
                dist.recv(of(1), 0)
        dist.destroy_process_group()

    result = run(body)

    (line,) = result.ranks[0].stderr.splitlines()
    said_of_it = "thus serialized with all other ops" if eager else "a new 2-rank NCCL communicator to be created."
    assert "An unbatched P2P op (send/recv) was called on this ProcessGroup with size 2.  In " in line
    assert said_of_it in line
