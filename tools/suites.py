"""Run the test suites of other projects, unmodified, on simulated ranks and on real processes, and compare each test.

    python tools/suites.py                          # a share of every project's suite
    python tools/suites.py torchsnapshot mmengine   # some projects
    python tools/suites.py --list
    python tools/suites.py --mirror DIR             # bare copies DIR/owner+name/repo in place of GitHub
    python tools/suites.py --keep DIR --json OUT    # keep checkouts and logs; write every outcome

Each project is fetched at a pinned commit into a scratch folder, with a virtual environment that sees this one's
packages (torch is this one's) and has what the project needs besides. Its tests run under `simdist launch -m pytest`,
and under plain pytest, where they run on a CPU; shares that need GPUs run on virtual devices alone. A suite that
torchrun starts runs on several ranks in both ways. A row per project: tests, how many passed on both, how many ended
alike, how many differ as known, how many differ otherwise, and seconds.
A skipped test has not passed, and one that can't be collected, ends its process or is stopped at its time limit counts
as a difference, whatever the other arm says. Two skipped tests of which one had children that died are not alike.
Exit codes: 0 nothing differs that is not known, 1 something does, 2 no such project.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools._suites_projects import PROJECTS, Project
from tools._suites_runs import Comparison, Run, SuiteError, compare, environment, fetch, run_tests

__all__ = ["main", "run_project", "table"]


def main(arguments: list[str] | None = None, projects: Sequence[Project] = PROJECTS) -> int:
    """Run the projects, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help="names; all without any")
    parser.add_argument("--list", action="store_true", help="name the projects and their shares, and run nothing")
    parser.add_argument("--mirror", type=Path, metavar="DIR", help="bare copies of the repositories")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="for each arm of a project")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder, and leave it")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every outcome")
    options = parser.parse_args(arguments)
    by_name = {project.name.lower(): project for project in projects}
    unknown = [name for name in options.projects if name.lower() not in by_name]
    if unknown:
        print(
            f"no such project: {', '.join(unknown)}; there are {', '.join(p.name for p in projects)}", file=sys.stderr
        )
        return 2
    chosen = [by_name[name.lower()] for name in options.projects] or list(projects)
    if options.list:
        for project in chosen:
            print(f"{project.name:20} {project.repository} {project.commit[:12]}  {' '.join(project.tests)}")
        return 0
    results: dict[str, Any] = {}
    rows: list[tuple[str, Comparison | str, Sequence[Run | None]]] = []
    with tempfile.TemporaryDirectory(prefix="simdist-", ignore_cleanup_errors=True) as scratch:
        work = options.keep or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        for number, project in enumerate(chosen):
            print(f"{project.name} ...", file=sys.stderr, flush=True)
            try:
                arms = run_project(project, work.resolve() / str(number), options.mirror, options.limit)
            except SuiteError as error:
                rows.append((project.name, str(error), ()))
                continue
            comparison = compare(project, *arms)
            rows.append((project.name, comparison, arms))
            results[project.name] = {
                "comparison": asdict(comparison),
                **{arm: asdict(run) for arm, run in zip(("simulated", "real"), arms, strict=True) if run is not None},
            }
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(rows))
    return int(not all(isinstance(found, Comparison) and found.ok for _, found, _ in rows))


def run_project(project: Project, folder: Path, mirror: Path | None, limit_s: float) -> tuple[Run, Run | None]:
    """Fetch a project and run its share: the simulated arm, and the real one if the share has one.

    Raises:
        SuiteError: the project could not be fetched or installed.
    """
    source = folder / "source"
    fetch(project, source, mirror)
    python = environment(project, folder / "python")
    simulated = run_tests(project, "simulated", source, python, folder / "simulated", limit_s)
    return simulated, run_tests(project, "real", source, python, folder / "real", limit_s) if project.real else None


def table(rows: Sequence[tuple[str, Comparison | str, Sequence[Run | None]]]) -> str:
    """Return a line per project, followed by its differences, and the reasons of known ones."""
    lines = [f"{'project':20} {'tests':>5} {'passed':>6} {'same':>5} {'known':>5} {'differ':>6}  simulated      real"]
    for name, found, arms in rows:
        if isinstance(found, str):
            lines.append(f"{name:20} not run: {found}")
            continue
        counts = f"{found.tests:5} {found.passed:6} {found.same:5} {len(found.known):5} {len(found.differing):6}"
        seconds = "".join(f"{run.seconds:8.1f} s" if run is not None else "         -" for run in arms)
        lines.append(f"{name:20} {counts} {seconds}")
        lines += [f"  problem  {problem}" for problem in found.problems]
        lines += [f"  differs  {test}: {reported}" for test, reported in found.differing.items()]
        lines += [f"  known    {test}: {reason}" for test, reason in found.known.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children end on SIGTERM, too
    sys.exit(main())
