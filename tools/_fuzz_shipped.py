"""Random plans of faults for the shipped scenarios: every run must end with a verdict, and leave nothing behind.

How a scenario copes with its faults does not matter here: a program that loses its checkpoint is a finding for
`simdist fuzz`, but not for this tool. A share of the plans runs a second time in other processes, under other hash
seeds, and must have the same digest.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from simdist.errors import SimdistError
from simdist.faults import Surroundings
from simdist.scenario import load, undisturbed
from simdist.searches import Attempt, PlanProgram, Trial, families_of, plan_of_faults
from tools._fuzz_judge import LONGEST_S, Finding, host_state

__all__ = ["ROOT", "Shipped", "digests", "limit_memory", "run_shipped"]

ROOT = Path(__file__).resolve().parents[1]
_BUDGET = 2  # ranks that a plan strikes
_AT_ONCE = 25  # plans that a process repeats
_SHOW_S = 60.0
_MOST_BYTES = 8 << 30  # a bit flip in the size of an object makes its ranks ask for multiples of 4 GiB


@dataclass(slots=True)
class Shipped:
    """The scenarios that can be run here, and the verdicts of their runs."""

    scenarios: list[Path] = field(default_factory=lambda: Shipped.files())
    left_out: dict[str, str] = field(default_factory=dict)  # why a scenario can't be run
    verdicts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    @staticmethod
    def files() -> list[Path]:
        """Return the files of all shipped scenarios."""
        return sorted((ROOT / "scenarios").glob("*.toml"))

    def run(self, numbers: Sequence[int]) -> Iterator[tuple[int, Path, str, Finding | None]]:
        """Try the plans with these numbers, scenario by scenario; yields each plan's digest and what is wrong."""
        for place, path in enumerate(self.scenarios):
            mine = [number for number in numbers if number % len(self.scenarios) == place]
            if mine:
                yield from self._run_scenario(path, mine)

    def _run_scenario(self, path: Path, numbers: Sequence[int]) -> Iterator[tuple[int, Path, str, Finding | None]]:
        program = PlanProgram(undisturbed(load(str(path))))
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(program.ready())
            trial = Trial(program)
            if trial.first.result is None:
                self.left_out[path.stem] = str(trial.first.error)
                return
            for number in numbers:
                yield number, path, *self._try(trial, number)

    def _try(self, trial: Trial, number: int) -> tuple[str, Finding | None]:
        attempt = _drawn(trial, number)
        before, threads, begin_s = host_state(), threading.active_count(), time.process_time()
        try:
            ran = trial.run(attempt)
            verdict = trial.judge(ran, attempt)
        except Exception as error:
            return "", Finding(f"{type(error).__name__} of the run", f"{attempt}\n{error}")
        seconds = time.process_time() - begin_s
        self.verdicts[verdict.kind] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        digest = ran.result.digest if ran.result is not None else f"{type(ran.error).__name__}: {ran.error}"
        text = f"{attempt}\n{verdict.cause}"
        if verdict.cause is not None and verdict.cause.kind == "internal":
            return digest, Finding("internal error", text)
        if seconds > LONGEST_S:
            return digest, Finding("too long", f"{seconds:.1f} s of processor time\n{text}")
        del ran
        if threading.active_count() != threads:
            return digest, Finding("thread left", f"{[thread.name for thread in threading.enumerate()]}\n{text}")
        if host_state() != before:
            return digest, Finding("state left", f"{before} before, {host_state()} after\n{text}")
        if number % 16 == 15:
            gc.collect()
        return digest, None


def _drawn(trial: Trial, number: int) -> Attempt:
    program = trial.program
    assert isinstance(program, PlanProgram)
    world = Surroundings(
        trial.facts.world_size,
        program.plan.max_restarts,
        has_disk=program.has_disk,
        has_local_disks=program.has_local_disks,
        has_devices=program.has_devices,
    )
    return plan_of_faults(number, 0, trial.facts, world, budget=_BUDGET, families=list(families_of(world))).attempt


def limit_memory() -> None:
    """Limit the process to 8 GiB of addresses: a rank that asks for more fails, as on a machine with less memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (_MOST_BYTES if hard == resource.RLIM_INFINITY else min(_MOST_BYTES, hard), hard)
    )


def run_shipped(count: int, twice: int, first: int) -> int:
    """Try `count` plans from `first` on, `twice` of them again in other processes; 1 if anything was found, else 0."""
    shipped, found, seen = Shipped(), 0, {}
    shown = time.monotonic()
    for done, (number, path, digest, finding) in enumerate(shipped.run(range(first, first + count)), 1):
        seen[number] = digest
        if finding is not None:
            found += 1
            print(f"\n=== plan {number} of {path.stem}: {finding.kind}\n{finding.text}", flush=True)
        if time.monotonic() - shown > _SHOW_S:
            shown = time.monotonic()
            print(f"{done} plans, {found} findings, at {path.stem}", flush=True)
    step = max(1, len(seen) // twice) if twice else 1
    again = list(seen)[::step][:twice]
    for place in range(0, len(again), _AT_ONCE):
        part = again[place : place + _AT_ONCE]
        for number, digest in _elsewhere(part, hash_seed=1 + place // _AT_ONCE).items():
            if digest != seen[number]:
                found += 1
                print(f"\n=== plan {number} differs\nhere:  {seen[number]}\nagain: {digest}", flush=True)
    for name, reason in shipped.left_out.items():
        print(f"left out: {name}: {reason}")
    verdicts = ", ".join(f"{count} {kind}" for kind, count in sorted(shipped.verdicts.items()))
    print(f"{len(seen)} plans over {len(shipped.scenarios) - len(shipped.left_out)} scenarios: {verdicts}")
    print(f"{len(again)} of them again in other processes; the slowest run took {shipped.slowest_s:.1f} s")
    print(f"{found} findings")
    return 1 if found else 0


def _elsewhere(numbers: Sequence[int], *, hash_seed: int) -> dict[int, str]:
    """Return the digests of some plans, from a fresh process.

    Raises:
        SimdistError: the process did not end normally.
    """
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--digests", ",".join(map(str, numbers))]
    environ = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SimdistError(f"the process that repeats plans ended with exit code {done.returncode}:\n{done.stderr}")
    return {int(number): digest for number, digest in json.loads(done.stdout.splitlines()[-1]).items()}


def digests(numbers: Sequence[int]) -> int:
    """Print the digests of some plans as JSON, for the process that compares them."""
    print(json.dumps({number: digest for number, _, digest, _ in Shipped().run(numbers)}))
    return 0
