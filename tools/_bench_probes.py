"""Measurements, each made on one side in a fresh process: `python tools/_bench_probes.py '{"probe": ...}'`.

The last line of the output is a JSON object of figures. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import _bench_bodies as bodies
from tools._bench_sides import SIDES, Launcher

ROOT = Path(__file__).resolve().parents[1]
Figures = dict[str, float]


def start(launch: Launcher, ranks: int, repeat: int) -> Figures:
    """Measure a world with one all_reduce, start and end included; imports and the first world are warm-up."""
    launch(bodies.one_all_reduce, ranks)
    return {"seconds": statistics.median([_seconds(launch, ranks) for _ in range(repeat)])}


def calls(launch: Launcher, ranks: int, calls: int, repeat: int, name: str = "all_reduce") -> Figures:
    """Measure blocking calls of a collective with one float; a call is done when every rank has done it."""
    stamps = launch(partial(bodies.small_calls, name, calls, repeat), ranks)
    return {"per_second": calls / _median_batch(stamps)}


def bandwidth(launch: Launcher, ranks: int, elements: int, repeat: int) -> Figures:
    """Measure a large all_reduce: input bytes of all ranks per second, and peak memory beyond one rank's payload."""
    values: list[tuple[bodies.Stamps, bodies.Memory]] = launch(partial(bodies.big_all_reduce, elements, repeat), ranks)
    seconds = _median_batch([stamps for stamps, _ in values])
    memory = [memory for _, memory in values]
    # One process: every rank reads the same figures. Several: each pays for its own.
    several = launch is SIDES["gloo"]
    extra = sum(m.peak - m.before for m in memory) if several else memory[0].peak - memory[0].before
    return {
        "bytes_per_second": 4 * elements * ranks / seconds,
        "extra_bytes": float(extra),
        "extra_payloads": extra / (4 * elements),
    }


def bandwidth_local_tensor(ranks: int, elements: int, repeat: int) -> Figures:
    """Measure the same in torch's LocalTensor mode, which launches no ranks: one tensor holds every rank's shard."""
    import torch
    import torch.distributed as dist
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    with LocalTensorMode(frozenset(range(ranks))) as mode:
        tensor = mode.rank_map(lambda rank: torch.ones(elements))
        bodies.reset_peak()
        before = bodies.resident_bytes("VmRSS")
        seconds = _median_batch([bodies.batches(lambda: dist.all_reduce(tensor), 1, repeat)])
    extra = bodies.resident_bytes("VmHWM") - before
    return {
        "bytes_per_second": 4 * elements * ranks / seconds,
        "extra_bytes": float(extra),
        "extra_payloads": extra / (4 * elements),
    }


def ddp(launch: Launcher, ranks: int, steps: int, repeat: int) -> Figures:
    """Measure DDP training steps; a step is done when every rank has done it."""
    return {"per_second": steps / _median_batch(launch(partial(bodies.ddp_steps, steps, repeat), ranks))}


def ddp_judged(ranks: int, steps: int, repeat: int) -> Figures:
    """Measure DDP training steps with all judges and without, in worlds in turn, and the median ratio of each pair."""
    from simdist import run

    def seconds(*, judges: bool) -> float:
        result = run(_ddp_in_group, world_size=ranks, args=(steps,), judges=judges)
        result.raise_for_failure()
        return _median_batch(result.values) / steps

    pairs = [(seconds(judges=False), seconds(judges=True)) for _ in range(repeat + 1)][1:]  # the first pair imports
    return {
        "per_second": 1 / statistics.median(judged for _, judged in pairs),
        "ratio": statistics.median(judged / plain for plain, judged in pairs),
    }


def _ddp_in_group(steps: int) -> bodies.Stamps:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return bodies.ddp_steps(steps, 1)


def world(launch: Launcher, ranks: int) -> Figures:
    """Measure one large world, in a process that has only run a tiny one before."""
    launch(bodies.one_all_reduce, 2)
    before = bodies.resident_bytes("VmRSS")
    seconds = _seconds(launch, ranks)
    peak = bodies.resident_bytes("VmHWM")
    return {"seconds": seconds, "peak_bytes": float(peak), "growth_bytes": float(peak - before)}


