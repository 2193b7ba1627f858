"""A world with devices leaves nothing behind, and a world without devices shows nothing of them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.errors import TopologyError, UnsupportedError
from tests.beside import wait_for_host
from tests.builds import NO_NCCL
from tests.device.worlds import cuda, values
from tests.warm import Interpreters


@pytest.fixture
def kernels() -> None:
    """Use any form of the kernels: it does not affect what a world leaves behind."""


BUILT_FOR_CUDA = torch.version.cuda is not None
NOT_COMPILED, NO_DRIVER = "Torch not compiled with CUDA enabled", "Found no NVIDIA driver"
TOO_OLD = "CUDA driver version is insufficient"  # a CUDA build's error if it does not look for a driver first
WORDS = NO_DRIVER if BUILT_FOR_CUDA else NOT_COMPILED
# Operators with a kernel for both kinds of devices, for CUDA only, and composite ones on the CPU.
OPERATORS = ("aten::add.Tensor", "aten::_cudnn_rnn", "aten::_foreach_add.List", "aten::empty.memory_format", "aten::mm")


def surroundings() -> dict[str, object]:
    """Return all answers to whether there is CUDA, and everything that a world with devices replaces."""
    names: Any = torch._C
    cudnn: Any = vars(torch.backends.cudnn)["m"]
    return {
        "available": torch.cuda.is_available(),
        "accelerator": torch.accelerator.is_available(),
        "current": str(torch.accelerator.current_accelerator()),
        "count": torch.cuda.device_count(),
        "begun": torch.cuda.is_initialized(),
        "built": torch.backends.cuda.is_built(),
        "version": torch.version.cuda,
        "names": sorted(name for name in dir(names) if "cuda" in name.lower() or name.startswith("_accelerator")),
        "objects": [id(getattr(names, name)) for name in dir(names) if name.startswith("_accelerator")],
        "module": {name: id(value) for name, value in vars(torch.cuda).items()},
        "streams": {name: id(value) for name, value in vars(torch.cuda.streams).items()},
        "storage": {name: id(value) for name, value in vars(torch.UntypedStorage).items() if name != "__doc__"},
        "generator": (torch.Generator, names.Generator),
        "bases": [id(vars(each.__mro__[1])["__new__"]) for each in (torch.cuda.Stream, torch.cuda.Event)],
        "marks": id(vars(torch.cuda.nvtx)["_nvtx"]),
        "cudnn": id(cudnn.is_acceptable),
        "logger": id(torch._C._distributed_c10d.Logger.set_runtime_stats_and_log),
        "threads": threading.active_count(),
        "bindings": {name: id(value) for name, value in vars(names).items() if name.startswith(("_cuda_", "_nccl_"))},
        "kernels": [torch._C._dispatch_dump(name) for name in OPERATORS] if BUILT_FOR_CUDA else [],
        "loaded": torch.backends.cudnn.is_available(),
    }


def changes(before: Any, after: Any) -> Any:
    """Return only the differences, by key and by line, so that a failure names them."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        return {key: changes(before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return {
            at: changes(one, other) for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other
        }
    if isinstance(before, str) and isinstance(after, str):
        lines = before.splitlines(), after.splitlines()
        return [f"- {each}" for each in lines[0] if each not in lines[1]] + [
            f"+ {each}" for each in lines[1] if each not in lines[0]
        ]
    return (before, after) if before != after else {}


def test_nothing_is_left_of_a_world_with_devices() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        weight = torch.ones(3, device="cuda", requires_grad=True)
        (weight * 2).sum().backward()
        torch.cuda.Stream().synchronize()
        torch.manual_seed(5)
        return float(weight.detach().sum())

    for _ in range(2 if BUILT_FOR_CUDA else 0):
        gc.collect()  # the kernels of an earlier world live until the collection after that of its tensors
    torch.manual_seed(1)
    state = torch.get_rng_state()
    before = surroundings()
    values(body, world_size=2)

    assert changes(before, surroundings()) == {}
    assert torch.equal(torch.get_rng_state(), state)
    for use in (
        lambda: torch.ones(1, device="cuda"),
        lambda: torch.ones(1).cuda(),
        lambda: torch.ones(1).to("cuda:1"),
        lambda: torch.cuda.current_device(),
    ):
        with pytest.raises((AssertionError, RuntimeError), match=WORDS):
            use()
    with pytest.raises(RuntimeError, match=NO_DRIVER if BUILT_FOR_CUDA else "accelerator"):
        torch.empty(1, pin_memory=True)


def test_another_thread_finds_no_device_while_a_world_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 1)  # as on a machine with a GPU
    seen: list[object] = []

    def look() -> None:
        seen.extend([torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available()])
        seen.append(torch.Generator().device.type)

    def body() -> None:
        torch.ones(1, device="cuda")
        asked.set()
        wait_for_host(answered)

    asked, answered = threading.Event(), threading.Event()

    def wait_and_look() -> None:
        asked.wait()
        look()
        answered.set()

    thread = threading.Thread(target=wait_and_look)
    thread.start()
    values(body)
    thread.join()

    assert seen == [False, 0, False, "cpu"]


def init_nccl() -> None:
    dist.init_process_group("nccl")


