"""On a build of torch for CUDA no program on virtual devices reaches the driver: a stand-in for it is never called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import simdist
from tests.builds import BUILT_FOR_CUDA

ROOT = Path(simdist.__file__).resolve().parents[1]

# The functions by which libcudart finds all others, and some that torch looks up itself. Each call is recorded.
STAND_IN = """
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *name) {
  int file = open(getenv("SIMDIST_DRIVER_CALLS"), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0 || write(file, name, strlen(name)) < 0) abort();
  close(file);
}
#define CALL(name) int name(void) { note(#name " "); return 100; /* CUDA_ERROR_NO_DEVICE */ }
CALL(cuInit) CALL(cuDriverGetVersion) CALL(cuGetProcAddress) CALL(cuGetProcAddress_v2) CALL(cuGetExportTable)
CALL(cuDeviceGet) CALL(cuDeviceGetCount) CALL(cuCtxGetCurrent) CALL(cuDevicePrimaryCtxGetState)
CALL(cuMemAlloc_v2) CALL(cuMemGetInfo_v2) CALL(cuLaunchKernel) CALL(cuStreamSynchronize) CALL(cuEventRecord)
"""
PROGRAM = """
import simdist, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def body():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 8)
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[rank])
    optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda"):
            loss = model(torch.ones(2, 3, 8, 8, device="cuda")).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    nn.LSTM(4, 4).cuda()(torch.ones(3, 2, 4, device="cuda"))[0].sum().backward()
    query = torch.ones(1, 2, 4, 8, device="cuda", dtype=torch.float64)
    nn.functional.scaled_dot_product_attention(query, query, query)
    nn.functional.rms_norm(torch.ones(2, 4, device="cuda", requires_grad=True), (4,)).sum().backward()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    torch.cuda.synchronize()
    torch.empty(3).pin_memory().cuda(non_blocking=True)
    square = torch.randn(8, 8, device="cuda")
    torch.linalg.svd(square), torch.fft.fft(square), square.sort(), torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    torch.__config__.show()
    return torch.cuda.get_device_capability(), torch.backends.cudnn.is_available(), torch.version.cuda

result = simdist.run(body, world_size=2, backend="nccl")
result.raise_for_failure()
print(result.values[0])
"""
PLAIN = """
import os, simdist, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader
from simdist.world import _no_devices

_no_devices.physical_gpus = lambda: 1  # as if the stand-in had one
nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()  # autograd counts devices, once per process
before = os.path.getsize(os.environ["SIMDIST_DRIVER_CALLS"])

def body():
    dist.init_process_group()
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    for batch in DataLoader(list(torch.ones(8, 4)), batch_size=2, pin_memory=True):
        with torch.random.fork_rng(), torch.autocast("cuda", enabled=torch.cuda.is_available()):
            torch.amp.GradScaler("cuda").scale(model(batch).sum()).backward()
    dcp.save(model.state_dict(), checkpoint_id="checkpoint")
    for ask in (torch.cuda.current_stream, torch.cuda.Stream, lambda: torch.ones(1, device="cuda")):
        try:
            ask()
        except RuntimeError as error:
            print(error)
    return torch.cuda.device_count(), dist.get_backend_config()

result = simdist.run(body, world_size=2)
result.raise_for_failure()
assert result.ranks[0].stdout == "No CUDA GPUs are available\\n" * 3, result.ranks[0].stdout
print(result.values[0], os.path.getsize(os.environ["SIMDIST_DRIVER_CALLS"]) - before)
"""
OUTSIDE = """
import torch

try:
    torch.cuda.init()
except RuntimeError as error:
    print(error)
"""


@pytest.fixture
def kernels() -> None:
    """Use any form of the kernels."""


Caller = Callable[[str], tuple[str, list[str]]]


@pytest.fixture
def calls(tmp_path: Path) -> Caller:
    """A function that runs a program with the stand-in as driver; returns its output, and the functions it called."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "stand_in.c").write_text(STAND_IN)
    build = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "stand_in.c")]
    subprocess.run(build, check=True, capture_output=True)

    def run(program: str) -> tuple[str, list[str]]:
        notes = tmp_path / "calls"
        notes.unlink(missing_ok=True)
        there = {"LD_LIBRARY_PATH": str(tmp_path), "SIMDIST_DRIVER_CALLS": str(notes), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=os.environ | there, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, notes.read_text().split() if notes.exists() else []

    return run


@pytest.mark.skipif(not BUILT_FOR_CUDA, reason="a CPU build has no way to the driver")
def test_no_program_reaches_the_driver(calls: Caller) -> None:
    said, called = calls(PROGRAM)
    _, outside = calls(OUTSIDE)

    assert said.startswith("((9, 0), True, '")
    assert called == []
    assert outside != []  # the stand-in is found, and records calls


@pytest.mark.skipif(not BUILT_FOR_CUDA, reason="a CPU build has no way to the driver")
def test_a_world_without_devices_leaves_a_gpu_of_its_machine_alone(calls: Caller) -> None:
    said, called = calls(PLAIN)

    assert said == "(0, 'cpu:gloo') 0\n"
    assert called != []  # autograd counts devices
