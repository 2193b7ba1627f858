"""The determinism check: the same test in a fresh process, under another hash seed, compared event by event."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

import simdist
from simdist.errors import RunFailedError
from simdist.result import RunResult
from simdist.testing._plugin._explain import explanation
from simdist.testing._plugin._files import events_path
from simdist.trace import event_line

__all__ = ["compare", "repetition"]


def repetition(item: pytest.Item, seed: int, results: Sequence[RunResult], nodeid: str, *, failed: bool) -> str | None:
    """Run the test `nodeid` again in a fresh process; return the first difference in words, None if there is none.

    For a test that `failed`, stderr is left out: tracebacks contain addresses of objects.

    Raises:
        RunFailedError: the second process did not reach the test.
    """
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with tempfile.TemporaryDirectory(prefix="simdist-") as folder:
        child = subprocess.run(
            [*_command(item.config), nodeid, f"--simdist-seed={seed}", f"--simdist-events={folder}"],
            cwd=item.config.rootpath,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": _python_path()},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if child.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            tail = "\n".join(f"  {line}" for line in (child.stdout + child.stderr).rstrip().splitlines()[-12:])
            raise RunFailedError(
                f"the second run, in a fresh process, ended with exit code {child.returncode}:\n{tail}"
            )
        for index, result in enumerate(results):
            path = events_path(folder, nodeid, seed, index)
            theirs = path.read_text("utf-8").splitlines() if path.exists() else []
            ours = [event_line(event) for event in result.events]
            if failed:
                ours, theirs = ([line for line in lines if not _on_stderr(line)] for lines in (ours, theirs))
            difference = compare(ours, theirs)
            if difference is not None:
                world = f"in world {index + 1}, " if len(results) > 1 else ""
                words = [*itertools.islice(_command(item.config), 3, None), nodeid, f"--simdist-seed={seed}"]
                again = f"(again: in a fresh process, with PYTHONHASHSEED={hash_seed})"
                return f"{world}{difference}\n  {again}\n{explanation(words, nodeid)}"
        if events_path(folder, nodeid, seed, len(results)).exists():
            return f"the test ran {len(results)} worlds here and more of them in the second run"
    return None


def _on_stderr(line: str) -> bool:
    event = json.loads(line)
    return bool(event["kind"] == "output" and event["data"]["stream"] == "stderr")


def compare(here: Iterable[str], there: Iterable[str]) -> str | None:
    """Return the first difference between two streams of event lines, in words; None if they are the same."""
    for index, (ours, theirs) in enumerate(itertools.zip_longest(here, there)):
        if ours != theirs:
            return (
                f"event {index} differs between two runs with one seed\n"
                f"  here:  {ours or 'no more events'}\n"
                f"  again: {theirs or 'no more events'}"
            )
    return None


def _command(config: pytest.Config) -> Iterator[str]:
    """Yield pytest's command line, without options that choose tests, spread them, or stop for a person."""
    yield from (sys.executable, "-m", "pytest", "-p", "simdist.testing.plugin", "-p", "no:cacheprovider", "-q")
    for name in config.known_args_namespace.plugins:
        if not name.startswith("no:cacheprovider"):
            yield from ("-p", name)
    yield f"--rootdir={config.rootpath}"
    if config.inipath is not None:
        yield from ("-c", str(config.inipath))
    for override in config.getoption("override_ini", None) or ():
        yield from ("-o", override)
    yield f"--import-mode={config.getoption('importmode')}"
    if config.pluginmanager.has_plugin("xdist"):
        yield "-n0"


def _python_path() -> str:
    """Return the folder of this simdist, followed by the present PYTHONPATH."""
    here = str(Path(str(simdist.__file__)).resolve().parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
