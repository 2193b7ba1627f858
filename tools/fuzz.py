"""Random programs under random plans, each run twice: nothing may break, hang, differ or be left behind.

    python tools/fuzz.py --minutes 30                 # until the time is up; exit code 1 if anything was found
    python tools/fuzz.py --count 500 --seed 7         # so many cases, from that number on
    python tools/fuzz.py --case 4711                  # one case again, made smaller and printed
    python tools/fuzz.py --strict-stress 10000        # the same strict programs time and again in one process
    python tools/fuzz.py --odd 10000                  # tensors that are no plain memory, into every call, both backends
    python tools/fuzz.py --shipped 10000 --twice 1000 # plans of faults over scenarios/, some again in other processes

A case is a program and a plan, both drawn from its number. A finding is printed with the smallest case that still
shows it; the run then goes on, and passes over findings of the same kind.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools._fuzz_judge import Case, Finding, Tally, judge, shrink  # after the repository is on the path
from tools._fuzz_plans import Plan, draw_plan
from tools._fuzz_programs import draw_program
from tools._fuzz_shipped import digests, limit_memory, run_shipped
from tools._odd_tensors import draw_odd_program, fault_of

HANG_S = 120  # after so much real time in one case the stacks are shown


def case_of(number: int) -> Case:
    """Return the case with this number."""
    return Case(draw_program(number), draw_plan(number))


def main(arguments: list[str] | None = None) -> int:
    """Run cases; returns 0 if nothing was found, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--count", type=int, help="how many cases (100, unless there is a time)")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="only the case with this number")
    parser.add_argument("--strict-stress", type=int, metavar="RUNS", help="repeat strict programs instead")
    parser.add_argument("--odd", type=int, metavar="PROGRAMS", help="draw odd tensors into every operation instead")
    parser.add_argument(
        "--shipped", type=int, metavar="PLANS", help="plans of faults over the shipped scenarios instead"
    )
    parser.add_argument("--twice", type=int, default=0, help="how many of these run again, in other processes")
    parser.add_argument("--digests", metavar="NUMBERS", help=argparse.SUPPRESS)  # for plans over shipped scenarios
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="for making a finding smaller")
    options = parser.parse_args(arguments)
    logging.getLogger("torch").setLevel(logging.ERROR)  # DTensor's advice, once for each mesh
    if options.digests is not None or options.shipped:
        limit_memory()
    if options.digests is not None:
        return digests([int(number) for number in options.digests.split(",")])
    if options.shipped is not None:
        return run_shipped(options.shipped, options.twice, options.seed)
    if options.odd is not None:
        return odd(options.odd, options.seed)
    if options.strict_stress is not None:
        return stress(options.strict_stress, options.seed)
    if options.case is not None:
        tally = Tally()
        return report(tally, 1, [look(options.case, options.shrink_seconds, tally)], set())
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    count = options.count if options.count is not None else (100 if end is None else sys.maxsize)
    tally, shown = Tally(), time.monotonic()
    found: list[Finding | None] = []
    kinds: set[str] = set()
    number = options.seed
    while number < options.seed + count and (end is None or time.monotonic() < end):
        finding = look(number, options.shrink_seconds, tally, kinds)
        if finding is not None:
            found.append(finding)
            kinds.add(finding.kind)
        number += 1
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"{number - options.seed} cases, {len(found)} findings\n{tally.text()}", flush=True)
    return report(tally, number - options.seed, found, kinds)


def look(number: int, shrink_s: float, tally: Tally, known: set[str] | None = None) -> Finding | None:
    """Judge one case; print what is wrong with it."""
    case = case_of(number)
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    finding = judge(case, tally)
    faulthandler.cancel_dump_traceback_later()
    if finding is None or (known is not None and finding.kind in known):
        return None
    print(f"\n=== case {number}: {finding.kind}\n{finding.text}", flush=True)
    small = shrink(case, finding, deadline_s=shrink_s)
    print(f"--- the smallest case found\n{small.text()}\n--- again: python tools/fuzz.py --case {number}", flush=True)
    return finding


def report(tally: Tally, cases: int, found: list[Finding | None], kinds: set[str]) -> int:
    """Print the closing lines; returns the exit code."""
    real = [finding for finding in found if finding is not None]
    print(f"\n{cases} programs, each with a plan of its own\n{tally.text()}")
    print(f"{len(real)} findings{': ' if real else ''}{', '.join(sorted(finding.kind for finding in real))}")
    return 1 if real else 0


def odd(programs: int, seed: int) -> int:
    """Run programs with odd tensors: each must end on both backends, twice in the same way, without a crash."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # torch logs each tensor that it can't make a fake one of
    found = 0
    for number in range(seed, seed + programs):
        program = draw_odd_program(number, ("gloo", "nccl")[number % 2])
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        fault = fault_of(program)
        faulthandler.cancel_dump_traceback_later()
        if fault is not None:
            found += 1
            print(f"=== program {number}: {fault}\n{program.text()}", flush=True)
        if (number - seed) % 1000 == 999:
            print(f"{number - seed + 1} programs, {found} findings", flush=True)
    print(f"{programs} programs with odd tensors, {found} findings")
    return 1 if found else 0


def stress(runs: int, seed: int) -> int:
    """Run thousands of strict worlds in one process: each program must have the same digest in all its runs."""
    cases: list[Case] = []
    number = seed
    while len(cases) < 40:
        case = case_of(number)
        number += 1
        if len(case.program.statements) <= 8 and case.plan.world_size <= 4:
            cases.append(Case(case.program, replace(case.plan, strict=True, policy="random")))
    cases += [Case(draw_program(n, disagreeing=1.0), Plan(3, strict=True)) for n in range(seed, seed + 10)]
    tally, found = Tally(), 0
    for turn in range(-(-runs // (2 * len(cases)))):
        for index, case in enumerate(cases):
            finding = judge(case, tally)
            if finding is not None:
                found += 1
                print(f"=== turn {turn}, program {index}: {finding.kind}\n{finding.text}\n{case.text()}", flush=True)
        if turn % 10 == 9:
            print(f"{tally.runs} runs, {found} findings", flush=True)
    print(f"{tally.text()}\n{found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
