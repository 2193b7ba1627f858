"""The kinds of faults that a file can name: those of simdist, and the user's own classes by "module:Class"."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from simdist.faults import KINDS, Fault, fields_of, file_key
from simdist.scenario._schema import section
from simdist.scenario._workload import ImportProblem, import_name, importable
from simdist.values import brief, found, guess_or_list

__all__ = ["KindError", "built_fault", "fault_kind", "fault_section"]


class KindError(Exception):
    """A fault's `kind` is invalid; the text says why."""


def fault_kind(said: object, folder: Path) -> type[Fault]:
    """Return the class that a file's `kind` means; a user's class is looked for in `folder` first.

    Raises:
        KindError: there is no such kind, or it is no fault.
    """
    if not isinstance(said, str):
        raise KindError(f'expected the name of a fault or "module:Class", found {found(said)}')
    if ":" not in said:
        if said not in KINDS:
            raise KindError(f"unknown fault {brief(said)}{guess_or_list(said, KINDS)}")
        return KINDS[said]
    try:
        with importable(folder, said):
            kind = import_name(said, folder, "class", lambda each: isinstance(each, type) and issubclass(each, Fault))
    except ImportProblem as problem:
        raise KindError(str(problem)) from None
    if not (isinstance(kind, type) and issubclass(kind, Fault)):
        what = "class" if isinstance(kind, type) else type(kind).__name__
        raise KindError(f"{brief(said)} is no fault but a {what}; a fault's class is made from simdist.faults.Fault")
    try:
        fields_of(kind)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the types of its fields, which the user chose
        raise KindError(f"{brief(said)} can't be described: {type(error).__name__}: {brief(str(error))}") from None
    return kind


def fault_section(kind: type[Fault]) -> type[BaseModel]:
    """Return the keys of a fault, from the fields of its class."""
    made = _shipped if kind in KINDS.values() else _keys_of
    return made(kind)  # type: ignore[arg-type]  # to mypy a class has no hash


@functools.cache  # pydantic takes longer to make one than to check a scenario
def _shipped(kind: type[Fault]) -> type[BaseModel]:
    return _keys_of(kind)


def _keys_of(kind: type[Fault]) -> type[BaseModel]:
    return section(kind.__name__, {file_key(name): (each.spec, each.default) for name, each in fields_of(kind).items()})


def built_fault(kind: type[Fault], section: BaseModel, folder: Path) -> Fault:
    """Return the fault that a checked section of a file in `folder` describes."""
    values: dict[str, Any] = dict(section)
    fault = kind(**{name: values[file_key(name)] for name in fields_of(kind)})
    return fault if kind in KINDS.values() else fault.found_in(str(folder))
