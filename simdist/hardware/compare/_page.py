"""The parity report as one HTML page without scripts or outside files."""

from __future__ import annotations

import html
from collections.abc import Sequence

from simdist.hardware.compare._parity import ParityReport
from simdist.values import plain

__all__ = ["html_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #1b1f24; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem .8rem .3rem 0;
vertical-align: top; border-bottom: 1px solid #e3e6ea; } code { font-size: 13px; white-space: pre-wrap; }
.parity { color: #0a6b3d; } .difference { color: #b3261e; font-weight: 600; } .not { color: #7a5b00; }
summary { cursor: pointer; font-weight: 600; } details { margin: 1rem 0; }
"""


def html_page(reports: Sequence[ParityReport]) -> str:
    """Return a table of all scenarios, and for each one its judged points, timings and left-out parts."""
    rows = "\n".join(_row(report) for report in reports)
    details = "\n".join(_details(report) for report in reports)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>simdist parity</title>"
        f"<style>{_STYLE}</style></head>"
        "<body>\n<h1>Simulated and real</h1>\n<table><tr><th>scenario</th>"
        "<th>backend</th><th>ranks</th><th>points agreed</th><th>verdict</th></tr>\n"
        f"{rows}\n</table>\n{details}\n</body></html>\n"
    )


def _row(report: ParityReport) -> str:
    agreed = ", ".join(f"{agreed} of {judged}" for agreed, judged in report.agreements) or "&ndash;"
    status = f"<span class='{report.status.split()[0]}'>{report.status}</span>"
    name = _escape(report.plan.name)
    return (
        f"<tr><td><a href='#{name}'>{name}</a><br>{_escape(report.plan.title)}</td>"
        f"<td>{_escape(report.backend)}</td><td>{report.plan.world_size}</td><td>{agreed}</td><td>{status}</td></tr>"
    )


def _details(report: ParityReport) -> str:
    lines = [f"<p class='not'>not comparable: {_escape(report.reason)}</p>"] if report.reason else []
    lines += [f"<p class='not'>not replayed: {_escape(str(each))}</p>" for each in report.not_replayed]
    lines += [f"<p>real runs differ in {_escape(line)}</p>" for line in report.sometimes]
    points = "\n".join(
        f"<tr><td>{_escape(p.name)}</td><td>{p.rank if p.rank >= 0 else 'world'}</td><td>"
        f"<code>{_escape(p.simulated)}</code></td><td><code>{_escape(p.real)}</code></td>"
        f"<td class='{'parity' if p.ok else 'difference'}'>{'agrees' if p.ok else 'differs'}</td></tr>"
        for p in sorted(report.points, key=lambda point: point.ok)
    )
    timings = "\n".join(
        f"<tr><td>{t.rank}</td><td>{t.simulated_s:.6f}</td>"
        f"<td>{', '.join(f'{value:.6f}' for value in t.real_s)}</td></tr>"
        for t in report.timings
    )
    opened = " open" if report.status == "difference" else ""
    name = _escape(report.plan.name)
    return (
        f"<details id='{name}'{opened}><summary>{name}</summary>{''.join(lines)}"
        f"<table><tr><th>point</th><th>rank</th><th>simulated</th><th>real</th><th></th></tr>{points}</table>"
        f"<table><tr><th>rank</th><th>virtual seconds</th><th>real seconds, by run</th></tr>{timings}</table></details>"
    )


def _escape(text: str) -> str:
    return html.escape(plain(text))
