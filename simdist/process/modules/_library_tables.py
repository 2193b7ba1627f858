"""What a child has for itself of the dictionaries, lists and sets that installed libraries hold in their modules.

A registry, a cache, a counter in a dictionary: a real child has copies of them. Here parent and child call the same
functions of a library, and these know their tables by identity, so what stands *in* a table is exchanged when the baton
goes to the child and back. A forked child begins with what its parent had then; so does a spawned one, which in reality
begins with what an import makes.

Looked after are the libraries that the user's code names, in variables of its modules and in the code of its functions:
all tables of their modules and classes, with the tables inside. A module is searched for such names once, and again
when it has another number of variables. Left alone are the standard library, torch, what has
compiled code, whose state nobody can exchange, and libraries of which `_library_state` knows more. A table of the
standard library is left alone too where a library has a name for it (`from sys import modules`).

Most tables nobody writes. They are compared at a hand-over, all in one go, and a table is exchanged from the first time
on that it holds something else for a child than for the others. A world without children has none of this.

Invariant: `_present` is the child whose contents are in place, or None while they are everybody else's.

In doubt: of tables with 32 entries and more, and of all where small ones have some two thousand together, only the size
is compared, so an entry that replaces another there is seen by all. What stands in a table is one object for all, and
so is what a library keeps elsewhere, in its objects above all. A variable of the program that is such a table (`from
library import TABLE`) is a copy in a forked child, which the library's functions do not know.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol, Self

from simdist.frames import is_user_file
from simdist.process._process import SimProcess
from simdist.process._runtime import Runtime
from simdist.process._user_code import Searched
from simdist.process.modules._fork_copies import is_users
from simdist.process.modules._library_state import APART
from simdist.process.modules._sharing import NEVER_ISOLATED

__all__ = ["LibraryTables"]

_Libraries = dict[str, list[tuple[str, ModuleType]]]  # modules with their names, by the name of the library
_MAPPINGS = frozenset((dict, OrderedDict, defaultdict, Counter))
_KINDS = _MAPPINGS | {list, deque, set}
_LARGE, _MANY = 32, 2_000  # entries of one table, and of all, from which on only the number is compared
_LEFT_ALONE = NEVER_ISOLATED | APART | {"mpmath", "sympy"}  # these two are torch's
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class _Table(Protocol):
    """One of `_KINDS`."""

    def __len__(self) -> int: ...

    def copy(self) -> Self: ...


class _Own:
    """The tables of one child."""

    def __init__(self, places: list[_Table]) -> None:
        # Tables that hold the same for all, as far as anybody knows, and what that is.
        self._alike = [(place, place.copy()) for place in places]
        # The others, each with what it holds for the child while that has not the baton, and for all others while it
        # has.
        self._exchanged: list[tuple[_Table, _Table]] = []
        self._remember()

    def exchange(self) -> None:
        """Put the child's contents in place; or, where they are, put back what was there."""
        if not self._looks_alike():
            self._exchanged += [each for each in self._alike if not _same(*each)]
            self._alike = [each for each in self._alike if _same(*each)]
            self._remember()
        for number, (place, content) in enumerate(self._exchanged):
            if not _same(place, content):
                self._exchanged[number] = place, place.copy()
                _fill(place, content)

    def _remember(self) -> None:
        places = [place for place, _ in self._alike]
        self._places = places
        self._sizes = list(map(len, places))
        small = [place for place in places if len(place) < _LARGE]
        self._parts = list(_parts(small)) if sum(map(len, small)) < _MANY else []
        self._entries = list(chain.from_iterable(self._parts))

    def _looks_alike(self) -> bool:
        # Sizes first: an entry may have gone from one table to another.
        return self._sizes == list(map(len, self._places)) and all(
            map(is_, self._entries, chain.from_iterable(self._parts))
        )


