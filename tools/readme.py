"""Rewrite the output blocks of the README with what the commands and the example in them print now.

    python tools/readme.py            # rewrite
    python tools/readme.py --check    # say whether something would change; exit code 1 if so

A block whose first line is `$ simdist ...` shows that command; the block after the first Python block shows what it
prints. Lines that tell real time are left out, and paths of tracebacks are not shown.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Start = Callable[..., subprocess.CompletedProcess[str]]
README = ROOT / "README.md"
_COMMAND = re.compile(r"^```\n\$ (simdist [^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"(^```python\n(.*?)^```\n\n)```\n.*?^```$", re.MULTILINE | re.DOTALL)
_SHOWN_LINES = 4  # of the example's output; a traceback follows


def main(arguments: list[str] | None = None) -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    before = README.read_text()
    after = rewritten(before)
    if options.check:
        print("README.md is up to date" if after == before else "README.md is out of date: run tools/readme.py")
        return int(after != before)
    README.write_text(after)
    return 0


def rewritten(text: str, start: Start = subprocess.run) -> str:
    """The README with its output blocks made anew; `start` runs Python, as `subprocess.run` does."""
    text = _COMMAND.sub(lambda found: f"```\n$ {found[1]}\n{command_output(found[1], start)}```", text)
    return _EXAMPLE.sub(lambda found: f"{found[1]}```\n{example_output(found[2], start)}```", text, count=1)


def command_output(command: str, start: Start) -> str:
    """What a `simdist` command prints, without real time."""
    lines = _run(start, "-m", "simdist", *command.split()[1:]).splitlines()
    return "".join(f"{line}\n" for line in lines if not line.startswith("real time"))


def example_output(source: str, start: Start) -> str:
    """The first lines that the example prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "example.py"
        path.write_text(source)
        return "".join(f"{line}\n" for line in _run(start, str(path)).splitlines()[:_SHOWN_LINES])


def _run(start: Start, *arguments: str) -> str:
    done = start([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
