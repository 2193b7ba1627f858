"""Imports the workload's function, and other names of a file, from its folder; forgets them after the run."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from simdist.faults import Fault
from simdist.scenario._plan import Workload
from simdist.values import brief, guess, plain, shortened, text_of

__all__ = ["ImportProblem", "WorkloadError", "fill", "filled_faults", "import_name", "import_workload", "importable"]

_T = TypeVar("_T")


class ImportProblem(Exception):
    """A name "module:function" can't be resolved; the text says why."""


class WorkloadError(Exception):
    """The workload can't be loaded; `key` is the key of the [workload] section that is wrong."""

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
    path = list(sys.path)
    root = target.partition(":")[0].partition(".")[0]
    aside = _loaded(root) if _shadows(folder, root) else {}
    for name in aside:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        # By root: a library deeper inside the folder, as in a virtual environment, was found by another entry.
        roots = {name.partition(".")[0] for name in sys.modules.keys() - before}
        for new in sorted(roots - before):
            module = sys.modules.get(new)
            # An entry that is no module was put there by the program itself.
            if _home(module) == folder or (new == root and not isinstance(module, ModuleType)):
                for name in _loaded(new):
                    del sys.modules[name]
        sys.modules.update(aside)


def import_workload(workload: Workload) -> Callable[..., object]:
    """Return the workload's function; call it inside `importable`.

    Raises:
        WorkloadError: no such module or function, an exception while importing, or arguments that do not fit.
    """
    try:
        function = import_name(workload.target, workload.folder, "function", inspect.isfunction)
    except ImportProblem as problem:
        raise WorkloadError("target", str(problem)) from problem.__cause__
    if not callable(function):
        raise WorkloadError("target", f"{brief(workload.target)} is no function but a {type(function).__name__}")
    kind = _what_does_not_run(function)
    if kind:
        raise WorkloadError("target", f"{brief(workload.target)} is {kind}; a rank calls a plain function")
    _check_arguments(function, workload)
    return function


def import_name(target: str, folder: Path, noun: str, is_one: Callable[[object], bool]) -> object:
    """Return the value of "module:name", looked for in `folder` first; call it inside `importable`.

    `noun` is its expected kind, and `is_one` selects names of this kind in the module, for a hint.

    Raises:
        ImportProblem: no such module or name, or an exception while importing.
    """
    module_name, colon, name = target.partition(":")
    if not (colon and re.fullmatch(r"\w+(\.\w+)*", module_name) and name.isidentifier()):
        raise ImportProblem(f"{brief(target)} is no 'module:{noun}'")
    module = _import(module_name, folder)
    try:
        value: object = getattr(module, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module's own __getattr__, which may raise anything
        text = f"module {brief(module_name)} has no {noun} {brief(name)}: its __getattr__ raised "
        raise ImportProblem(f"{text}{type(error).__name__}: {shortened(text_of(error), 300)}") from None
    if value is None:
        what = "module" if isinstance(module, ModuleType) else f"the {type(module).__name__} in place of module"
        hint = guess(name, [known for known, each in _names(module).items() if is_one(each)])
        raise ImportProblem(f"{what} {brief(module_name)} has no {noun} {brief(name)}{hint}")
    return value


def fill(value: _T, tmp: str) -> _T:
    """`value` with "{tmp}" replaced by `tmp` in every string, however deep."""
    if isinstance(value, str):
        return cast("_T", value.replace("{tmp}", tmp))
    if isinstance(value, Mapping):
        return cast("_T", {key: fill(item, tmp) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return cast("_T", type(value)(fill(item, tmp) for item in value))
    return value


def filled_faults(faults: Sequence[Fault], tmp: str) -> tuple[Fault, ...]:
    """Return the faults with "{tmp}" replaced in their texts."""
    return tuple(fault.with_texts(lambda text: text.replace("{tmp}", tmp)) for fault in faults)


def _import(name: str, folder: Path) -> ModuleType:
    kept = sys.path, sys.modules
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            text = f"no module {brief(error.name)} in {folder} or on Python's path{_near(name, folder)}"
            raise ImportProblem(text) from None
        raise ImportProblem(_failed(name, error)) from error
    except BaseException as error:  # a module may raise anything, SystemExit included
        raise ImportProblem(_failed(name, error)) from error
    finally:
        sys.path, sys.modules = kept  # which a module may delete


def _failed(name: str, error: BaseException) -> str:
    text = f"importing {brief(name)} raised {type(error).__name__}: {shortened(text_of(error), 300)}"
    if isinstance(error, SyntaxError):  # its text has the place
        return text
    trace = traceback.extract_tb(error.__traceback__) if not isinstance(error, RecursionError) else []
    frames = [frame for frame in trace if not _machinery(frame.filename)]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def _machinery(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in (__file__, importlib.__file__)


def _near(name: str, folder: Path) -> str:
    parent = folder.joinpath(*name.split(".")[:-1])
    prefix = name.rpartition(".")[0]
    try:
        names = [entry.stem for entry in parent.glob("*.py") if entry.stem != "__init__"] if parent.is_dir() else []
    except OSError:  # a name that is too long for a file
        names = []
    return guess(name, [f"{prefix}.{stem}" if prefix else stem for stem in names])


def _what_does_not_run(function: Callable[..., object]) -> str:
    """Return what kind of function runs nothing when it is called; "" for all others."""
    try:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return "async"
        return "a generator" if inspect.isgeneratorfunction(function) else ""
    except Exception:  # a program's own object, which raises when it is inspected
        return ""


def _check_arguments(function: Callable[..., object], workload: Workload) -> None:
    try:
        signature = inspect.signature(function)
    except KeyboardInterrupt:
        raise
    except BaseException:  # some callables written in C have none, and others raise anything
        return
    try:
        signature.bind(*workload.args, **workload.kwargs)
    except TypeError as error:
        named = {p.name for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL}
        unknown = [key for key in workload.kwargs if key not in named]
        hint = guess(unknown[0], named) if unknown else f"; the function takes {_signature_text(signature)}"
        raise WorkloadError("kwargs" if unknown else "args", f"{shortened(plain(str(error)), 300)}{hint}") from None


def _signature_text(signature: inspect.Signature) -> str:
    try:
        return shortened(plain(str(signature)), 300)
    except Exception:  # the __repr__ of a default
        return f"({', '.join(signature.parameters)})"


def _names(module: object) -> Mapping[str, Any]:
    """Return the names in a module, or in its replacement, without its own `__getattr__`."""
    found = module.__dict__ if isinstance(module, ModuleType) else {}
    return dict(found)


def _shadows(folder: Path, root: str) -> bool:
    """True if `folder` has a module `root` and another one of that name is loaded."""
    try:
        here = (folder / f"{root}.py").is_file() or (folder / root).is_dir()
    except (OSError, ValueError):  # a name that is too long for a file, or has a NUL character
        return False
    loaded = sys.modules.get(root)
    return here and loaded is not None and root != "simdist" and _home(loaded) != folder


def _home(module: ModuleType | None) -> Path | None:
    """Return the folder in which a top-level module was found."""
    names = _names(module)
    try:
        place = next(iter(names.get("__path__", ())), None) or names.get("__file__")
        return Path(place).resolve().parent if isinstance(place, str) else None
    except (OSError, TypeError, ValueError):  # the program has put something else there
        return None


def _loaded(root: str) -> dict[str, ModuleType]:
    inside = f"{root}."
    names = [name for name in sys.modules if root in name]  # few of thousands, and found in a third of the time
    return {name: sys.modules[name] for name in names if name == root or name.startswith(inside)}
