"""Run a suite written for torch's MultiProcessTestCase three ways: simulated, on forked and on spawned processes.

    python tools/suite.py                       # the suites of our tests, all three
    python tools/suite.py --arms simulated,forked
    python tools/suite.py path/to/test_mine.py --json OUT

The simulated arm runs a copy with one changed line: `MultiProcessTestCase` comes from `simdist.testing`. Each arm has a
fresh process; its time is that of the tests, imports done. Exit code 0 if every test ends alike in all arms, and
simulated ranks are 20 times as fast as each kind of processes or more; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUITES = tuple(ROOT / "tests" / "testing" / "samples" / name for name in ("gloo_suite.py", "ddp_suite.py"))
ARMS = ("simulated", "forked", "spawned")
FACTOR = 20
REPEAT = 3  # runs of the simulated arm, of which the median counts: it is so short that other work disturbs it
_IMPORT = re.compile(r"^from torch\.testing\._internal\.common_distributed import MultiProcessTestCase$", re.MULTILINE)

__all__ = ["SUITES", "main", "run_arm", "run_suites", "with_changed_import"]


def main(arguments: list[str] | None = None) -> int:
    """Run the arms, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path, nargs="*", default=SUITES, help="modules of unittest classes")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS), help="of " + ",".join(ARMS))
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every outcome")
    options = parser.parse_args(arguments)
    done: dict[str, dict[str, Any]] = {}
    for arm in options.arms:
        print(f"{arm} ...", file=sys.stderr, flush=True)
        runs = [run_suites(options.suites, arm) for _ in range(REPEAT if arm == "simulated" else 1)]
        done[arm] = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
    if options.json:
        options.json.write_text(json.dumps(done, indent=1) + "\n")
    return _report(done)


def with_changed_import(source: str) -> str:
    """Return the suite with its one changed line.

    Raises:
        SystemExit: the suite does not have the line.
    """
    changed, count = _IMPORT.subn("from simdist.testing import MultiProcessTestCase", source)
    if count != 1:
        sys.exit("expected one line: from torch.testing._internal.common_distributed import MultiProcessTestCase")
    return changed


def run_arm(suite: Path, arm: str, part: int = 0, parts: int = 1) -> dict[str, Any]:
    """Return one arm's outcomes by test, and the tests' seconds; runs every `parts`-th test from `part` on."""
    source = suite.read_text()
    with tempfile.TemporaryDirectory(prefix="simdist-") as folder:
        path, out = Path(folder) / suite.name, Path(folder) / "outcomes.json"
        path.write_text(with_changed_import(source) if arm == "simulated" else source)
        command = [sys.executable, str(ROOT / "tools" / "_suite_arm.py"), str(path), arm, str(out), f"{part}/{parts}"]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not out.exists():
            raise RuntimeError(f"{arm}: exit code {child.returncode}\n{child.stdout[-2000:]}{child.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def run_suites(suites: Sequence[Path], arm: str) -> dict[str, Any]:
    """Return one arm's outcomes by test, and the seconds that the tests of all suites took."""
    found = [run_arm(suite, arm) for suite in suites]
    outcomes = {name: test for each in found for name, test in each["outcomes"].items()}
    return {"outcomes": outcomes, "seconds": sum(each["seconds"] for each in found)}


def _report(done: dict[str, dict[str, Any]]) -> int:
    first = next(iter(done.values()))
    ok = True
    for arm, each in done.items():
        counts = Counter(test["outcome"] for test in each["outcomes"].values())
        reported = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        factor = each["seconds"] / first["seconds"]
        print(f"{arm:10} {len(each['outcomes'])} tests: {reported}; {each['seconds']:.2f} s", end="")
        print("" if each is first else f", {factor:.1f} times as long")
        ok &= each is first or factor >= FACTOR
    names = sorted({name for each in done.values() for name in each["outcomes"]})
    for name in names:
        outcomes = {arm: each["outcomes"].get(name, {}).get("outcome", "missing") for arm, each in done.items()}
        if len(set(outcomes.values())) > 1:
            ok = False
            print(f"differs    {name}: " + ", ".join(f"{arm} {outcome}" for arm, outcome in outcomes.items()))
    if len(done) > 1:
        print("outcomes   the same, test by test" if ok else "outcomes   not the same, or not fast enough")
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
