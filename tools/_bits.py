"""The two sides of `conformance.py --bits`: the list of cases in a real world and in a simulated one, compared."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import simdist
from tests.bits.bench import BitsCase
from tests.bits.run import bits_cases, name_difference, run_bits
from tests.real_gloo import run_real

__all__ = ["compare_bits"]

WORLD_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 16)
QUICK_STRIDE = 29  # a quick run takes every 29th of the small cases; a prime, so that it meets every kind of them
SHOWN = 40  # differing cases whose first differing element is looked up
LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class _Arms:
    """The results of both sides, by rank and case, and how long each took. `trouble`: a rank did not return."""

    simulated: list[list[Any]]
    real: list[list[Any]]
    simulated_s: float
    real_s: float
    trouble: str = ""


def compare_bits(world_sizes: Collection[int] | None = None, *, quick: bool = False) -> int:
    """Run the list at each world size on both sides; print counts, differences, times. Return 1 if anything differs."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    total = wrong = 0
    spent = [0.0, 0.0]
    print("ranks   cases  large  different  simulated s  real s")
    for size in world_sizes or WORLD_SIZES:
        cases = [
            case
            for index, case in enumerate(bits_cases(size))
            if not quick or (not case.large and (index + size) % QUICK_STRIDE == 0)
        ]
        arms = _run(size, [case.title for case in cases])
        different = _different(cases, arms)
        large = sum(case.large for case in cases)
        print(
            f"{size:5}  {len(cases):6}  {large:5}  {len(different):9}  {arms.simulated_s:11.1f}  {arms.real_s:6.1f}",
            flush=True,
        )
        if arms.trouble:
            print(f"  {arms.trouble}")
        _report(size, different)
        total += len(cases)
        wrong += len(different) + bool(arms.trouble)
        spent = [spent[0] + arms.simulated_s, spent[1] + arms.real_s]
    verdict = "all the same in every bit" if not wrong else f"{wrong} different"
    print(f"total  {total:6} cases, {verdict}; simulated {spent[0]:.1f} s, real {spent[1]:.1f} s")
    return int(wrong > 0)


def _run(size: int, titles: list[str], *, whole: bool = False) -> _Arms:
    body = partial(run_bits, size, frozenset(titles), words=_without_locations, whole=whole)
    start = time.perf_counter()
    real = run_real(body, size, timeout_s=LIMIT_S)
    middle = time.perf_counter()
    simulation = simdist.run(body, world_size=size, env={"TORCHELASTIC_USE_AGENT_STORE": "False"}, stall_s=LIMIT_S)
    end = time.perf_counter()
    stuck = [f"real rank {i} {rank.status} {rank.message}" for i, rank in enumerate(real) if rank.status != "returned"]
    stuck += [f"simulated rank {r.rank} {r.status} {r.exception!r}" for r in simulation.ranks if r.status != "returned"]
    if stuck:
        return _Arms([], [], end - middle, middle - start, "; ".join(stuck)[:1000])
    return _Arms(list(simulation.values), [rank.value for rank in real], end - middle, middle - start)


def _different(cases: list[BitsCase], arms: _Arms) -> dict[str, BitsCase]:
    return {
        case.title: case
        for ours, theirs in zip(arms.simulated, arms.real, strict=True)
        for case, mine, other in zip(cases, ours, theirs, strict=True)
        if mine != other
    }


def _report(size: int, different: dict[str, BitsCase]) -> None:
    """Run the differing cases again, with the ranks' full results, and print where each differs first."""
    shown = [title for title in different if not different[title].large][:SHOWN]
    arms = _run(size, shown, whole=True) if shown else None
    for title, case in different.items():
        places = []
        if arms is not None and title in shown and not arms.trouble:
            place = shown.index(title)
            for rank, (ours, theirs) in enumerate(zip(arms.simulated, arms.real, strict=True)):
                where = name_difference(ours[place], theirs[place], moved=case.moved)
                places += [f"rank {rank}, {where}"] if where else []
        more = f" (and on {len(places) - 1} more)" if len(places) > 1 else ""
        print(f"  {size} ranks, {title}: {places[0] if places else 'different'}{more}", flush=True)


def _without_locations(message: str) -> str:
    """Remove from a refusal what varies with the build: source locations, an enum that torch prints as a character."""
    message = re.sub(r"\[(/|enforce fail at )[^\]]*\.cc:\d+\] ", "", message)
    return re.sub(r"support[\x00-\x1f]?on complex", "support on complex", message)
