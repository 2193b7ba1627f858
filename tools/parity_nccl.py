"""The parity job for NCCL: runs where GPUs are, and says why not where there are none.

    python tools/parity_nccl.py
    python tools/parity_nccl.py --json nccl.json --flight-recorder dumps

With n GPUs it compares simulated and real worlds of 1 to n ranks, a GPU for each: the sequence of operations, results,
values, checkpoints. With several, a rank that never calls is run into its timeout in both of NCCL's ways of waiting.
On one GPU it also asks for two ranks on it, which NCCL must refuse. In every run each rank's flight record must be
there, and agree with what simdist recorded; where the watchdog ends a rank, it must have written one.

What a virtual device shows (errors, streams, events, memory, mixed precision, generators, two ranks on one GPU over
Gloo) is compared with the first GPU. Virtual devices are run by a second process of this Python; name another one, or
take its answers along, to compare another torch.

    python tools/parity_nccl.py --simulated virtual.json     # write what virtual devices show
    python tools/parity_nccl.py --against virtual.json       # on a GPU
    python tools/parity_nccl.py --python ../other/bin/python

Exit codes: 0 parity or skipped, 1 a difference.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simdist.cli._console import page
from simdist.cli._parity import print_reports
from simdist.hardware import Match, Nodes, ParityReport, RealReport, check_parity, replay, unavailable, write_dumps
from simdist.scenario import load
from tools._device_parity import NAMES, differences, on_gpu, simulated, simulated_by

ROOT = Path(__file__).resolve().parents[1]
COMPARED = ("reduce_steps", "broadcast_steps", "asynchronous", "sums")


@dataclass(frozen=True)
class Check:
    """A check in addition to the comparison."""

    name: str
    ok: bool
    evidence: str


@click.command()
@click.option("--json", "json_path", type=click.Path(), metavar="OUT", help="Write the report as JSON.")
@click.option(
    "--flight-recorder",
    "dumps",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Keep the flight records, a folder for each run.",
)
@click.option("--simulated", "virtual", metavar="OUT", help="Write what virtual devices show, and no more.")
@click.option("--against", metavar="FILE", help="What virtual devices have shown elsewhere.")
@click.option("--python", default=sys.executable, metavar="PATH", help="The Python that runs virtual devices.")
def main(json_path: str | None, dumps: str | None, virtual: str | None, against: str | None, python: str) -> None:
    """Compare simulated worlds with NCCL on this machine's GPUs, and virtual devices with one of them."""
    if virtual is not None:
        Path(virtual).write_text(json.dumps(simulated(), indent=1) + "\n", "utf-8")
        return
    missing = unavailable("nccl", 1, Nodes())
    if missing:
        click.echo(f"skipped: {missing}")
        click.echo(f"not compared: NCCL in worlds of one rank and more; {'; '.join(NAMES)}")
        return
    count = torch.cuda.device_count()
    folder = None if dumps is None else Path(dumps)
    checks: list[Check] = []
    sizes = [ranks for ranks in sorted({1, 2, min(4, count), count}) if ranks <= count]
    reports = [
        _compared(name, ranks, checks, folder) for ranks in sizes for name in COMPARED if comparable(name, ranks)
    ]
    for ranks in sizes:
        left_out = ", ".join(name for name in COMPARED if not comparable(name, ranks))
        if left_out:
            checks.append(Check(f"{left_out}, {ranks} ranks", True, f"not compared: {_REASONS[left_out]}"))
    checks += _devices(against, python)
    checks += [_timeout(wait, folder) for wait in ("blocking", "async")] if count > 1 else [_two_on_one()]
    if json_path is not None:
        content: dict[str, Any] = {
            "gpus": count,
            "device": torch.cuda.get_device_name(0),
            "reports": [report.summary() for report in reports],
            "checks": [{"name": c.name, "ok": c.ok, "evidence": c.evidence} for c in checks],
        }
        Path(json_path).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    with page() as out:
        out.print(f"{count} x {torch.cuda.get_device_name(0)}")
        print_reports(out, reports)
        for check in checks:
            out.print(f"{'ok' if check.ok else 'FAIL'}: {check.name}: {check.evidence}")
    sys.exit(0 if all(r.status == "parity" for r in reports) and all(c.ok for c in checks) else 1)


