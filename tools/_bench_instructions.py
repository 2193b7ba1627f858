"""The number of instructions that one repetition of a hot path executes, counted by valgrind.

On a shared machine wall-clock times scatter by a quarter, counts by a few per cent, so two trees are compared by
counts. A path is run twice, with few and with many repetitions; the difference leaves out Python's start, the imports
and the first calls.

    python tools/bench.py --instructions                      # this tree
    python tools/bench.py --instructions --against ../other   # and another checkout of it

Doubt: valgrind runs one thread at a time and switches by its own rule. So two threads of a kernel ask for the GIL and
hand it over differently than on real cores. Compare a count only with a count of the same kind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 900

_WORLD = """
import simdist, torch, torch.distributed as dist
def main():
    dist.init_process_group("gloo")
    {prepare}
    for _ in range(TIMES):
        {repeat}
    dist.destroy_process_group()
simdist.run(main, world_size={ranks}, stall_s=3600).raise_for_failure()
"""
_DDP = """
import simdist, torch, torch.distributed as dist
from torch import nn
def main():
    dist.init_process_group("gloo")
    layers = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.ones(8, 64), torch.zeros(8, 64)
    for _ in range(TIMES):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    dist.destroy_process_group()
simdist.run(main, world_size=4, stall_s=3600, judges={judges}).raise_for_failure()
"""
_START = """
import simdist, torch, torch.distributed as dist
def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
for _ in range(TIMES):
    simdist.run(main, world_size={ranks}, stall_s=3600).raise_for_failure()
"""


@dataclass(frozen=True, slots=True)
class HotPath:
    """One hot path: a program that repeats it TIMES times, and the two numbers of repetitions."""

    group: str
    what: str
    program: str
    few: int
    many: int


def _calls(what: str, ranks: int, repeat: str, few: int, many: int, prepare: str = "t = torch.ones(1)") -> HotPath:
    return HotPath("b", what, _WORLD.format(prepare=prepare, repeat=repeat, ranks=ranks), few, many)


PATHS = (
    _calls("all_reduce of one float, 4 ranks", 4, "dist.all_reduce(t)", 50, 550),
    _calls("all_reduce of one float, 64 ranks", 64, "dist.all_reduce(t)", 5, 35),
    _calls("broadcast of one float, 4 ranks", 4, "dist.broadcast(t, 0)", 50, 550),
    _calls(
        "a message of one float, 2 ranks",
        2,
        "dist.send(t, 1) if r == 0 else dist.recv(t, 0)",
        50,
        550,
        "t = torch.ones(1); r = dist.get_rank()",
    ),
    HotPath("d", "a DDP step, 3 x 64 MLP, 4 ranks", _DDP.format(judges=False), 5, 45),
    HotPath("d", "the same with all judges on", _DDP.format(judges=True), 5, 45),
    HotPath("a", "start 4 ranks, one all_reduce, tear down", _START.format(ranks=4), 5, 45),
)


def counts(against: Path | None, only: set[str] | None, progress: Callable[[str], None]) -> list[list[str]]:
    """Return the counts of every path as rows of text: here, there, and their ratio; the first row has the titles.

    `only`: the groups to count, as the rows of the benchmark name them.

    Raises:
        RuntimeError: valgrind is missing, or a program failed.
    """
    if shutil.which("valgrind") is None:
        raise RuntimeError("counting instructions needs valgrind on the PATH; install it with the system's packages")
    trees = [ROOT] if against is None else [ROOT, against.resolve()]
    rows = [["instructions for one", "this tree", *(["the other", "this / other"] if against else [])]]
    for path in PATHS:
        if only and path.group not in only:
            continue
        found = [count(path, tree) for tree in trees]
        row = [path.what, *(f"{each:,.0f}".replace(",", " ") for each in found)]
        rows.append([*row, *([f"{found[0] / found[1]:.3f}"] if against else [])])
        progress("  ".join(rows[-1]))  # each takes minutes
    return rows


def count(path: HotPath, tree: Path) -> float:
    """Return the instructions of one repetition of `path` with the simdist of `tree`."""
    with ThreadPoolExecutor(2) as pool:
        few, many = pool.map(lambda times: _collected(path, times, tree), (path.few, path.many))
    return (many - few) / (path.many - path.few)


def _collected(path: HotPath, times: int, tree: Path) -> int:
    environ = os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c"]
    program = f"TIMES = {times}\n{path.program}"
    done = subprocess.run(
        [*command, program], env=environ, cwd=tree, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"{path.what}: exit code {done.returncode}: " + "\n".join(done.stderr.splitlines()[-8:]))
    return int(found[1])
