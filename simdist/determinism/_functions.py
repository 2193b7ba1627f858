"""Functions as the target of a check: how a fresh process finds the same one."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from simdist.api import run
from simdist.determinism._check import check, require_host
from simdist.determinism._fresh import Job
from simdist.determinism._report import DeterminismReport
from simdist.errors import SimdistError
from simdist.settings import SETTINGS, check_settings

if TYPE_CHECKING:
    from simdist.settings import SettingsOfRun

__all__ = ["call_function", "check_determinism"]

_WATCHING = ("echo", "progress", "replay")
_KNOWN = {name: SETTINGS[name] for name in inspect.signature(run).parameters}


def check_determinism(
    fn: Callable[..., object], *, world_size: int, **arguments: Unpack[SettingsOfRun]
) -> DeterminismReport:
    """Run `fn` on simulated ranks twice, the second time in a fresh process under another hash seed, and compare.

    Every event, payload and returned value must be the same. If they are not, both versions of the first event that
    differs are in the report, with the user's line that made it, and the line where the difference began. `arguments`
    are those of `simdist.run`. The second run also sees folders in reverse order and garbage collected later: neither
    order is guaranteed.

    Raises:
        ArgumentError, FaultError, TopologyError: as `simdist.run`.
        SimdistError: a fresh process can't import `fn` (it is a lambda, or defined inside a function), its arguments
            can't be pickled, the second run ended without a result, or the caller is a simulated rank.
    """
    require_host()
    check_settings("simdist.check_determinism", {"fn": fn, "world_size": world_size, **arguments}, _KNOWN)
    file, name = _home(fn)
    options = {key: value for key, value in arguments.items() if key not in _WATCHING}
    job = Job(__name__, "call_function", (file, name, fn.__module__, {"world_size": world_size, **options}))
    return check(lambda: run(fn, world_size=world_size, **arguments), job, target=f"{Path(file).name}:{name}")


def _home(fn: Callable[..., object]) -> tuple[str, str]:
    """The file and the name by which a fresh process finds `fn`."""
    if isinstance(fn, functools.partial):
        raise SimdistError("a fresh process can't import a functools.partial; pass the function, and args=, kwargs=")
    name, module = getattr(fn, "__qualname__", ""), sys.modules.get(getattr(fn, "__module__", ""))
    file = inspect.getsourcefile(fn) if inspect.isfunction(fn) else None
    if file is None or module is None or not name:
        raise SimdistError(f"a fresh process can't import {fn!r}; pass a function of a module")
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else "defined inside a function"
        raise SimdistError(
            f"a fresh process can't import {name!r}: it is {what}; put it at the top of its module, and what it "
            "closes over into args= or kwargs="
        )
    return str(Path(file).resolve()), name


def call_function(file: str, name: str, module: str, arguments: dict[str, Any]) -> None:
    """In the fresh process: run the function `name` of the module in `file`."""
    found: Any = _module(file, module)
    for part in name.split("."):
        found = getattr(found, part)
    run(found, **arguments)


def _module(file: str, name: str) -> Any:
    """The module in `file`, imported under its own name if that leads to the file."""
    if name != "__main__":
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file):
            return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("__mp_main__" if name == "__main__" else name, file)
    if spec is None or spec.loader is None:
        raise SimdistError(f"{file} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
