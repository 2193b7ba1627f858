"""Benchmarks: simdist beside torch's threaded group (MTPG), real Gloo and LocalTensor mode, all in one run.

Each cell is measured in a fresh process of its own, one at a time, so that no side disturbs another:

    python tools/bench.py                     # everything, some minutes
    python tools/bench.py --quick --only b,d  # a look at two groups
    python tools/bench.py --markdown          # a table for a document
    python tools/bench.py --json figures.json # and the raw figures
    python tools/bench.py --instructions --against ../other  # what hot paths execute, in two checkouts

Groups: a start-up, b small calls, c bandwidth and memory, d DDP, e large worlds, f timeout, g import, h plugin, i a
suite for MultiProcessTestCase, j virtual devices.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools._bench_instructions import counts
from tools._bench_rows import Row, rows

ROOT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 300
TITLES = {
    "simdist": "simdist",
    "simdist-python": "simdist, SIMDIST_NATIVE=0",
    "mtpg": "MTPG",
    "mtpg-pinned": "MTPG pinned",
    "gloo": "Gloo",
    "gloo-spawned": "Gloo spawned",
    "local-tensor": "LocalTensor",
}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table; returns 1 if simdist itself failed in a row or missed a budget, 0 otherwise."""
    options = _options(arguments)
    header = _machine()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(header)
    if options.instructions:
        return _count(options.against, options.only, console)
    done = []
    for row in rows(quick=options.quick, spawn=options.spawn):
        if options.only and row.group not in options.only:
            continue
        console.print(f"{row.group}  {row.what} ...")
        done.append((row, *_measure(row, options.sides)))
    if options.markdown:
        print(_markdown(header, done))
    else:
        _print_table(done)
    for row, _, failures in done:
        for side, text in failures.items():
            console.print(f"{row.what}, {TITLES[side]}: {text}", style="red")
    if options.json:
        options.json.write_text(json.dumps(_raw(header, done), indent=1) + "\n")
    return 1 if any("simdist" in failures or _verdict(row, cells) == "no" for row, cells, failures in done) else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: set(text.split(",")), help="groups to measure, such as a,b")
    parser.add_argument("--sides", type=lambda text: set(text.split(",")), help=f"of {','.join(TITLES)}")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, no slow peers")
    parser.add_argument("--spawn", action="store_true", help="start-up of spawned Gloo processes too")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the raw figures")
    parser.add_argument("--instructions", action="store_true", help="count what hot paths execute (needs valgrind)")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout to count, with --instructions")
    options = parser.parse_args(arguments)
    if options.against is not None and not options.instructions:
        parser.error("--against goes with --instructions")
    if options.against is not None and not (options.against / "simdist").is_dir():
        parser.error(f"--against: {options.against} holds no simdist")
    return options


def _count(against: Path | None, only: set[str] | None, console: Console) -> int:
    try:
        head, *lines = counts(against, only, console.print)
    except (subprocess.SubprocessError, RuntimeError) as error:
        console.print(str(error), style="red")
        return 1
    table = Table(*head)
    for line in lines:
        table.add_row(*line)
    Console(highlight=False).print(table)
    return 0


Cells = dict[str, dict[str, float]]
Done = list[tuple[Row, Cells, dict[str, str]]]


def _measure(row: Row, sides: set[str] | None) -> tuple[Cells, dict[str, str]]:
    cells: Cells = {}
    failures: dict[str, str] = {}
    for side, request in row.requests.items():
        if sides and side not in sides:
            continue
        try:
            cells[side] = _probe(dict(request))
        except (subprocess.SubprocessError, RuntimeError) as error:
            failures[side] = str(error)
    return cells, failures


def _probe(request: dict[str, Any]) -> dict[str, float]:
    """Run one probe in a fresh process; "environ" in the request is for that process, not for the probe."""
    environ = os.environ | request.pop("environ", {})
    command = [sys.executable, str(ROOT / "tools" / "_bench_probes.py"), json.dumps(request)]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=CELL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: " + "\n".join(done.stderr.splitlines()[-8:]))
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _cell(row: Row, cells: Cells, failures: dict[str, str], side: str) -> str:
    if side in cells:
        return row.show(cells[side])
    if side in failures:
        return "failed"
    return row.notes.get(side, "")


def _verdict(row: Row, cells: Cells) -> str:
    if not row.budget or "simdist" not in cells:
        return ""
    return {None: "", True: "yes", False: "no"}[row.met(cells)]


def _columns(done: Done) -> list[str]:
    """Return the sides that have a cell in some row."""
    used = {side for row, cells, failures in done for side in TITLES if _cell(row, cells, failures, side)}
    return [side for side in TITLES if side in used]


def _lines(done: Done, sides: list[str]) -> list[list[str]]:
    return [
        [row.what, *(_cell(row, cells, failures, side) for side in sides), row.budget, _verdict(row, cells)]
        for row, cells, failures in done
    ]


def _print_table(done: Done) -> None:
    sides = _columns(done)
    table = Table("what", *(TITLES[side] for side in sides), "budget", "met")
    for line in _lines(done, sides):
        table.add_row(*line)
    console = Console(highlight=False)
    Console(width=max(console.width, 180), highlight=False).print(table)


def _markdown(header: str, done: Done) -> str:
    sides = _columns(done)
    head = ["what", *(TITLES[side] for side in sides), "budget", "met"]
    body = [head, ["---"] * len(head), *_lines(done, sides)]
    return "\n".join([header, "", *("| " + " | ".join(line) + " |" for line in body)])


def _raw(header: str, done: Done) -> dict[str, Any]:
    return {
        "machine": header,
        "rows": [
            {
                "group": row.group,
                "what": row.what,
                "budget": row.budget,
                "met": _verdict(row, cells),
                "figures": cells,
                "failures": failures,
            }
            for row, cells, failures in done
        ],
    }


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, torch {version('torch')}"


if __name__ == "__main__":
    sys.exit(main())
