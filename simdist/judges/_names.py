"""The judges that come with simdist, by name, and the checks of the setting `judges`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from simdist.judges._buffers import Buffers
from simdist.judges._collectives import Collectives
from simdist.judges._finite import Finite
from simdist.judges._judge import Judge
from simdist.judges._own import is_own, own_judge
from simdist.judges.races import Races
from simdist.judges.replicas import Replicas
from simdist.judges.samples import Samples
from simdist.values import brief, guess, guess_or_list, items_of

__all__ = ["JUDGES", "judges_named", "judges_of", "judges_problem", "names_of", "with_names"]

_ALL = "all"

JUDGES: Mapping[str, type[Judge]] = MappingProxyType(
    {kind.name: kind for kind in (Replicas, Collectives, Buffers, Races, Finite, Samples)}
)


def judges_problem(wanted: object) -> str:
    """Return what is wrong with the setting; empty for a truth value, or names, "module:Class" and instances."""
    if isinstance(wanted, bool):
        return ""
    items = items_of(wanted)
    if items is None:
        return "expected True, False, or a sequence of judges and names of judges"
    names = []
    for item in items:
        if isinstance(item, str) and is_own(item):
            try:
                item = own_judge(item)
            except ValueError as error:
                return str(error)
        if isinstance(item, str):
            if item not in JUDGES:
                return f"unknown judge {brief(item)}{guess_or_list(item, JUDGES)}"
            names.append(item)
        elif isinstance(item, Judge):
            name = getattr(item, "name", None)
            if not isinstance(name, str) or not name:
                return f"{type(item).__name__} has no name; a judge's class has `name`, a text"
            names.append(name)
        else:
            return f"{brief(item)} is no judge; expected a name, or an instance of a subclass of simdist.judges.Judge"
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return f"judge {brief(twice[0])} stands there twice" if twice else ""


def judges_named(names: Sequence[str], folder: Path | None = None) -> bool | tuple[str | Judge, ...]:
    """Return the setting for names on a command line, each possibly several with commas; "all" is such a name.

    With a `folder`, the user's own judges, "module:Class", are imported from there, and made; else they stay names.

    Raises:
        ValueError: a name is unknown.
    """
    each_name = [part for name in names for part in name.split(",")]
    if _ALL in each_name:
        return True
    chosen: list[str | Judge] = list(dict.fromkeys(each_name))
    if folder is not None:
        chosen = [own_judge(each, folder) if isinstance(each, str) and is_own(each) else each for each in chosen]
    problem = judges_problem([each for each in chosen if not (isinstance(each, str) and is_own(each))])
    if problem:
        raise ValueError(problem)
    return tuple(chosen) or False


def with_names(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with `--judge=all` for a `--judge` without a name."""
    return [
        f"{word}={_ALL}" if word == "--judge" and not _is_name([*words, ""][place + 1]) else word
        for place, word in enumerate(words)
    ]


def _is_name(word: str) -> bool:
    return all(part in (*JUDGES, _ALL) or is_own(part) or _is_slip(part) for part in word.split(","))


def _is_slip(word: str) -> bool:
    """True if a word is no existing file, but similar to a judge's name."""
    return word.isidentifier() and not Path(word).exists() and bool(guess(word, JUDGES))


def names_of(wanted: object) -> list[str]:
    """Return the names of the judges in a setting, as they appear in findings; unknown ones are left out."""
    if wanted is True:
        return list(JUDGES)
    found: list[object] = []
    for item in items_of(wanted) or ():
        try:
            found.append(own_judge(item).name if isinstance(item, str) and is_own(item) else item)
        except ValueError:
            continue
    return [name for item in found if isinstance(name := getattr(item, "name", item), str)]


def judges_of(wanted: bool | Sequence[str | Judge]) -> list[Judge]:
    """Return the judges of a checked setting; True means all that come with simdist."""
    if isinstance(wanted, bool):
        return [kind() for kind in JUDGES.values()] if wanted else []
    return [item if isinstance(item, Judge) else own_judge(item) if is_own(item) else JUDGES[item]() for item in wanted]
