"""Run torch's own distributed test suite on simulated ranks, and beside it on real processes.

    python tools/conformance.py --backend gloo                 # simulated, world sizes 3 and 4
    python tools/conformance.py --backend gloo --real          # and real forked processes: which tests pass there?
    python tools/conformance.py --backend nccl                 # simulated, on virtual CUDA devices
    python tools/conformance.py -k all_gather --world-size 3
    python tools/conformance.py --bits                         # thousands of calls: simulated and real, bit for bit
    python tools/conformance.py --bits --quick                 # a few hundred of them

Exit code 0 if no simulated test failed (with --real: of those that pass on real processes), 1 otherwise. With --bits:
1 if a result differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main(arguments: list[str] | None = None) -> int:
    """Run the suite or the comparison that the arguments name; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--world-size", type=int, nargs="+", metavar="N", help="3 4; with --bits 2 to 9 and 16")
    parser.add_argument("--bits", action="store_true", help="compare the bits of collectives instead")
    parser.add_argument("--quick", action="store_true", help="with --bits: a few hundred small ones")
    parser.add_argument("--real", action="store_true", help="run the same tests on real processes too")
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="REGEX", help="only these tests")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every test, skips included")
    parser.add_argument("--json", metavar="OUT", help="write all outcomes to a file")
    parser.add_argument("--arm", nargs=3, metavar=("KIND", "SIZE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.arm:
        return _run_arm(options)
    if options.bits:
        from tools._bits import compare_bits

        return compare_bits(options.world_size, quick=options.quick)
    everything = {}
    failed = False
    for size in options.world_size or (3, 4):
        simulated = _arm("simulated", size, options)
        real = _arm("real", size, options) if options.real else None
        everything[str(size)] = {"simulated": simulated, "real": real}
        failed |= _report(size, simulated, real, verbose=options.verbose)
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")
    return int(failed)


def _arm(kind: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one side at one world size, in its own process: the suite reads its world size from the environment."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        command = [sys.executable, __file__, "--backend", options.backend, "--arm", kind, str(size), str(out)]
        for pattern in options.patterns:
            command += ["-k", pattern]
        print(f"{kind}, {size} ranks ...", file=sys.stderr, flush=True)
        subprocess.run(command, check=True)
        outcomes: dict[str, Any] = json.loads(out.read_text())
        return outcomes


def _run_arm(options: argparse.Namespace) -> int:
    kind, size, out = options.arm
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from simdist.testing import distributed_test_case, run_tests

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        case = distributed_test_case(backend=options.backend, world_size=int(size), real=kind == "real")
        report = run_tests(case, f"{kind} {size}", patterns=options.patterns)
    data = {
        outcome.name: {"verdict": outcome.verdict, "reason": outcome.reason, "seconds": round(outcome.seconds, 4)}
        for outcome in report.outcomes
    }
    Path(out).write_text(json.dumps(data))
    return 0


def _report(size: int, simulated: dict[str, Any], real: dict[str, Any] | None, *, verbose: bool) -> bool:
    """Print the results at one world size; returns True if a test failed that should pass."""
    print(f"\n{size} ranks")
    sides = {"simulated": simulated} | ({"real": real} if real is not None else {})
    for name, outcomes in sides.items():
        verdicts = [outcome["verdict"] for outcome in outcomes.values()]
        seconds = sum(outcome["seconds"] for outcome in outcomes.values())
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("pass", "fail", "skip"))
        print(f"  {name:10} {counts}, {seconds:.1f} s")
    should = [n for n in simulated if real is None or real[n]["verdict"] == "pass"]
    wrong = [n for n in should if simulated[n]["verdict"] == "fail" or (real and simulated[n]["verdict"] != "pass")]
    if real is not None:
        total = sum(outcome["seconds"] for outcome in real.values())
        spent = sum(outcome["seconds"] for outcome in simulated.values())
        print(f"  of {len(should)} that pass on real processes, {len(should) - len(wrong)} pass simulated")
        print(f"  real / simulated wall time: {total / max(spent, 1e-9):.1f}")
    for name, outcome in simulated.items():
        if verbose or name in wrong:
            print(f"  {outcome['verdict']:5} {name}  {outcome['reason']}"[:240])
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
