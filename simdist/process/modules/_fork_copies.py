"""Contents of the program's modules, classes and functions that a forked child has for itself.

A fork copies all memory. Here parent and child run the same functions, and these read the same dictionaries and cells:
of their modules, of classes, of closures. So their contents are exchanged when the baton goes to the child and back:
first copies of the parent's (`_copiers`), later what the child has made of them. A child's writes are its own, and it
does not see its parent's later ones.

Only what the child can reach of the user's code is copied: from what it is handed, from the code that starts it, and
from there through modules, functions, closures, default arguments and classes.

Invariants: `_present` is the child whose contents are in place, or None while the contents are those for all others;
the contents of all other children are in their `_Copy`. A dictionary whose count of changes is the one that was noted
still has the contents that it had then, so a hand-over writes only values that differ, and compares only what has
changed.

In doubt: installed libraries, modules of the user that can be reached only by a name in `sys.modules`, and default
arguments that nothing can change stay shared between parent and child. Attributes that the child sets on libraries are
its own nevertheless (`_attributes`), and so are writes into a library's tables (`_library_tables`); both see writes
into other objects of theirs.
"""

from __future__ import annotations

import sys
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from enum import EnumType
from types import CellType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.frames import is_ours, is_user_file
from simdist.inside.python import count_of_changes, namespace_of, note_change
from simdist.process._process import SimProcess
from simdist.process._runtime import Runtime
from simdist.process.modules._copiers import Copies, lay_to_rest

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["ForkCopies", "is_users"]

_T = TypeVar("_T")
_Dict = dict[str, Any]
_Defaults = tuple[tuple[Any, ...] | None, dict[str, Any] | None]
_Holder = ModuleType | type | FunctionType
Variables = list[tuple[ContextVar[Any], object]]
"""Context variables, with their values."""
_EMPTY = object()
_TupleField = type(vars(namedtuple("_Tuple", "field"))["field"])  # what a named tuple's class has for each field
_PLAIN = {str, int, float, complex, bool, bytes, type(None), _TupleField}  # nothing changes such a value


class _Place:
    """A dictionary of a module, a class (`owner`) or a function; which contents it has while no child is present."""

    __slots__ = ("__weakref__", "count", "owner", "seen", "space", "state")

    def __init__(self, space: _Dict, owner: type | None) -> None:
        self.space = space
        self.owner = owner
        self.count = count_of_changes(space)
        self.seen = 0  # the count when it had those contents
        self.state = 0  # another number for other contents

    def look(self) -> None:
        """Note whether the others have changed it, while no child is present."""
        count = self.count.value
        if count != self.seen:
            self.seen = count
            self.state += 1


class _Own:
    """What a child has in a place: `mine` is all of it, while the child does not have the baton.

    `other` are the values that differ from those that the others have, and _EMPTY for a name that is not there: the
    child's, or the others' while it has the baton.
    """

    __slots__ = ("mine", "other", "place", "seen", "state")

    def __init__(self, place: _Place, mine: _Dict) -> None:
        self.place = place
        self.mine = mine
        self.other: _Dict = {}
        self.state = -1  # of the place, for which `other` holds
        self.seen = 0  # the place's count when the child got the baton

    def enter(self) -> None:
        """Put the child's values in place."""
        place = self.place
        place.look()
        if self.state != place.state:
            self.state = place.state
            self.other = _differing(self.mine, place.space)
        if self.other:
            self._exchange()
            self.seen = place.count.value
        else:
            self.seen = place.seen

    def leave(self) -> None:
        """Put the others' values back."""
        place = self.place
        if place.count.value != self.seen:
            others = {name: value for name, value in (self.mine | self.other).items() if value is not _EMPTY}
            self.mine = dict(place.space)
            self.other = _differing(others, place.space)
        elif not self.other:
            return
        self._exchange()
        place.seen = place.count.value

    def _exchange(self) -> None:
        space, other = self.place.space, self.other
        for name, value in other.items():
            other[name] = space.get(name, _EMPTY)
            if value is not _EMPTY:
                space[name] = value
            elif name in space:
                del space[name]
        if self.place.owner is not None and other:
            note_change(self.place.owner)


