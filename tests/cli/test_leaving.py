"""How the process of a command ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SITE = """
import atexit, ctypes, sys, threading

class Last:
    def __del__(self):
        sys.stderr.write("taken apart\\n")

last = Last()
atexit.register(sys.stdout.write, "left\\n")

def wait():
    threading.main_thread().join()
    sys.stdout.write("thread\\n")

threading.Thread(target=wait).start()
atexit.register(ctypes.CDLL(None).printf, b"C\\n")
"""
_LAST = ["thread", "left", "C"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(_SITE)
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, (os.environ.get("PYTHONPATH"),)))),
    }


def _run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, *words), env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def test_what_waits_for_the_end_runs_and_nothing_is_taken_apart(environ: dict[str, str]) -> None:
    ended = _run(environ, "-m", "simdist", "docs", "xyzzyplugh")
    assert (ended.returncode, ended.stdout.splitlines()) == (2, _LAST)
    assert "xyzzyplugh" in ended.stderr
    assert "taken apart" not in ended.stderr


@pytest.mark.parametrize("words", [("-i",), ("-m", "cProfile")], ids=" ".join)
def test_what_runs_the_command_goes_on_afterwards(environ: dict[str, str], words: tuple[str, ...]) -> None:
    ended = _run(environ, *words, "-m", "simdist", "--version")
    assert "taken apart" in ended.stderr
    assert ">>>" in ended.stderr if words == ("-i",) else "function calls" in ended.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this device, a disk that is full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        words = (sys.executable, "-m", "simdist", "--version")
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (1, "simdist: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_do_no_harm(tmp_path: Path, closed: str) -> None:
    scenario = Path(__file__).parents[2] / "scenarios" / "all_types.toml"
    command = f"{sys.executable} -m simdist run {scenario} --trace {tmp_path}/trace.json {closed}"

    ended = subprocess.run(("sh", "-c", command), capture_output=True, text=True)

    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)
    assert ("digest" in ended.stdout) == (">&-" not in closed.split())
    assert json.loads((tmp_path / "trace.json").read_text())
