"""Runs one entry as a bug hunter would: without knowledge of the bug; only the reports count."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import simdist
from tests.corpus._entries import Entry

__all__ = ["Outcome", "outcome_of", "ranks_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A report: `by` is a judge, "agree", "failure", or empty for none; `right` if it names the right rank and line."""

    by: str
    right: bool = True
    text: str = ""


def outcome_of(entry: Entry, *, buggy: bool, judges: bool, seed: int = 0) -> Outcome:
    """Run the program; without judges, layouts are run but not compared."""
    settings: dict[str, Any] = {**entry.settings, "seed": seed, "policy": "random" if seed else "fifo"}
    if entry.layouts and judges:
        report = simdist.agree(_trains(entry.program, buggy), layouts=entry.layouts, judges=True, **settings)
        return Outcome("" if report.ok else "agree", text=str(report))
    if entry.layouts:
        results = [
            simdist.run(
                _trains(entry.program, buggy),
                world_size=layout.world_size,
                args=(layout,),
                **settings,
            )
            for layout in map(simdist.Layout.of, entry.layouts)
        ]
        return Outcome("" if all(result.ok for result in results) else "failure")
    if entry.resumes and judges:
        resumed = simdist.resume(_resumes(entry.program, buggy), world_size=entry.world_size, judges=True, **settings)
        right = entry.rank is None or any(each.rank == entry.rank for each in resumed.differences)
        return Outcome("" if resumed.ok else "resume", right, text=str(resumed))
    if entry.resumes:
        with tempfile.TemporaryDirectory() as folder:
            program = functools.partial(_resumes(entry.program, buggy), folder)
            result = simdist.run(program, world_size=entry.world_size, **settings)
        return Outcome("" if result.ok else "failure")
    with tempfile.TemporaryDirectory() as folder:
        result = simdist.run(
            ranks_of(entry, buggy=buggy),
            world_size=entry.world_size,
            judges=judges,
            env={"CORPUS_FOLDER": folder},
            **settings,
        )
    if result.first_failure() is not None:
        return Outcome("failure", text=str(result.first_failure()))
    if not result.findings:
        return Outcome("")
    finding = next((each for each in result.findings if each.judge == entry.finder), result.findings[0])
    right = entry.rank is None or finding.rank == entry.rank
    if entry.line is not None:
        right = right and finding.where.split(" ")[0] == _place_of(entry)
    return Outcome(finding.judge, right, "\n".join(finding.lines()))


def _place_of(entry: Entry) -> str:
    assert entry.line is not None
    lines, first = inspect.getsourcelines(entry.program)
    body = next(place for place, text in enumerate(lines) if text.startswith("def "))  # after the decorator
    number = next(first + place for place, text in enumerate(lines) if place > body and entry.line in text)
    return f"{inspect.getfile(entry.program).rpartition('/')[2]}:{number}"


def ranks_of(entry: Entry, *, buggy: bool) -> Callable[[], Any]:
    """Return the function that each rank runs, for an entry without layouts and resumes."""

    @functools.wraps(entry.program)
    def ranks() -> Any:
        dist.init_process_group(entry.settings.get("backend", "gloo"))
        value = entry.program(buggy)
        dist.destroy_process_group()
        return value

    return ranks


def _resumes(program: Callable[..., Any], buggy: bool) -> Callable[[str], Any]:
    @functools.wraps(program)
    def ranks(folder: str) -> Any:
        dist.init_process_group("gloo")
        value = program(folder, buggy)
        dist.destroy_process_group()
        return value

    return ranks


def _trains(program: Callable[..., Any], buggy: bool) -> Callable[..., Any]:
    @functools.wraps(program)
    def train(layout: simdist.Layout) -> Any:
        dist.init_process_group("gloo")
        value = program(layout, buggy)
        dist.destroy_process_group()
        return value

    return train
