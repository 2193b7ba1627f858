"""The versions of torch that simdist was tried on, and the warning about newer ones.

simdist replaces parts of torch that torch changes from version to version. With a newer torch than those listed here it
warns once and goes on: most of it works, and what does not ends in an error that names it.
"""

from __future__ import annotations

import functools
import warnings

__all__ = ["COMPLETE", "TRIED", "warn_of_newer"]

_UNCOMPILED = "torch.compile runs functions as they are"
TRIED = {  # by version, what was seen to work
    "2.11.0": f"a part of the test suite on the build for CUDA 13.0; {_UNCOMPILED}",
    "2.12.1": f"the test suite on the build for CUDA 13.0, without a GPU; {_UNCOMPILED}",
    "2.13.0": "the whole test suite on the CPU build and on the build for CUDA 13.0, without a GPU",
    "2.14.1": "the test suite on the build for CUDA 13.0, without a GPU, virtual devices included",
    "2.15.0": "the test suite on the build for CUDA 13.2, without a GPU, virtual devices included",
}
COMPLETE = tuple(version for version, seen in TRIED.items() if _UNCOMPILED not in seen)
"""Those that have all that simdist uses."""


@functools.cache
def warn_of_newer() -> None:
    """Warn, once in a process, if its torch is newer than all that simdist was tried on."""
    import torch  # `simdist doctor` reads the versions where torch does not import

    version = str(torch.__version__).partition("+")[0]
    if _minor(version) > max(map(_minor, TRIED)):
        warnings.warn(
            f"torch {version} is newer than the versions that simdist was tried on ({', '.join(TRIED)}). Most things "
            "work as before; what does not ends in an error that names it. `simdist doctor` shows what works here",
            stacklevel=2,
        )


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