class _Copy:
    """The contents of all places that one child has for itself."""

    def __init__(self) -> None:
        self.spaces: list[_Own] = []
        # With the child's contents while another process has the baton, and with the others' while the child has.
        self.cells: list[tuple[CellType, object]] = []
        self.functions: list[tuple[FunctionType, _Defaults]] = []  # their default arguments
        self.handed: object = None
        self.finalizable: list[weakref.ref[object]] = []
        self.held: list[Connection] = []  # ends of its pipes that stay open though no copy refers to them

    def enter(self) -> None:
        """Put the child's contents in place."""
        for each in self.spaces:
            each.enter()
        self._exchange()

    def leave(self) -> None:
        """Put back what was there."""
        for each in self.spaces:
            each.leave()
        self._exchange()

    def lay_to_rest(self) -> None:
        """At the child's end: take the finalizers from the copies that it still has."""
        lay_to_rest(thing for each in self.finalizable if (thing := each()) is not None)
        self.finalizable.clear()

    def _exchange(self) -> None:
        self.cells = [(cell, _exchanged(cell, content)) for cell, content in self.cells]
        for index, (function, defaults) in enumerate(self.functions):
            self.functions[index] = function, _defaults(function)
            function.__defaults__, function.__kwdefaults__ = defaults


class _Fork:
    """A fork in the making: copies of what the child is handed, and of all that it can reach in the user's code."""

    def __init__(
        self, copies: Callable[[Callable[[_Holder], None]], Copies], place: Callable[[_Dict, type | None], _Place]
    ) -> None:
        self.copy = _Copy()
        self._place = place
        self._copies = copies(self.found)
        self._judged: dict[int, object] = {}  # holders, each looked at once
        self._waiting: list[_Holder] = []  # the user's among them, to be copied
        self._known: dict[int, object] = {}  # places that are copied

    def of(self, thing: _T) -> _T:
        """A copy of what the child is handed, which it keeps to its end."""
        mine = self._copies.of(thing)
        self.copy.handed = mine
        return mine

    def found(self, holder: _Holder) -> None:
        """Note a module, a class or a function that the child can reach."""
        if id(holder) not in self._judged:
            self._judged[id(holder)] = holder
            if is_users(holder):
                self._waiting.append(holder)

    def end(self) -> None:
        """Let go of the originals: a pipe that the parent drops is closed at once, not by a garbage collection."""
        self.copy.finalizable, self.copy.held = self._copies.finalizable, self._copies.held
        del self._copies

    def take(self, earlier: _Copy | None) -> None:
        """Copy all that has been found and what it leads to, and what `earlier`, a forked parent's copy, has."""
        if earlier is not None:
            for each in earlier.spaces:
                self._take_space(each.place.space, each.place.owner)
            for cell, _ in earlier.cells:
                self._take_cell(cell)
            for function, _ in earlier.functions:
                self._take_defaults(function)
        for holder in self._waiting:  # the list grows in the loop
            if isinstance(holder, ModuleType):
                self._take_space(vars(holder), None)
            elif isinstance(holder, type):
                self._take_class(holder)
            else:
                self._take_function(holder)

    def _take_class(self, owner: type) -> None:
        space = namespace_of(owner)
        for value in space.values():
            for function in _functions_in(value):
                self.found(function)
        self._take_space(space, owner)
        module = sys.modules.get(owner.__module__)
        if module is not None:
            self.found(module)

    def _take_function(self, function: FunctionType) -> None:
        module = sys.modules.get(function.__module__ or "")
        if module is not None and vars(module) is function.__globals__:
            self.found(module)
        else:
            self._take_space(function.__globals__, None)
        if vars(function):
            self._take_space(vars(function), None)
        for cell in function.__closure__ or ():
            self._take_cell(cell)
        if function.__defaults__ or function.__kwdefaults__:
            self._take_defaults(function)

    def _is_new(self, place: object) -> bool:
        known = id(place) in self._known
        self._known[id(place)] = place
        return not known

    def _take_space(self, space: _Dict, owner: type | None) -> None:
        if self._is_new(space):
            kept = 1 if isinstance(owner, EnumType) else 2  # a class of members keeps its tables in names like _map_
            ends = "_" * kept
            data = {name: value for name, value in space.items() if not (name[:kept] == ends == name[-kept:])}
            mine = self._copies.of(data)
            if mine is data:  # as a whole it can't be copied
                mine = {name: self._copies.of(value) for name, value in data.items()}
            mine = {name: _kept(value, mine[name]) for name, value in data.items()}
            self.copy.spaces.append(_Own(self._place(space, owner), dict(space) | mine))

    def _take_cell(self, cell: CellType) -> None:
        if self._is_new(cell):
            content = _content(cell)
            mine = content if content is _EMPTY else _kept(content, self._copies.of(content))
            self.copy.cells.append((cell, mine))

    def _take_defaults(self, function: FunctionType) -> None:
        if self._is_new(function):
            positional, named = _defaults(function)
            copies = self._copies.of((positional, named))
            mine = _kept(positional, copies[0]), _kept(named, copies[1])
            if mine[0] is not positional or mine[1] is not named:
                self.copy.functions.append((function, mine))


