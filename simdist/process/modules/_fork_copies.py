"""Contents of the program's modules, classes and functions that a forked child has for itself.

A fork copies all memory. Here parent and child run the same functions, and these read the same dictionaries and cells:
of their modules, of classes, of closures. So their contents are exchanged when the baton goes to the child and back:
first copies of the parent's (`_copiers`), later what the child has made of them. A child's writes are its own, and it
does not see its parent's later ones.

Only what the child can reach of the user's code is copied: from what it is handed, from the code that starts it, and
from there through modules, functions, closures, default arguments and classes.

Invariant: `_present` is the child whose contents are in place, or None while the contents are those for all others; the
contents of all other children are in their `_Copy`.

In doubt: installed libraries, and modules of the user that can be reached only by a name in `sys.modules`, stay shared
between parent and child. Attributes that the child sets on them are its own nevertheless (`_attributes`), and so are
writes into a library's tables (`_library_tables`); both see writes into other objects of theirs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from types import CellType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.frames import is_ours, is_user_file
from simdist.inside.python import namespace_of, note_change
from simdist.process._process import SimProcess
from simdist.process._runtime import Runtime
from simdist.process.modules._copiers import Copies, lay_to_rest

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["ForkCopies", "is_users"]

_T = TypeVar("_T")
_Dict = dict[str, Any]
_Defaults = tuple[tuple[object, ...] | None, dict[str, object] | None]
_Contents = tuple[list[_Dict], list[object], list[_Defaults]]
_Holder = ModuleType | type | FunctionType
Variables = list[tuple[ContextVar[Any], object]]
"""Context variables, with their values."""
_EMPTY = object()


class _Copy:
    """The contents of all places that one child has for itself."""

    def __init__(self) -> None:
        # Each place with the child's contents, while another process has the baton.
        self.spaces: list[tuple[_Dict, type | None, _Dict]] = []  # of modules and functions; of classes, with the class
        self.cells: list[tuple[CellType, object]] = []
        self.functions: list[tuple[FunctionType, _Defaults]] = []  # their default arguments
        self.handed: object = None
        self.finalizable: list[weakref.ref[object]] = []
        self.held: list[Connection] = []  # ends of its pipes that stay open though no copy refers to them
        self._others: _Contents = ([], [], [])  # the others' contents, while this child has the baton

    def enter(self) -> None:
        """Put the child's contents in place."""
        self._others = self._read()
        self._write(
            [each[-1] for each in self.spaces], [each[-1] for each in self.cells], [d for _, d in self.functions]
        )

    def leave(self) -> None:
        """Put back what was there."""
        spaces, cells, functions = self._read()
        self._write(*self._others)
        self._others = ([], [], [])
        self.spaces = [(space, owner, mine) for (space, owner, _), mine in zip(self.spaces, spaces, strict=True)]
        self.cells = [(cell, mine) for (cell, _), mine in zip(self.cells, cells, strict=True)]
        self.functions = [(each, mine) for (each, _), mine in zip(self.functions, functions, strict=True)]

    def lay_to_rest(self) -> None:
        """At the child's end: take the finalizers from the copies that it still has."""
        lay_to_rest(thing for each in self.finalizable if (thing := each()) is not None)
        self.finalizable.clear()

    def _read(self) -> _Contents:
        return (
            [dict(space) for space, _, _ in self.spaces],
            [_content(cell) for cell, _ in self.cells],
            [_defaults(function) for function, _ in self.functions],
        )

    def _write(self, spaces: list[_Dict], cells: list[object], functions: list[_Defaults]) -> None:
        for (space, owner, _), content in zip(self.spaces, spaces, strict=True):
            _assign(space, owner, content)
        for (cell, _), held in zip(self.cells, cells, strict=True):
            if held is not _EMPTY:
                cell.cell_contents = held
            elif _content(cell) is not _EMPTY:
                del cell.cell_contents
        for (function, _), defaults in zip(self.functions, functions, strict=True):
            function.__defaults__, function.__kwdefaults__ = defaults


class _Fork:
    """A fork in the making: copies of what the child is handed, and of all that it can reach in the user's code."""

    def __init__(self, copies: Callable[[Callable[[_Holder], None]], Copies]) -> None:
        self.copy = _Copy()
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
            for space, owner, _ in earlier.spaces:
                self._take_space(space, owner)
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
            data = {name: value for name, value in space.items() if not (name[:2] == "__" == name[-2:])}
            mine = self._copies.of(data)
            if mine is data:  # as a whole it can't be copied
                mine = {name: self._copies.of(value) for name, value in data.items()}
            self.copy.spaces.append((space, owner, dict(space) | mine))

    def _take_cell(self, cell: CellType) -> None:
        if self._is_new(cell):
            content = _content(cell)
            self.copy.cells.append((cell, content if content is _EMPTY else self._copies.of(content)))

    def _take_defaults(self, function: FunctionType) -> None:
        if self._is_new(function):
            self.copy.functions.append((function, self._copies.of(_defaults(function))))


class ForkCopies:
    """The copies of all forked children of one world."""

    def __init__(self, runtime: Runtime) -> None:
        self._of: dict[SimProcess, _Copy] = {}
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
        fork = _Fork(lambda found: Copies(popen, end_for_child, found))
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


def _assign(space: _Dict, owner: type | None, content: _Dict) -> None:
    # Writing to a class costs more than comparing.
    same = owner is not None and len(space) == len(content)
    if same and all(space.get(name, _EMPTY) is value for name, value in content.items()):
        return
    for name in [name for name in space if name not in content]:
        del space[name]
    space.update(content)
    if owner is not None:
        note_change(owner)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


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
