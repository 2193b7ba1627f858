"""The one gate, here and in CI: formatting, lint, types and words of everything; with `--tests` the test suite too.

Every step runs even if an earlier one failed, so one run shows all there is to do:

    python tools/check.py           # look, change nothing
    python tools/check.py --fix     # format and apply ruff's safe fixes first
    python tools/check.py --tests   # and run pytest
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools._words import stumbles  # noqa: E402

FOLDERS = [name for name in ("simdist", "tests", "tools", "scenarios") if any((ROOT / name).rglob("*.py"))]


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; returns 0 if all of them passed, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fix", action="store_true", help="format and apply safe fixes before looking")
    parser.add_argument("--tests", action="store_true", help="run pytest as the last step")
    options = parser.parse_args(arguments)
    if options.fix:
        _step("ruff: fix", "ruff", "check", "--fix", "--quiet", *FOLDERS)
        _step("ruff: format", "ruff", "format", "--quiet", *FOLDERS)
    steps = {
        "format": ("ruff", "format", "--check", *FOLDERS),
        "lint": ("ruff", "check", *FOLDERS),
        "types": ("mypy", "--strict", *FOLDERS),
    }
    if options.tests:
        steps["tests"] = ("pytest",)
    failed = [name for name, command in steps.items() if not _step(name, *command)]
    if not _words():
        failed.append("words")
    print(f"check: {', '.join(failed)} failed" if failed else "check: all good", flush=True)
    return 1 if failed else 0


def _step(name: str, module: str, *arguments: str) -> bool:
    print(f"== {name}: {module} {' '.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=False).returncode == 0


def _words() -> bool:
    print("== words: turns of phrase that readers stumble over", flush=True)
    found = list(stumbles(ROOT, [*FOLDERS, ".github"]))
    print("\n".join(found) or "None found.", flush=True)
    return not found


if __name__ == "__main__":
    sys.exit(main())
