"""Contents that a child has for itself of tables and variables in the modules of installed libraries.

A real child has copies of a library's registries, caches and counters. Here parent and child call the same functions of
a library, and these know their tables by identity. So the contents of a table are exchanged when the baton goes to the
child and back. A forked child begins with what its parent had then; so does a spawned one, which in reality begins with
what an import makes.

Covered are the libraries that the user's code names, in variables of its modules and in the code of its functions: all
tables (dictionaries, lists, sets) of their modules and classes, with the tables inside, and the variables that their
functions assign with `global`, treated as a table of their module. A module is searched for such names once, and again
when its number of variables has changed. Not covered are the standard library, torch, libraries with compiled code,
whose state can't be exchanged, and those that `_library_state` handles. A table of the standard library is not covered
either if a library has a name for it (`from sys import modules`).

Most tables are never written to. At a hand-over they are compared, all in one go, and a table is exchanged from the
first time on that a child's contents differ from the others'. A world without children has none of this.

Invariant: `_present` is the child whose contents are in place, or None while the contents are those for all others.

In doubt: of tables with 32 entries and more, and of all tables if the small ones have some two thousand together, only
the size is compared, so all see an entry that replaces another there. The objects in a table are the same for all, and
so is what a library keeps elsewhere, mostly in its objects. A variable of the program that is such a table (`from
library import TABLE`) is a copy in a forked child, which the library's functions do not know.
"""

from __future__ import annotations

import importlib.machinery
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from simdist.frames import is_user_file
from simdist.inside.python import assigned_globals
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
_KeptApart = Callable[[ModuleType, str], bool]
_MISSING = object()
_LARGE, _MANY = 32, 2_000  # entries of one table, and of all, from which on only sizes are compared
_LEFT_ALONE = NEVER_ISOLATED | APART | {"mpmath", "sympy"}  # torch uses these two
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class _Table(Protocol):
    """One of `_KINDS`, or `_Globals`."""

    def __len__(self) -> int: ...

    def copy(self) -> _Table: ...


class _Globals:
    """The variables of a module that its functions assign, as a table; _MISSING stands for one that is not there.

    Those that `_attributes` exchanges are not exchanged here.
    """

    def __init__(self, module: ModuleType, names: Sequence[str], kept_apart: _KeptApart) -> None:
        self._module = module
        self._names = names
        self._kept_apart = kept_apart

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def has(self, owner: object, name: str) -> bool:
        """True if the variable is exchanged here."""
        return owner is self._module and name in self._names and not self._kept_apart(self._module, name)

    def values(self) -> _Values:
        """A view of the values."""
        return _Values(self._names, vars(self._module))

    def copy(self) -> dict[str, object]:
        """What the variables are now."""
        return dict(zip(self._names, self.values(), strict=True))

    def fill(self, content: dict[str, object]) -> None:
        """Assign what the variables were when this content was copied."""
        module, space = self._module, vars(self._module)
        for name, value in content.items():
            if not self._kept_apart(module, name):
                if value is not _MISSING:
                    space[name] = value
                else:
                    space.pop(name, None)


class _Values:
    """The values of a module's variables at the time of iteration."""

    def __init__(self, names: Sequence[str], space: dict[str, object]) -> None:
        self._names = names
        self._space = space

    def __iter__(self) -> Iterator[object]:
        return map(self._space.get, self._names, repeat(_MISSING))


class _Own:
    """The tables of one child."""

    def __init__(self, places: list[_Table]) -> None:
        # Tables that, as far as is known, hold the same for all, with a copy of their contents.
        self._alike: list[tuple[_Table, _Table]] = [(place, place.copy()) for place in places]
        # The others, each with the contents that are not in place: the child's while it does not have the baton, those
        # for all others while it has.
        self._exchanged: list[tuple[_Table, _Table]] = []
        self.variables = [place for place in places if isinstance(place, _Globals)]
        self._remember()

    def exchange(self) -> None:
        """Put the child's contents in place or, if they are there, put back the others'."""
        if not self._looks_alike():
            self._exchanged += [each for each in self._alike if not _same(*each)]
            self._alike = [each for each in self._alike if _same(*each)]
            self._remember()
        for number, (place, content) in enumerate(self._exchanged):
            if not _same(place, content):
                self._exchanged[number] = place, place.copy()
                _fill(place, content)

    def _remember(self) -> None:
        variables = [place for place, _ in self._alike if isinstance(place, _Globals)]
        self._places = places = [place for place, _ in self._alike if not isinstance(place, _Globals)]
        self._sizes = list(map(len, places))
        small = [place for place in places if len(place) < _LARGE]
        self._parts = list(_parts(small if sum(map(len, small)) < _MANY else ()))
        self._parts += [place.values() for place in variables]  # always: they are as many as before
        self._entries = list(chain.from_iterable(self._parts))

    def _looks_alike(self) -> bool:
        # Sizes first: an entry may have moved from one table to another.
        return self._sizes == list(map(len, self._places)) and all(
            map(is_, self._entries, chain.from_iterable(self._parts))
        )