class ForkCopies:
    """The copies of all forked children of one world."""

    def __init__(self, runtime: Runtime) -> None:
        self._of: dict[SimProcess, _Copy] = {}
        # By the id of the dictionary, which the place keeps alive; nothing is ordered by it.
        self._places: weakref.WeakValueDictionary[int, _Place] = weakref.WeakValueDictionary()
        self._present: _Copy | None = None
        self._slots = runtime.slots
        runtime.slots.add(self._switch)
        runtime.patches.on_undo(lambda: self._switch(None, None))

    def fork(
        self, child: SimProcess, thing: _T, popen: object, end_for_child: Callable[[Connection], Connection]
    ) -> tuple[_T, Variables]:
        """Copy what the child is handed, its slots and what its code has; return the first and context variables.

        All are copied together, since they may share objects. A real child runs in the forking thread's context.
        """
        fork = _Fork(lambda found: Copies(popen, end_for_child, found), self._place)
        variables = [(variable, fork.of(value)) for variable, value in copy_context().items()]
        self._slots.copy(child, fork.of)
        mine = fork.of(thing)
        for module in _running_modules(sys._getframe(1)):
            fork.found(module)
        fork.take(self._present)
        fork.end()
        self._of[child] = fork.copy
        child.end_listeners[self._forget] = None
        return mine, variables

    def _place(self, space: _Dict, owner: type | None) -> _Place:
        place = self._places.get(id(space))
        if place is None:
            place = self._places[id(space)] = _Place(space, owner)
        return place

    def _switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        coming = None if entering is None else self._of.get(entering)
        if coming is self._present:
            return
        if self._present is not None:
            self._present.leave()
        if coming is not None:
            coming.enter()
        self._present = coming

    def _forget(self, child: SimProcess) -> None:
        self._of.pop(child).lay_to_rest()


def _differing(wanted: _Dict, present: _Dict) -> _Dict:
    """The wanted values that are not present, and _EMPTY for each name that is not wanted."""
    differing = {name: value for name, value in wanted.items() if present.get(name, _EMPTY) is not value}
    if len(wanted) != len(present) or differing:
        differing |= {name: _EMPTY for name in present if name not in wanted}
    return differing


def _exchanged(cell: CellType, content: object) -> object:
    """Put other contents into a cell, and return those that it had."""
    held = _content(cell)
    if held is not content:
        if content is _EMPTY:
            del cell.cell_contents
        else:
            cell.cell_contents = content
    return held


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _kept(value: Any, copy: Any) -> Any:
    """The value itself where nothing can change it, else its copy."""
    if type(value) in _PLAIN:
        return value
    if type(value) is tuple and type(copy) is tuple:  # `isinstance` would ask the objects of the program
        return value if all(_kept(one, two) is one for one, two in zip(value, copy, strict=True)) else copy
    return copy


def _defaults(function: FunctionType) -> _Defaults:
    return function.__defaults__, function.__kwdefaults__


def _functions_in(value: object) -> Iterable[FunctionType]:
    """The functions inside a static method, a class method or a property."""
    for name in ("__func__", "fget", "fset", "fdel", "func", "__wrapped__"):
        inside = getattr(value, name, None) if isinstance(value, staticmethod | classmethod | property) else None
        if isinstance(inside, FunctionType):
            yield inside


def _running_modules(frame: FrameType | None) -> Iterable[ModuleType]:
    """The user's modules whose functions the caller is in."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename) and not is_ours(frame):
            module = sys.modules.get(frame.f_globals.get("__name__", ""))
            if module is not None and vars(module) is frame.f_globals:
                yield module
        frame = frame.f_back


def is_users(holder: object) -> bool:
    """True for a module, a class or a function of the user's code."""
    if isinstance(holder, FunctionType):
        return is_user_file(holder.__code__.co_filename)
    if isinstance(holder, ModuleType):
        file = vars(holder).get("__file__")
        return is_user_file(file) if isinstance(file, str) else vars(holder).get("__name__") == "__main__"
    module = sys.modules.get(holder.__module__) if isinstance(getattr(holder, "__module__", None), str) else None
    return isinstance(module, ModuleType) and is_users(module)