def timeout(repeat: int) -> Figures:
    """Measure the real time until a 30-minute timeout is reported: one of four ranks never calls."""
    from simdist import run

    results = [run(_all_but_rank_1, world_size=4)]
    seconds = []
    for _ in range(repeat):
        begin = bodies.real_clock()
        results.append(run(_all_but_rank_1, world_size=4))
        seconds.append(bodies.real_clock() - begin)
    for result in results:
        raised = [rank.rank for rank in result.ranks if rank.status == "raised"]
        if raised != [0, 2, 3]:
            raise RuntimeError(f"expected ranks 0, 2 and 3 to time out; got {result.summary()}")
    return {"seconds": statistics.median(seconds), "virtual_seconds": results[-1].virtual_time_ns / 1e9}


def faulted(runs: int, processes: int) -> Figures:
    """Measure runs of 10 DDP steps, each with another fault, in several processes at once."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        list(pool.map(_faulted_runs, [2] * processes, range(processes)))  # imports, and the first world
        begin = time.perf_counter()
        struck = sum(pool.map(_faulted_runs, [runs] * processes, range(1, processes + 1)))
        seconds = time.perf_counter() - begin
    if struck < runs * processes // 2:
        raise RuntimeError(f"only {struck} of {runs * processes} faults struck")
    return {"per_minute": 60 * runs * processes / seconds, "struck": float(struck)}


def _faulted_runs(runs: int, seed: int) -> int:
    """Return how many of the faults struck."""
    from simdist import run
    from simdist.faults import Crash, Fault, Hang, Raise

    draw, struck = random.Random(seed), 0
    for number in range(runs):
        kind: Any = draw.choice((Crash, Hang, Raise))
        given: dict[str, Any] = {"rank": draw.randrange(4), "op": "all_reduce", "nth": draw.randint(1, 12)}
        if kind is Hang:
            given["duration_ns"] = draw.choice((None, 10**6, 10**9))
        elif kind is Crash:
            given["when"] = draw.choice(("before", "during", "after"))
        fault: Fault = kind(**given, optional=True)
        result = run(bodies.ten_ddp_steps, world_size=4, seed=number, faults=[fault])
        struck += sum(event.kind == "fault" for event in result.events)
    return struck


def import_simdist(repeat: int) -> Figures:
    """Measure `import simdist` in a fresh interpreter without torch."""
    code = (
        "import time, sys; begin = time.perf_counter(); import simdist; "
        "print(time.perf_counter() - begin, int('torch' in sys.modules))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(repeat)
    ]
    return {
        "seconds": statistics.median(float(seconds) for seconds, _ in runs),
        "torch_imported": float(max(int(flag) for _, flag in runs)),
    }


def collect(tests: int, repeat: int) -> Figures:
    """Measure the processor time (medians) that the pytest plugin adds to collecting tests that do not use it."""
    functions = "\n".join(f"@pytest.mark.parametrize('x', range(5))\ndef test_{n}(x, tmp_path): ..." for n in range(20))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(tests // 100):
            (Path(folder) / f"test_{number}.py").write_text(f"import pytest\n{functions}\n")
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * repeat + 2):
            used = turn % 2 == 0
            spent = _pytest(folder, "--collect-only", plugin=used)
            if turn > 1:  # the first run of each kind writes the caches
                seconds[used].append(spent)
    with_it, without = statistics.median(seconds[True]), statistics.median(seconds[False])
    return {"seconds": with_it, "added": with_it - without}


def tests(tests: int) -> Figures:
    """Measure tests of a 4-rank world in one pytest process: real seconds of the process, and of the tests in it."""
    source = "import pytest, torch, torch.distributed as dist\n" + "\n".join(
        f"""
