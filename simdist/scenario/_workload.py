"""The workload's function: found from the scenario's folder, and forgotten after the run."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from simdist.scenario._plan import Workload
from simdist.values import guess, shortened

__all__ = ["WorkloadError", "fill", "import_workload", "importable"]


class WorkloadError(Exception):
    """The workload can't be had; `key` is the place in the [workload] section that says so."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(key, text)
        self.key = key
        self.text = text

    def __str__(self) -> str:
        return self.text


@contextmanager
def importable(folder: Path, target: str) -> Iterator[None]:
    """While inside, modules are found in `folder` first; after it, `sys.path` and `sys.modules` are as before.

    A module of the target's name that was loaded from another folder is set aside meanwhile.
    """
    path, roots = list(sys.path), {name.partition(".")[0] for name in sys.modules}
    root = target.partition(":")[0].partition(".")[0]
    aside = _loaded(root) if _shadows(folder, root) else {}
    for name in aside:
        del sys.modules[name]
    roots -= {root} if aside else set()
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        # By root: a library that lies deeper inside the folder, as in a virtual environment, came by another entry.
        for new in sorted({name.partition(".")[0] for name in sys.modules} - roots):
            if _home(sys.modules.get(new)) == folder:
                for name in _loaded(new):
                    del sys.modules[name]
        sys.modules.update(aside)


def import_workload(workload: Workload) -> Callable[..., Any]:
    """The workload's function; call it inside `importable`.

    Raises:
        WorkloadError: no such module or function, an exception while importing, or arguments that do not fit.
    """
    module_name, colon, function_name = workload.target.partition(":")
    if not (colon and re.fullmatch(r"\w+(\.\w+)*", module_name) and function_name.isidentifier()):
        raise WorkloadError("target", f"{workload.target!r} is no 'module:function'")
    module = _import(module_name, workload.folder)
    function = getattr(module, function_name, None)
    if function is None:
        names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        hint = guess(function_name, names)
        raise WorkloadError("target", f"module {module_name!r} has no function {function_name!r}{hint}")
    if not callable(function):
        raise WorkloadError("target", f"{workload.target!r} is no function but a {type(function).__name__}")
    _check_arguments(function, workload)
    return function  # type: ignore[no-any-return]  # getattr's; callable was checked


def fill(value: Any, tmp: str) -> Any:
    """`value` with "{tmp}" replaced by `tmp` in every string, however deep."""
    if isinstance(value, str):
        return value.replace("{tmp}", tmp)
    if isinstance(value, Mapping):
        return {key: fill(item, tmp) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(fill(item, tmp) for item in value)
    return value


def _import(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            text = f"no module {error.name!r} in {folder} or on Python's path{_near(name, folder)}"
            raise WorkloadError("target", text) from None
        raise WorkloadError("target", _failed(name, error)) from error
    except BaseException as error:  # a module may raise anything, SystemExit included
        raise WorkloadError("target", _failed(name, error)) from error


def _failed(name: str, error: BaseException) -> str:
    text = f"importing {name!r} raised {type(error).__name__}: {shortened(str(error), 300)}"
    if isinstance(error, SyntaxError):  # its text has the place
        return text
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _machinery(frame.filename)]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def _machinery(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in (__file__, importlib.__file__)


def _near(name: str, folder: Path) -> str:
    parent = folder.joinpath(*name.split(".")[:-1])
    prefix = name.rpartition(".")[0]
    names = [entry.stem for entry in parent.glob("*.py") if entry.stem != "__init__"] if parent.is_dir() else []
    return guess(name, [f"{prefix}.{stem}" if prefix else stem for stem in names])


def _check_arguments(function: Callable[..., Any], workload: Workload) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C show none
        return
    try:
        signature.bind(*workload.args, **workload.kwargs)
    except TypeError as error:
        named = {p.name for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL}
        unknown = [key for key in workload.kwargs if key not in named]
        hint = guess(unknown[0], named) if unknown else f"; the function takes {signature}"
        raise WorkloadError("kwargs" if unknown else "args", f"{error}{hint}") from None


def _shadows(folder: Path, root: str) -> bool:
    """True if `folder` has a module `root` and another one of that name is loaded."""
    here = (folder / f"{root}.py").is_file() or (folder / root).is_dir()
    loaded = sys.modules.get(root)
    return here and loaded is not None and root != "simdist" and _home(loaded) != folder


def _home(module: ModuleType | None) -> Path | None:
    """The folder in which a top-level module was found."""
    places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
    return Path(places[0]).resolve().parent if places[0] else None


def _loaded(root: str) -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == root}