@pytest.mark.filterwarnings("ignore:Attempted to get default timeout")
@pytest.mark.parametrize(
    ("body", "words", "words_of_cuda_build"),
    [
        (lambda: torch.ones(1, device="cuda"), NOT_COMPILED, NO_DRIVER),
        (lambda: torch.cuda.set_device(0), "has no attribute '_cuda_setDevice'", NO_DRIVER),
        (lambda: torch.cuda.Event().record(), "Tried to instantiate dummy base class Event", NO_DRIVER),
        (lambda: torch.cuda.Stream(), "requires CUDA support", TOO_OLD),
        (lambda: torch.ones(1).to(0), "Cannot access accelerator device when none is available", NO_DRIVER),
        (lambda: torch.Generator("cuda"), "Cannot get CUDA generator", TOO_OLD),
        (init_nccl, "Distributed package doesn't have NCCL built in", NO_NCCL),
        (
            lambda: dist.init_process_group("nccl", device_id=torch.device("cuda:0")),
            "does not match the current compilation's accelerator support: None",
            "less than the number of accelerators available: 0",
        ),
    ],
)
def test_a_world_without_devices_says_how_to_have_some(body: Any, words: str, words_of_cuda_build: str) -> None:
    assert not torch.cuda.is_available()

    (rank,) = simdist.run(body, world_size=1).ranks

    assert (words_of_cuda_build if BUILT_FOR_CUDA else words) in str(rank.exception)
    assert 'this world has no devices; backend="nccl" for the world, or devices_per_host in its cluster' in rank.stderr


def test_an_error_of_another_kind_is_not_explained() -> None:
    def body() -> None:
        raise RuntimeError("shapes differ")

    (rank,) = simdist.run(body, world_size=1).ranks

    assert "this world has no devices" not in rank.stderr


@pytest.mark.real  # starts an interpreter
def test_a_world_without_devices_does_not_even_import_them() -> None:
    code = """
import sys, simdist, torch, torch.distributed as dist
def body():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
simdist.run(body, world_size=2).raise_for_failure()
print([name for name in sys.modules if name.startswith(("simdist.device", "simdist.c10d.backends.nccl"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)

    assert done.stdout == "[]\n", done.stderr


def test_a_world_on_the_cpu_is_the_same_with_devices_and_without() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        numbers = torch.randn(100)
        dist.all_reduce(numbers)
        return numbers.tolist()

    without = simdist.run(body, world_size=2, cluster=build(2))
    with_devices = simdist.run(body, world_size=2, cluster=build(2, devices_per_host=2))

    assert with_devices.digest == without.digest
    assert with_devices.values == without.values


@pytest.mark.real  # starts interpreters
def test_autograd_runs_in_forked_processes_after_a_world_with_devices() -> None:
    code = """
import os, torch, simdist
from simdist.cluster import build
simdist.run(lambda: torch.ones(1, device="cuda", requires_grad=True).sum().backward(), world_size=1,
            cluster=build(1, devices_per_host=1)).raise_for_failure()
pid = os.fork()
if not pid:
    torch.ones(1, requires_grad=True).sum().backward()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)

    assert done.stdout == "7\n", done.stderr


def test_a_process_that_has_begun_to_use_a_gpu_is_refused_virtual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    with pytest.raises(UnsupportedError, match="this process has begun to use CUDA"):
        values(lambda: None)


def test_a_build_for_other_gpus_is_refused_virtual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")

    with pytest.raises(UnsupportedError, match="built for ROCm"):
        values(lambda: None)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"devices_per_host": 9},
            "devices_per_host: 9 is too large; the most is 8, for torch's device guard knows no more",
        ),
        ({"devices_per_host": -1}, "devices_per_host: -1 is too small; the least is 0"),
        ({"devices_per_host": "rank"}, "'rank' is no number; expected one, or 'ranks'; did you mean 'ranks'?"),
        ({"device_memory_bytes": 0}, "device_memory_bytes: 0 is too small; the least is 1"),
        (
            {"devices_per_host": "ranks"},
            "host0 has 9 ranks, and a device for each would be too many; the most is 8, so spread them over 2 hosts or "
            "more, or share fewer devices",
        ),
    ],
)
def test_what_is_no_number_of_devices_is_reported(settings: Any, problem: str) -> None:
    with pytest.raises(TopologyError) as caught:
        build(9, **settings)

    assert problem in str(caught.value)


def test_every_topology_can_have_devices() -> None:
    def body() -> tuple[int, int]:
        return torch.cuda.device_count(), torch.cuda.mem_get_info(0)[1]

    settings: dict[str, dict[str, int]] = {
        "uniform": {},
        "one_host": {},
        "switched": {"hosts": 2},
        "rail_optimised": {"gpus_per_host": 2},
        "fat_tree": {"hosts": 4, "hosts_per_leaf": 2},
    }
    for name, more in settings.items():
        cluster = simdist.cluster.make(4, topology=name, devices_per_host=2, device_memory_bytes=1 << 30, **more)

        assert simdist.run(body, world_size=4, cluster=cluster).values == [(2, 1 << 30)] * 4


def test_nothing_of_a_device_reaches_a_tensor_of_the_cpu() -> None:
    values(lambda: torch.ones(1, device=cuda(0)))
    before = torch.arange(4.0)

    assert torch.equal((before + 1) @ before, torch.tensor(20.0))
    assert before.storage_offset() == 0


_TO_THE_END = """
import builtins
import torch
import simdist

def pinned():
    return torch.ones(4).pin_memory()

def all_kinds():
    tensor = torch.ones(4, device="cuda", requires_grad=True)
    return pinned()[1:], tensor, tensor * 2, torch.cuda.Stream(), torch.cuda.Event(), torch.Generator("cuda")

results = [simdist.run(body, world_size=2, backend="nccl") for body in (pinned, all_kinds)]
builtins.kept = [simdist.run(body, world_size=2, backend="nccl") for body in (pinned, all_kinds)]
assert all(result.ok for result in (*results, *builtins.kept))
"""


def test_tensors_that_are_kept_to_the_end_of_the_process_end_with_it(interpreters: Interpreters) -> None:
    ended = interpreters.run([sys.executable, "-c", _TO_THE_END], ends=True)

    assert (ended.returncode, ended.stderr) == (0, "")