@pytest.mark.simdist(world_size=4)
def test_{n}(rank):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == 6
"""
        for n in range(tests)
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_it.py").write_text(source)
        begin = bodies.real_clock()
        _pytest(folder, "--junitxml=out.xml", plugin=True)
        seconds = bodies.real_clock() - begin
        report = (Path(folder) / "out.xml").read_text()
    if f'tests="{tests}"' not in report or 'failures="0"' not in report or 'errors="0"' not in report:
        raise RuntimeError(report[:2000])
    return {
        "seconds": seconds,
        "tests_seconds": sum(map(float, re.findall(r'<testcase [^>]*time="([0-9.]+)"', report))),
    }


def _pytest(folder: str, *arguments: str, plugin: bool) -> float:
    """Run pytest in `folder`, with or without the plugin, and return the processor time that it took."""
    named = ["-p", "simdist.testing.plugin"] if plugin else ["-p", "no:simdist"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *named,
        f"--rootdir={folder}",
        *arguments,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def suite(arm: str, repeat: int) -> Figures:
    """Measure one arm of `tools/suite.py`."""
    from tools.suite import SUITES, run_suites

    return {"seconds": statistics.median(run_suites(SUITES, arm)["seconds"] for _ in range(repeat))}


def _build_kernels() -> None:
    """Build the kernels in C++ if the environment asks for them and there are none yet."""
    from simdist.device import build_kernels, built_kernels

    if os.environ.get("SIMDIST_DEVICE_KERNELS") == "compiled" and not built_kernels().exists():
        build_kernels()


def device_operation(calls: int, repeat: int) -> Figures:
    """Measure one small operation on a virtual device, and on the CPU in a world without devices."""
    from simdist import run
    from simdist.cluster import build

    _build_kernels()
    figures = {}
    for name, device, devices in (("cpu_seconds", "cpu", 0), ("seconds", "cuda", 1)):
        body = partial(bodies.additions, calls, repeat, device)
        result = run(body, world_size=1, cluster=build(1, devices_per_host=devices))
        result.raise_for_failure()
        (figures[name],) = result.values
    return figures


def device_ddp(ranks: int, steps: int, repeat: int) -> Figures:
    """Measure DDP training steps on virtual devices, and on the CPU in a world without devices."""
    from simdist import run
    from simdist.cluster import build

    def in_group(device: str) -> bodies.Stamps:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return bodies.ddp_steps(steps, repeat, device)

    _build_kernels()
    figures = {}
    for name, device, devices in (("cpu_per_second", "cpu", 0), ("per_second", "cuda", ranks)):
        result = run(partial(in_group, device), world_size=ranks, cluster=build(ranks, devices_per_host=devices))
        result.raise_for_failure()
        figures[name] = steps / _median_batch(result.values)
    return figures


def disk_save(megabytes: int, count: int) -> Figures:
    """Measure `torch.save` to a simulated disk, and to a real folder."""
    from simdist import run

    with tempfile.TemporaryDirectory() as folder:
        real = bodies.save_checkpoints(folder, count, megabytes)
    with tempfile.TemporaryDirectory() as folder:
        result = run(bodies.save_checkpoints, world_size=1, args=(folder, count, megabytes), disk=folder, stall_s=600)
    result.raise_for_failure()
    return {"real_seconds": real, "seconds": result.values[0]}


def disk_memory(megabytes: int, count: int, *, sync: bool) -> Figures:
    """Measure the peak memory of a process beyond one checkpoint, while it saves many to a simulated disk."""
    from simdist import run

    save: Callable[..., object] = bodies.save_checkpoints if sync else bodies.save_carelessly

    with tempfile.TemporaryDirectory() as folder:
        bodies.save_checkpoints(folder, 1, megabytes)
        bodies.reset_peak()
        before = bodies.resident_bytes("VmRSS")
        result = run(save, world_size=1, args=(folder, count, megabytes), disk=folder, stall_s=600)
    result.raise_for_failure()
    return {"bytes": bodies.resident_bytes("VmHWM") - before, "saved_bytes": count * megabytes * 2**20}


PROBES: dict[str, Callable[..., Figures]] = {
    "start": start,
    "calls": calls,
    "bandwidth": bandwidth,
    "bandwidth-local-tensor": bandwidth_local_tensor,
    "ddp": ddp,
    "ddp-judged": ddp_judged,
    "world": world,
    "timeout": timeout,
    "faulted": faulted,
    "import": import_simdist,
    "collect": collect,
    "tests": tests,
    "suite": suite,
    "device-operation": device_operation,
    "device-ddp": device_ddp,
    "disk-save": disk_save,
    "disk-memory": disk_memory,
}


def _all_but_rank_1() -> None:
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(2 * 3600)
        return
    dist.all_reduce(torch.ones(4))


def _seconds(launch: Launcher, ranks: int) -> float:
    begin = bodies.real_clock()
    launch(bodies.one_all_reduce, ranks)
    return bodies.real_clock() - begin


def _median_batch(stamps: Sequence[bodies.Stamps]) -> float:
    """Return the median duration of a batch, from the first rank that begins it to the last that ends it."""
    durations = [max(end for _, end in batch) - min(begin for begin, _ in batch) for batch in zip(*stamps, strict=True)]
    return float(statistics.median(durations))


def main(request: dict[str, Any]) -> None:
    """Make one measurement and print it."""
    probe = PROBES[request.pop("probe")]
    side = request.pop("side", None)
    figures = probe(**request) if side is None else probe(SIDES[side], **request)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
