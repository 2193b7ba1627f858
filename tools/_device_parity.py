"""Both arms of `tools/_device_program.py`: virtual devices, and a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["NAMES", "differences", "on_gpu", "simulated", "simulated_by"]

PROGRAM = Path(__file__).with_name("_device_program.py")
PAIR = "two ranks on one GPU over Gloo"
NAMES = ("device errors", "streams and events", "memory", "mixed precision", "generators", PAIR)
_LIMIT_S = 300


def simulated() -> dict[str, Any]:
    """Return the answers of virtual devices. Does not work in a process that has initialised CUDA."""
    import simdist
    from tools._device_program import alone, pair

    cluster = simdist.cluster.build(1, devices_per_host=1)
    one = simdist.run(alone, world_size=1, cluster=cluster)
    one.raise_for_failure()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        two = simdist.run(
            lambda: pair(store, int(os.environ["RANK"])),
            world_size=2,
            cluster=simdist.cluster.build(2, devices_per_host=1),
        )
        two.raise_for_failure()
    (found,) = one.values
    return {**found, PAIR: json.loads(json.dumps(two.values))}


def on_gpu() -> dict[str, Any]:
    """Return the answers of this machine's first GPU."""
    found: dict[str, Any] = json.loads(_last_line(_started("alone")))
    with tempfile.TemporaryDirectory() as folder:
        started = [_started("pair", str(Path(folder) / "store"), rank=rank) for rank in range(2)]
        found[PAIR] = [json.loads(_last_line(each)) for each in started]
    return found


def simulated_by(python: str) -> dict[str, Any]:
    """Return the result of `simulated` in a process of its own, under the given interpreter."""
    code = "import json; from tools._device_parity import simulated; print(json.dumps(simulated()))"
    root = PROGRAM.parents[1]
    done = subprocess.run([python, "-c", code], cwd=root, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def differences(here: Any, there: Any, path: str = "") -> list[str]:
    """List where the simulated and the real answers differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        keys = dict.fromkeys([*here, *there])
        return [line for key in keys for line in differences(here.get(key), there.get(key), f"{path}/{key}")]
    return [] if here == there else [f"{path}: simulated {here!r}, real {there!r}"]


def _started(*words: str, rank: int = 0) -> subprocess.Popen[str]:
    environment = os.environ | {"RANK": str(rank), "CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.Popen([sys.executable, str(PROGRAM), *words], env=environment, stdout=subprocess.PIPE, text=True)


def _last_line(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=_LIMIT_S)
    if process.returncode:
        raise RuntimeError(f"the program ended with exit code {process.returncode}")
    return out.splitlines()[-1]
