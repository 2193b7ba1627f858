"""The user's own judges, named "module:Class" in files, markers and on command lines."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from simdist.judges._judge import Judge
from simdist.values import brief, guess

__all__ = ["is_own", "own_judge"]

_OWN = re.compile(r"\w+(\.\w+)*:\w+")


def is_own(said: str) -> bool:
    """True for a text such as "module:Class"."""
    return _OWN.fullmatch(said) is not None


def own_judge(said: str, folder: Path | None = None) -> Judge:
    """Return an instance of the class "module:Class", which is searched on Python's path, and in `folder` first.

    Raises:
        ValueError: the class can't be imported, is no judge, or can't be made without arguments; the text says why.
    """
    module_name, _, name = said.partition(":")
    path = list(sys.path)
    sys.path[:0] = [] if folder is None else [str(folder)]
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module's own code may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            where = "" if folder is None else f" in {folder} or"
            raise ValueError(f"judge {brief(said)}: no module {brief(error.name)}{where} on Python's path") from None
        text = f"{type(error).__name__}: {error}"
        raise ValueError(f"judge {brief(said)}: module {brief(module_name)} can't be imported: {text}") from None
    finally:
        sys.path[:] = path
    kind = getattr(module, name, None)
    if kind is None:
        known = [each for each, value in vars(module).items() if isinstance(value, type) and issubclass(value, Judge)]
        raise ValueError(f"judge {brief(said)}: module {brief(module_name)} has no {brief(name)}{guess(name, known)}")
    if not (isinstance(kind, type) and issubclass(kind, Judge)):
        what = "a class" if isinstance(kind, type) else f"of type {type(kind).__name__}"
        raise ValueError(f"judge {brief(said)} is {what}, and no subclass of simdist.judges.Judge")
    try:
        return kind()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # likewise
        text = f"{type(error).__name__}: {error}"
        raise ValueError(f"judge {brief(said)} can't be made without arguments: {text}") from None