_WITH_VALUES = _MAPPINGS | {_Globals}


class LibraryTables:
    """The tables of all children of one world; `kept_apart` says of which variables `_attributes` takes care."""

    def __init__(self, runtime: Runtime, kept_apart: _KeptApart) -> None:
        self._kept_apart = kept_apart
        self._of: dict[SimProcess, _Own] = {}
        self._present: _Own | None = None
        self._libraries: dict[tuple[SimProcess, int], tuple[_Libraries, dict[int, Any], list[_Globals]]] = {}
        runtime.slots.add(self._switch)
        runtime.patches.on_undo(lambda: self._switch(None, None))

    def begin(self, child: SimProcess) -> None:
        """Give a child of the process with the baton tables of its own."""
        assert child.parent is not None
        key = child.parent.oldest, len(sys.modules)  # each rank may have libraries of its own
        if key not in self._libraries:
            libraries = _named_libraries()
            self._libraries[key] = libraries, _tables_of_python(), _globals_of(libraries, self._kept_apart)
        libraries, apart, variables = self._libraries[key]
        places = [*_tables_of(libraries, apart), *variables]
        if places:
            self._of[child] = _Own(places)
            child.end_listeners[self._forget] = None

    def exchanges(self, process: SimProcess, owner: object, name: str) -> bool:
        """True if this variable of a module is among what the child has for itself."""
        own = self._of.get(process)
        return own is not None and any(each.has(owner, name) for each in own.variables)

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
    """Iterables and views of the tables, which show their entries at the time of iteration."""
    for place in places:
        yield place
        if type(place) in _WITH_VALUES:
            yield place.values()


def _same(place: _Table, content: _Table) -> bool:
    """True if both hold the very same objects, in the same order."""
    return len(place) == len(content) and all(
        map(is_, chain.from_iterable(_parts((place,))), chain.from_iterable(_parts((content,))))
    )


def _fill(place: Any, content: Any) -> None:
    if type(place) is _Globals:
        place.fill(content)
        return
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
    # By its class: an object may warn when it is asked for an attribute, as `torch.distributed.reduce_op` does.
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
    yield from code.co_names  # including those of modules that it imports
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


def _globals_of(libraries: _Libraries, kept_apart: _KeptApart) -> list[_Globals]:
    modules = chain.from_iterable(libraries.values())
    return [_Globals(module, names, kept_apart) for name, module in modules if (names := _assigned_in(name, module))]


# By module: its number of variables, and those that it assigns. Ranks mostly share modules, and so do worlds.
_known: weakref.WeakKeyDictionary[ModuleType, tuple[int, tuple[str, ...]]] = weakref.WeakKeyDictionary()


def _assigned_in(name: str, module: ModuleType) -> tuple[str, ...]:
    """The variables that functions of a module, and methods of its classes, assign."""
    size, names = _known.get(module, (-1, ()))
    if size == len(vars(module)):
        return names
    values = list(vars(module).values())
    classes: dict[int, object] = {}
    for value in values:  # the list grows in the loop
        if issubclass(type(value), type) and value.__module__ == name and id(value) not in classes:
            classes[id(value)] = value
            values += vars(value).values()
    functions = chain.from_iterable(map(_functions_in, values))
    assigned = (assigned_globals(each.__code__) for each in functions if each.__globals__ is vars(module))
    names = tuple(dict.fromkeys(chain.from_iterable(assigned)))
    _known[module] = len(vars(module)), names
    return names


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """A function, those inside a static method, a class method or a property, and the ones that a wrapper calls."""
    if isinstance(value, property):
        for each in (value.fget, value.fset, value.fdel):
            yield from _functions_in(each)
    elif type(value) in (staticmethod, classmethod):
        yield from _functions_in(value.__func__)
    while type(value) is FunctionType:
        yield value
        value = vars(value).get("__wrapped__")


def _tables_of(libraries: _Libraries, apart: dict[int, Any]) -> list[_Table]:
    """All tables in variables of these modules, in attributes of the classes they define, and inside such tables.

    Tables in `apart` are not among them, nor are tables that only these hold.
    """
    found = dict(apart)
    for name, module in chain.from_iterable(libraries.values()):
        left = [value for variable, value in vars(module).items() if variable[:2] != "__"]
        for value in left:  # the list grows in the loop
            kind = type(value)
            if kind in _KINDS:
                if id(value) not in found:
                    found[id(value)] = value
                    left += value.values() if kind in _MAPPINGS else value
            elif issubclass(kind, type) and value.__module__ == name and id(value) not in found:
                found[id(value)] = value
                left += vars(value).values()
    return [each for identity, each in found.items() if type(each) in _KINDS and identity not in apart]
