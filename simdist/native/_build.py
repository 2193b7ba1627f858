"""Compiles C++ on this machine: the extension `simdist._native`, and in the same way the kernels of devices.

Needs only the standard library: an installation runs this file before simdist is there (`tools/native.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["EXTENSION", "build_extension", "compile_library", "compiler", "source_number", "why_not_buildable"]

EXTENSION = "_native.abi3.so"
_HERE = Path(__file__).parent
_SOURCES = ("folds.cpp", "tiles.inc", "memory.inc")
_LIMITED_API = "0x030B0000"  # Python 3.11: every later version loads the extension
_FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    "-ffp-contract=off",  # round products and sums separately, as torch does
)
_SHARED = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)


def compiler() -> str | None:
    """Return the path of a C++ compiler: the one that CXX names, or one of the usual names; None if there is none."""
    wish = os.environ.get("CXX")
    return next(
        (found for name in ([wish] if wish else ["g++", "c++", "clang++"]) if (found := shutil.which(name))), None
    )


def source_number() -> int:
    """Return a checksum of the extension's source, which the built extension also contains; 0 without source."""
    number = 0
    for name in _SOURCES:
        path = _HERE / name
        if not path.exists():
            return 0
        number = zlib.crc32(path.read_bytes(), number)
    return number & 0x7FFFFFFF  # fits into a `long` everywhere


def why_not_buildable() -> str:
    """Return why this Python on this machine can't have the extension; empty if it can."""
    if sys.implementation.name != "cpython":
        return f"it is for CPython, and this is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a Python without the GIL has no stable ABI"
    if sys.platform == "win32":
        return "it is built on Linux and macOS"
    if compiler() is None:
        return "there is no C++ compiler"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "the headers of Python are not installed (Debian, Ubuntu: apt install python3-dev)"
    return ""


def build_extension(target: Path, extra: Sequence[str] = ()) -> None:
    """Compile the extension into a file.

    `extra` are more arguments of the compiler.

    Raises:
        RuntimeError: this machine can't build it, or the compiler rejects the source.
    """
    why = why_not_buildable()
    if why:
        raise RuntimeError(why)
    command = [
        *(str(compiler()), *_FLAGS, *_SHARED, *extra),
        *(f"-DPy_LIMITED_API={_LIMITED_API}", f"-DSIMDIST_SOURCE={source_number()}l"),
        f"-I{sysconfig.get_paths()['include']}",
        str(_HERE / _SOURCES[0]),
    ]
    compile_library(command, target)


def compile_library(command: Sequence[str], target: Path, waiting: Callable[[], None] = lambda: None) -> None:
    """Run a compiler, and move its result to `target` in one step, because others may be looking for it.

    `waiting` is called every half second meanwhile.

    Raises:
        RuntimeError: the compiler rejects the source; with its messages.
    """
    made = target.with_name(f"{target.name}.{os.getpid()}")
    with subprocess.Popen([*command, "-o", str(made)], stderr=subprocess.PIPE, text=True) as running:
        while True:
            try:
                _, output = running.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                waiting()
    if running.returncode:
        made.unlink(missing_ok=True)
        raise RuntimeError("\n".join(line for line in output.splitlines() if "error" in line)[:2000] or output[-2000:])
    made.replace(target)
