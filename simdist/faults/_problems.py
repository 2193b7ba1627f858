"""Problems of faults: of each field alone, of each fault as a whole, and of all faults in their world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simdist.faults._fault import Fault, Problem, Surroundings
from simdist.faults._kinds import KINDS
from simdist.values import place, shortened, shown, text_of

__all__ = ["FaultProblem", "problems_among", "problems_of"]


@dataclass(frozen=True, slots=True)
class FaultProblem:
    """One problem of the fault at `index`.

    `path` is the field and the place in it, empty for the whole fault.
    """

    index: int
    path: tuple[str | int, ...]
    text: str


def problems_of(
    faults: Iterable[object],
    world_size: int,
    *,
    max_restarts: int | None = None,
    has_disk: bool | None = None,
    has_local_disks: bool | None = None,
    has_devices: bool | None = None,
    moves_payloads: bool = True,
    others: Iterable[Fault] = (),
    names: Iterable[str] = (),
) -> list[str]:
    """Return a line for everything in `faults` that does not fit a world of `world_size` ranks; empty if all fits.

    With `max_restarts`, a fault of a life that never begins does not fit either; with `has_disk`, `has_local_disks` or
    `has_devices` False, nor does one that needs these; without `moves_payloads`, nor does one that changes payloads.
    `others` are in the world already; `names` belong to faults that may still be added.
    """
    given = list(faults)
    if not given:
        return []
    lines = [[] if isinstance(each, Fault) else [f": {_no_fault(each)}"] for each in given]
    places = [index for index, each in enumerate(given) if isinstance(each, Fault)]
    good = [each for each in given if isinstance(each, Fault)]
    about: dict[str, Any] = {
        "has_disk": has_disk,
        "has_local_disks": has_local_disks,
        "has_devices": has_devices,
        "moves_payloads": moves_payloads,
    }
    for problem in problems_among(good, world_size, max_restarts, others=others, names=names, **about):
        inside = f".{place(problem.path)}" if problem.path else ""
        lines[places[problem.index]].append(f"{inside}: {problem.text}")
    return [f"faults[{index}]{line}" for index, reported in enumerate(lines) for line in reported]


def problems_among(
    faults: Iterable[Fault],
    world_size: int,
    max_restarts: int | None,
    *,
    has_disk: bool | None = None,
    has_local_disks: bool | None = None,
    has_devices: bool | None = None,
    moves_payloads: bool = True,
    others: Iterable[Fault] = (),
    names: Iterable[str] = (),
    wrong: Mapping[int, frozenset[str]] = MappingProxyType({}),
) -> Iterator[FaultProblem]:
    """As `problems_of`, as data; `faults` holds only faults. `names` belong to faults that are not known otherwise.

    `wrong` has fields of the fault at an index that are known to be wrong: these are not reported.
    """
    given = list(faults)
    waits: dict[str, str] = dict.fromkeys(names, "")
    everybody = [*others, *given]
    for fault in everybody:
        if isinstance(fault.name, str) and fault.name:
            waits[fault.name] = fault.after if isinstance(fault.after, str) else ""
    borne = Counter(fault.name for fault in everybody if isinstance(fault.name, str) and fault.name)
    taken = frozenset(name for name, count in borne.items() if count > 1)
    for index, fault in enumerate(given):
        misfits = {**fault.misfits(), **dict.fromkeys(wrong.get(index, ()), ())}
        for name, findings in misfits.items():
            for finding in findings:
                yield FaultProblem(index, (name, *finding.path), finding.text)
        surroundings = Surroundings(
            world_size,
            max_restarts,
            has_disk,
            waits,
            taken,
            frozenset(misfits),
            has_local_disks,
            has_devices,
            moves_payloads,
        )
        for field, text in _asked(fault, surroundings, misfits):
            yield FaultProblem(index, (field,) if field else (), text)


def _asked(fault: Fault, surroundings: Surroundings, misfits: Mapping[str, object]) -> list[Problem]:
    """Return the problems that the fault itself reports; none if it raises because of misfits already found."""
    if isinstance(fault, tuple(KINDS.values())):
        return list(fault.problems(surroundings))
    try:
        found: list[Any] = list(fault.problems(surroundings))
        wrong = [each for each in found if not _is_problem(each)]
        if wrong:
            return [("", f"its problems() has to yield pairs of a field's name and a text, not {shown(wrong[0])}")]
        return found
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a class of the user's, which may raise anything
        if misfits:
            return []
        return [("", f"its problems() raised {type(error).__name__}: {shortened(text_of(error), 300)}")]


def _is_problem(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, str) for each in value)


def _no_fault(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Fault):
        return f"expected a fault from simdist.faults, found the class {value.__name__}; call it with its arguments"
    name = KINDS[value].__name__ if isinstance(value, str) and value in KINDS else ""
    hint = f"; write simdist.faults.{name}(...)" if name else ""
    return f"expected a fault from simdist.faults, found {shown(value)}{hint}"