class LibraryTables:
    """Of all children of one world."""

    def __init__(self, runtime: Runtime) -> None:
        self._of: dict[SimProcess, _Own] = {}
        self._present: _Own | None = None
        self._libraries: dict[tuple[SimProcess, int], tuple[_Libraries, dict[int, Any]]] = {}
        runtime.slots.add(self._switch)
        runtime.patches.on_undo(lambda: self._switch(None, None))

    def begin(self, child: SimProcess) -> None:
        """The process with the baton starts a child."""
        assert child.parent is not None
        key = child.parent.oldest, len(sys.modules)  # each rank may have libraries of its own
        if key not in self._libraries:
            self._libraries[key] = _named_libraries(), _tables_of_python()
        places = _tables_of(*self._libraries[key])
        if places:
            self._of[child] = _Own(places)
            child.end_listeners[self._forget] = None

    def _switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        coming = None if entering is None else self._of.get(entering)
        if coming is self._present:
            return
        if self._present is not None:
            self._present.exchange()
        if coming is not None:
            coming.exchange()
        self._present = coming

    def _forget(self, child: SimProcess) -> None:
        del self._of[child]


def _parts(places: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """What shows the entries of the tables, whatever they are then."""
    for place in places:
        yield place
        if type(place) in _MAPPINGS:
            yield place.values()


def _same(place: _Table, content: _Table) -> bool:
    """True where the very objects stand in both, in the same order."""
    return len(place) == len(content) and all(
        map(is_, chain.from_iterable(_parts((place,))), chain.from_iterable(_parts((content,))))
    )


def _fill(place: Any, content: Any) -> None:
    place.clear()
    if type(place) in (list, deque):
        place.extend(content)
    elif type(place) is Counter:
        dict.update(place, content)  # its own would add up
    else:
        place.update(content)


def _named_libraries() -> _Libraries:
    """The libraries that the user's modules name, by their top-level name, with their modules."""
    named = set(_named()) - _LEFT_ALONE - sys.stdlib_module_names
    libraries: _Libraries = {}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top in named and isinstance(module, ModuleType):
            libraries.setdefault(top, []).append((name, module))
    return {top: found for top, found in libraries.items() if not any(map(_is_no_library_of_python, found))}


def _names_in_module(module: ModuleType) -> Collection[str]:
    return {name for value in list(vars(module).values()) for name in _names_in(value)}


_named = Searched(_names_in_module)


def _is_no_library_of_python(module: tuple[str, ModuleType]) -> bool:
    file = vars(module[1]).get("__file__")
    return isinstance(file, str) and (file.endswith(_EXTENSIONS) or is_user_file(file))


def _names_in(value: object) -> Collection[str]:
    # Of its class: an object that is asked for an attribute may warn of it, as `torch.distributed.reduce_op` does.
    kind = type(value)
    if issubclass(kind, FunctionType) and is_users(value):
        return set(_names_in_code(value.__code__))  # type: ignore[attr-defined]
    if issubclass(kind, type) and is_users(value):
        return {
            name for each in list(vars(value).values()) if not issubclass(type(each), type) for name in _names_in(each)
        }
    home = value.__name__ if issubclass(kind, ModuleType) else _home_of(value)  # type: ignore[attr-defined]
    return {home.partition(".")[0]} if isinstance(home, str) else ()


def _home_of(value: object) -> object:
    """The name of the module that defines it."""
    try:
        return (type if issubclass(type(value), type) else object).__getattribute__(value, "__module__")
    except AttributeError:
        return None


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names  # those of modules that it imports among them
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in_code(each)


def _tables_of_python() -> dict[int, Any]:
    """The tables in variables of the standard library's modules, by their identity."""
    modules = [
        module for name, module in list(sys.modules.items()) if name.partition(".")[0] in sys.stdlib_module_names
    ]
    values = chain.from_iterable(vars(module).values() for module in modules if isinstance(module, ModuleType))
    return {id(value): value for value in values if type(value) in _KINDS}


def _tables_of(libraries: _Libraries, apart: dict[int, Any]) -> list[_Table]:
    """All tables in variables of these modules, in attributes of the classes they define, and inside such tables.

    Those that are `apart` are not among them, nor what only they hold.
    """
    found = dict(apart)
    for name, module in chain.from_iterable(libraries.values()):
        left = [value for variable, value in vars(module).items() if variable[:2] != "__"]
        for value in left:  # it grows meanwhile
            kind = type(value)
            if kind in _KINDS:
                if id(value) not in found:
                    found[id(value)] = value
                    left += value.values() if kind in _MAPPINGS else value
            elif issubclass(kind, type) and value.__module__ == name and id(value) not in found:
                found[id(value)] = value
                left += vars(value).values()
    return [each for identity, each in found.items() if type(each) in _KINDS and identity not in apart]
