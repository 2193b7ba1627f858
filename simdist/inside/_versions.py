"""The versions of torch and of Python that simdist was tried on, and the warning about newer ones.

simdist replaces parts of both that change from version to version. With a newer version than those listed here it warns
once and goes on: most of it works, and what does not ends in an error that names it.
"""

from __future__ import annotations

import functools
import sys
import warnings

__all__ = ["COMPLETE", "PYTHONS", "TRIED", "warn_of_newer"]

_UNCOMPILED = "torch.compile runs functions as they are"
TRIED = {  # by version, what was seen to work
    "2.11.0": f"a part of the test suite on the build for CUDA 13.0; {_UNCOMPILED}",
    "2.12.1": f"the test suite on the build for CUDA 13.0, without a GPU; {_UNCOMPILED}",
    "2.13.0": "the whole test suite on the CPU build and on the build for CUDA 13.0, without a GPU",
    "2.14.1": "the test suite on the build for CUDA 13.0, without a GPU, virtual devices included",
    "2.15.0": "the test suite on the build for CUDA 13.2, without a GPU, virtual devices included",
}
COMPLETE = tuple(version for version, seen in TRIED.items() if _UNCOMPILED not in seen)
"""Versions of torch that have all that simdist uses."""


PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
"""The versions of Python that simdist was tried on."""


@functools.cache
def warn_of_newer() -> None:
    """Warn, once in a process, if its torch or its Python is newer than all that simdist was tried on."""
    import torch  # here, for `simdist doctor` reads the versions even if torch can't be imported

    version = str(torch.__version__).partition("+")[0]
    if _minor(version) > max(map(_minor, TRIED)):
        _warn(f"torch {version}", ", ".join(TRIED))
    if sys.version_info[:2] > _minor(PYTHONS[-1]):
        _warn(f"Python {sys.version.split()[0]}", f"{PYTHONS[0]} to {PYTHONS[-1]}")


def _warn(here: str, tried: str) -> None:
    warnings.warn(
        f"{here} is newer than the versions that simdist was tried on ({tried}). Most things "
        "work as before; what does not ends in an error that names it. `simdist doctor` shows what works here",
        stacklevel=3,
    )


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
