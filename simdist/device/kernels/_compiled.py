"""The kernels in C++: built once on this machine, kept per version of torch, and used where they are built.

`build_kernels` compiles `native/kernels.cpp` with g++ into the user's cache folder. A world with devices uses the build
that it finds there for its torch, its Python and this very source. `SIMDIST_DEVICE_KERNELS=python` in the environment
of the host turns this off, `=compiled` requires it. Results, accounts and digests are the same in both forms.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch

from simdist.device._aliases import Compiled
from simdist.errors import UnsupportedError
from simdist.native import compile_library

__all__ = ["VARIABLE", "build_kernels", "built_kernels", "chosen", "compiler", "remove_old_builds"]

VARIABLE = "SIMDIST_DEVICE_KERNELS"
_CHOICES = ("auto", "python", "compiled")
_MODULE = "_simdist_devices"
_SOURCE = Path(__file__).parent / "native" / "kernels.cpp"
_BUILD = re.compile(r"devices-torch(?P<torch>.+)-(?P<tag>[^-]+-\d+)-(?P<machine>[^-]+)-(?P<source>[0-9a-f]{12})\.so")
_ABANDONED_S = 3600  # a build that is unfinished after this time will never be finished
_HOW = "simdist build-devices builds them, with g++"


def built_kernels() -> Path:
    """Return where the compiled kernels of this torch, this Python and this source are, or would be."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    name = f"devices-torch{torch.__version__}-{sys.implementation.cache_tag}-{platform.machine()}-{source}.so"
    return Path(cache) / "simdist" / name


def remove_old_builds() -> list[Path]:
    """Delete the builds that nothing here uses any more, once there is a build; returns what it deleted.

    These are builds of another source, or for an older torch, by this Python; newer ones may be another environment's.
    And files of builds that were interrupted.
    """
    present = built_kernels()
    if not present.exists():
        return []
    mine = _BUILD.fullmatch(present.name)
    assert mine is not None
    removed = []
    for path in sorted(present.parent.glob("devices-torch*")):
        other = _BUILD.fullmatch(path.name)
        if other is None:
            whole, _, process = path.name.rpartition(".")
            unfinished = process.isdigit() and _BUILD.fullmatch(whole) is not None
            old = unfinished and path.stat().st_mtime < present.stat().st_mtime - _ABANDONED_S
        else:
            here = all(other[part] == mine[part] for part in ("tag", "machine"))
            old = here and (other["source"] != mine["source"] or _is_older(other["torch"]))
        if old:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _is_older(version: str) -> bool:
    try:
        return bool(torch.torch_version.TorchVersion(version) < torch.torch_version.TorchVersion(torch.__version__))
    except ValueError:  # no version at all
        return False


def compiler() -> str | None:
    """Return the path of g++; None where there is none."""
    return shutil.which("g++")


def build_kernels(waiting: Callable[[], None] = lambda: None) -> Path:
    """Compile the kernels, which takes some fifteen seconds; returns where they are.

    `waiting` is called every half second meanwhile.

    Raises:
        UnsupportedError: there is no g++, or it can't compile the source.
    """
    found = compiler()
    if found is None:
        raise UnsupportedError(
            "g++ is not to be found, and the kernels of virtual devices are built with it; install it (Debian, Ubuntu: "
            "apt install g++), or go on without: the kernels in Python do the same"
        )
    target = built_kernels()
    target.parent.mkdir(parents=True, exist_ok=True)
    here = Path(torch.__file__).parent
    headers = [here / "include", here / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"])]
    command = [
        *(found, "-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", str(_SOURCE)),
        *(f"-I{each}" for each in headers),
        *(f"-L{here / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]
    try:
        compile_library(command, target, waiting)
    except RuntimeError as error:
        raise UnsupportedError(
            f"g++ did not take the kernels of virtual devices (torch {torch.__version__}):\n{error}"
        ) from None
    return target


def chosen() -> Compiled | None:
    """Return the compiled kernels' module, or None: as the environment demands, by default the module if it is built.

    Raises:
        UnsupportedError: they are demanded and not built, or the environment has another value.
    """
    wish = os.environ.get(VARIABLE, "auto")
    if wish not in _CHOICES:
        raise UnsupportedError(f"{VARIABLE}: {wish!r} is no form of kernels; expected one of {', '.join(_CHOICES)}")
    if wish == "python":
        return None
    path = built_kernels()
    if not path.exists():
        if wish == "auto":
            return None
        raise UnsupportedError(f"{VARIABLE}=compiled, and there are none for torch {torch.__version__}; {_HOW}")
    return _loaded(str(path))


@functools.cache
def _loaded(path: str) -> Compiled:
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, path)
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise UnsupportedError(
            f"{path} can't be loaded ({error}); delete it, and build the kernels anew: {_HOW}"
        ) from error
    return module
