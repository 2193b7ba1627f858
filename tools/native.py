"""Builds `simdist._native`: as a hook of hatchling when simdist is installed or a wheel is made, and by hand.

    python tools/native.py             # build it into this checkout
    python tools/native.py --sanitize  # with the address and the undefined-behaviour sanitizer
    python tools/native.py --remove    # be without it

An installation where it can't be built goes on without: `simdist doctor` says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
)


def _build() -> ModuleType:
    """Import simdist's file that compiles without importing simdist, whose dependencies are not installed yet."""
    spec = importlib.util.spec_from_file_location("_simdist_build", ROOT / "simdist" / "native" / "_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tag() -> str:
    """Return the tag of wheels with the extension: Python and platform."""
    system = os.environ.get("_PYTHON_HOST_PLATFORM") or sysconfig.get_platform()
    name, _, version_and_machine = system.partition("-")
    if name == "macosx":  # the version of the system for which this Python was built, and its compiler builds
        version, _, machine = version_and_machine.partition("-")
        system = f"macosx-{version if '.' in version else version + '.0'}-{machine}"
    return f"cp311-abi3-{system.replace('-', '_').replace('.', '_')}"


def prepare(editable: bool, folder: Path, build_data: dict[str, Any]) -> None:
    """Build the extension for a wheel that is being made, and add it to `build_data`.

    Builds into this checkout if the installation is `editable`, else into `folder`. Changes nothing if the build fails.
    """
    build = _build()
    target = (ROOT / "simdist" if editable else folder) / build.EXTENSION
    try:
        build.build_extension(target)
    except (OSError, RuntimeError) as error:
        print(f"simdist: without the native folds: {error}", file=sys.stderr)
        return
    if not editable:
        build_data["force_include"][str(target)] = f"simdist/{build.EXTENSION}"
    build_data["pure_python"] = False
    build_data["tag"] = tag()


def get_build_hook() -> type:
    """Return the hook to hatchling. It is made in a function, because only installations have hatchling."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class NativeBuildHook(BuildHookInterface[Any]):
        """Adds the extension to wheels."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build it."""
            self.folder = tempfile.TemporaryDirectory()
            prepare(version == "editable", Path(self.folder.name), build_data)

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Remove the built file, which is in the wheel now."""
            self.folder.cleanup()

    return NativeBuildHook


def main(arguments: list[str] | None = None) -> int:
    """Build the extension, or remove it; returns 1 if the build fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--sanitize", action="store_true", help="with sanitizers of gcc")
    choice.add_argument("--remove", action="store_true", help="delete it")
    options = parser.parse_args(arguments)
    build = _build()
    target = ROOT / "simdist" / build.EXTENSION
    if options.remove:
        target.unlink(missing_ok=True)
        return 0
    try:
        build.build_extension(target, _SANITIZERS if options.sanitize else ())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