def comparable(name: str, ranks: int) -> bool:
    """True if NCCL must agree with the simulated arm, which is Gloo's where torch has CUDA."""
    return ranks != 1 if name == "asynchronous" else name != "sums" or ranks <= 2


_REASONS = {
    "asynchronous": "NCCL takes a message to oneself, and Gloo does not",
    "sums": "NCCL and Gloo add more than two numbers in different orders",
}


def _plan(name: str, ranks: int, *more: str) -> Any:
    overrides = [f"world_size={ranks}", f"workload.target=workloads.collectives:{name}", *more]
    return load(str(ROOT / "scenarios" / "ring_order.toml"), overrides=overrides)


def timeout_plan() -> Any:
    """Return a plan in which rank 1 never calls the collective that rank 0 waits for."""
    return _plan("never_calls", 2, "workload.kwargs.operation=awaited all_reduce")


def _compared(name: str, ranks: int, checks: list[Check], folder: Path | None) -> ParityReport:
    plan = _plan(name, ranks)

    def look(report: RealReport) -> None:
        title = f"{name}-{ranks}"
        checks.append(flight_check(f"flight records, {name}, {ranks} ranks", report.matches, range(ranks)))
        _keep(report, folder, title)

    report = check_parity(plan, backend="nccl", seen=look)
    assert report is not None  # one node
    return report


def _devices(against: str | None, python: str) -> list[Check]:
    """Compare virtual devices with the first GPU."""
    here = json.loads(Path(against).read_text("utf-8")) if against is not None else simulated_by(python)
    there = on_gpu()
    checks = []
    for name in NAMES:
        found = differences(here.get(name), there.get(name))
        checks.append(Check(name, not found, "; ".join(found) or "the same"))
    return checks


def _timeout(wait: Any, folder: Path | None) -> Check:
    """Check the run in which a rank never calls: a blocking wait raises; the watchdog writes its record and kills."""
    report = replay(timeout_plan(), backend="nccl", wait=wait)
    assert report is not None  # one node
    _keep(report, folder, f"timeout-{wait}")
    rank = report.result.ranks[0]
    expected = ("raised",) if wait == "blocking" else ("killed", "raised")
    recorded = flight_check("", report.matches, [0], watchdog=wait == "async")
    evidence = f"rank 0 {rank.status}: {rank.exception}; {recorded.evidence}"
    return Check(f"timeout, {wait} wait", rank.status in expected and recorded.ok, evidence)


def flight_check(name: str, matches: Sequence[Match], ranks: Sequence[int], *, watchdog: bool = False) -> Check:
    """Check that each rank's flight record was read and agrees with simdist's; `watchdog`: that it wrote one."""
    found = {match.record.rank: match for match in matches}
    lines = [f"rank {rank}: no flight record" for rank in ranks if rank not in found]
    for rank in ranks:
        match = found.get(rank)
        if match is None:
            continue
        if match.record.problem or match.disagreement:
            lines.append(str(match))
        elif not match.compared:
            lines.append(f"rank {rank}: the flight record has no operation")
        if watchdog and not match.record.watchdog_wrote:
            lines.append(f"rank {rank}: the watchdog wrote no flight record")
    entries = [entry for match in found.values() for entry in match.record.entries]
    timed = sum(entry.duration_ns is not None for entry in entries)
    return Check(name, not lines, "; ".join(lines) or f"{len(entries)} entries agree, {timed} with a duration")


def _keep(report: RealReport, folder: Path | None, title: str) -> None:
    if folder is not None:
        for line in write_dumps(report, folder / title):
            click.echo(f"{title}: {line}", err=True)


def _two_on_one() -> Check:
    """Check that two ranks on one GPU are refused at once, with a text: NCCL needs a GPU for each rank."""
    refusal = unavailable("nccl", 2, Nodes())
    return Check("two ranks on one GPU", bool(refusal), refusal or "was not refused")


if __name__ == "__main__":
    main()
