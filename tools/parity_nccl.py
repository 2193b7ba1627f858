"""The parity job for NCCL: runs where GPUs are, and says why not where there are none.

    python tools/parity_nccl.py
    python tools/parity_nccl.py --json nccl.json

With n GPUs it compares simulated and real worlds of 1 to n ranks, a GPU for each: the sequence of operations, results,
values, checkpoints. With several, a rank that never calls is run into its timeout in both of NCCL's ways of waiting.
On one GPU it also asks for two ranks on it, which NCCL must refuse. Exit codes: 0 parity or skipped, 1 a difference.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from simdist.cli._console import page
from simdist.cli._parity import print_reports
from simdist.hardware import Nodes, replay
from simdist.hardware._parity import ParityReport, check_parity
from simdist.hardware._replay import unavailable
from simdist.scenario import load

ROOT = Path(__file__).resolve().parents[1]
COMPARED = ("reduce_steps", "broadcast_steps", "asynchronous", "sums")


@dataclass(frozen=True)
class Check:
    """Something that is looked at beside the comparison."""

    name: str
    ok: bool
    evidence: str


@click.command()
@click.option("--json", "json_path", type=click.Path(), metavar="OUT", help="Write the report as JSON.")
def main(json_path: str | None) -> None:
    """Compare simulated worlds with NCCL on this machine's GPUs."""
    missing = unavailable("nccl", 1, Nodes())
    if missing:
        click.echo(f"skipped: {missing}")
        return
    count = torch.cuda.device_count()
    reports = [
        _compared(name, ranks) for ranks in sorted({1, 2, min(4, count), count}) if ranks <= count for name in COMPARED
    ]
    checks = [_timeout(wait) for wait in ("blocking", "async")] if count > 1 else [_two_on_one()]
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


def _compared(name: str, ranks: int) -> ParityReport:
    overrides = [f"world_size={ranks}", f"workload.target=workloads.collectives:{name}"]
    report = check_parity(load(str(ROOT / "scenarios" / "ring_order.toml"), overrides=overrides), backend="nccl")
    assert report is not None  # one node
    return report


def _timeout(wait: Any) -> Check:
    """A rank never calls: a blocking wait raises, the watchdog takes the process down."""
    plan = load(str(ROOT / "scenarios" / "timeout.toml"), overrides=["world_size=2"])
    report = replay(plan, backend="nccl", wait=wait)
    assert report is not None  # one node
    rank = report.result.ranks[0]
    expected = ("raised",) if wait == "blocking" else ("killed", "raised")
    return Check(f"timeout, {wait} wait", rank.status in expected, f"rank 0 {rank.status}: {rank.exception}")


def _two_on_one() -> Check:
    """NCCL wants a GPU for each rank: two on one must be refused, in words, and at once."""
    refusal = unavailable("nccl", 2, Nodes())
    return Check("two ranks on one GPU", bool(refusal), refusal or "was not refused")


if __name__ == "__main__":
    main()
