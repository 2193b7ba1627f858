"""Copies of a parent's objects for a forked child, made in the one memory that all processes share.

A fork copies everything. Here the objects that the child is handed are copied, with all that they refer to: the process
object, the arguments, the data set with its lists, caches and counters. So what a child writes there stays its own. The
copy goes over pickle, but objects of the user's classes are copied attribute by attribute, without their
`__getstate__`, which no fork would call.

Functions, classes and modules stay the parent's, and so does what they hold; the contents of the user's are exchanged
instead (`_fork_copies`). Parent and child share what is not copied: objects that can't be copied (open files, locks,
generators, connections of sqlite3, and those whose pickle can't be loaded, such as h5py's files); torch's operators and
objects that an installed library holds under a name, which are compared by identity (`dataclasses.MISSING`); objects of
Python's and torch's own classes that release something when they die; and what is shared memory under a real fork as
well. Shared on purpose are the locks, events and values of `multiprocessing`; its queues and connections are copies
with ends of their own.

A forked child ends without finalizing its objects. So a copy that is alive then loses its finalizer (`lay_to_rest`).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import queue
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import connection, context, queues, synchronize
from typing import Any, Never, TypeVar

from simdist.frames import is_user_file
from simdist.inside.python import FOREIGN_VALUES, finalized_already

__all__ = ["COPIERS", "Copies", "lay_to_rest"]

# For types that layers above can copy: a function that returns the copy of an object, or the object itself to share it.
COPIERS: dict[type, Callable[[Never], object]] = {}

_AS_THEY_ARE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    threading.Thread,
    synchronize.SemLock,
    synchronize.Condition,
    synchronize.Event,
    *FOREIGN_VALUES,
)
_HOLDERS = (type, types.FunctionType, types.ModuleType)
_OF_NO_OBJECT = (type, types.ModuleType, types.NoneType)  # what functions and static methods in C are bound to
# Packages of classes whose objects run the program, or in which it runs.
_NOT_THE_PROGRAMS = frozenset(("simdist", "_pytest", "pytest", "pluggy", "asyncio", "hypothesis"))
# Packages whose finalizers release what belongs to the system, or to processes and threads.
_SYSTEMS = frozenset(("torch", *sys.stdlib_module_names)) - {"__main__"}
_BY_MODULE = ("multiprocessing.sharedctypes", "multiprocessing.heap", "multiprocessing.shared_memory")
_taken: list[object] = []  # objects to which the pickle being read refers by number
# The methods in C, which no world replaces: a fork takes no turn, and wakes no thread.
_take_item: Callable[..., object] = queue.SimpleQueue.get
_put_item: Callable[..., None] = queue.SimpleQueue.put
_made: list[object] = []  # the copies that this pickle has made of objects with a finalizer
_T = TypeVar("_T")
_Holder = type | types.FunctionType | types.ModuleType
_End = connection.Connection
_Slots = tuple[dict[str, Any] | None, dict[str, object] | None]  # attributes, and the values of slots
_EMPTY = object()
_HEAP_TYPE = 1 << 9  # made by a class statement
_POINTER = struct.calcsize("P")
_COLLECTED = 1 << 14  # Python notes of its objects whether they are finalized


class _Copying(pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, end_for_child: Callable[[_End], _End], found: Callable[[_Holder], None]
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[object] = []
        self._named: dict[str, frozenset[int]] = {}  # by module: the ids of the objects that have a name in it
        self.ends: dict[int, tuple[_End, _End]] = {}  # by the id of the parent's end: it, and the child's
        self._end_for_child = end_for_child
        self._found = found

    def reducer_override(self, thing: Any) -> Any:
        if thing is _nth or thing is _bound:
            return NotImplemented
        kind = type(thing)  # not `__class__`: a fork asks no object, and some warn or compute when asked
        if kind is types.BuiltinMethodType and not isinstance(thing.__self__, _OF_NO_OBJECT):
            self.shared.append(thing)
            return _bound, (len(self.shared) - 1, thing.__self__)
        if issubclass(kind, _AS_THEY_ARE) or kind.__module__ in _BY_MODULE:
            if issubclass(kind, _HOLDERS):
                self._found(thing)
            return self._share(thing)
        copiers: dict[type, Callable[..., object]] = COPIERS
        for base, copier in copiers.items():
            if issubclass(kind, base):
                return self._share(copier(thing))
        if self._is_named(thing, str(kind.__module__)):
            return self._share(thing)
        if issubclass(kind, connection.Connection):
            if id(thing) not in self.ends:  # two with one descriptor would close it twice
                self.ends[id(thing)] = thing, self._end_for_child(thing)
            return self._share(self.ends[id(thing)][1])
        if kind is queue.SimpleQueue:
            return kind, (), _items_of(thing), None, None, _fill
        if issubclass(kind, queues.Queue | queues.SimpleQueue):
            return _bare, (kind,), thing.__getstate__(), None, None, _set_state_by_method
        home, has_finalizer = str(kind.__module__).partition(".")[0], hasattr(kind, "__del__")
        in_memory = issubclass(kind, io.BytesIO | io.StringIO)  # their finalizers release nothing
        if kind is object or home in _NOT_THE_PROGRAMS or (has_finalizer and home in _SYSTEMS and not in_memory):
            return self._share(thing)
        if (
            has_finalizer
            and not in_memory
            and not (kind.__weakrefoffset__ and kind.__flags__ & _COLLECTED and _is_plain(kind))
        ):
            return self._share(thing)
        self._found(kind)
        try:
            if (has_finalizer and not in_memory) or _is_plain(kind):
                return (
                    _bare_with_finalizer if has_finalizer else _bare,
                    (kind,),
                    _state_of(thing),
                    None,
                    None,
                    _set_state,
                )
            reduced = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            return self._share(thing)
        return self._share(thing) if isinstance(reduced, str) else self._or_shared(thing, *reduced)

    def _or_shared(
        self,
        thing: object,
        make: Callable[..., object],
        args: tuple[object, ...],
        state: object = None,
        items: object = None,
        pairs: object = None,
        set_state: Callable[[Any, Any], object] | None = None,
    ) -> tuple[object, ...]:
        """Return what pickle writes: it is read as a copy, or as the thing itself if the copy can't be made."""
        if items is not None or pairs is not None:
            return make, args, state, items, pairs, *([] if set_state is None else [set_state])
        self.shared.append(thing)
        place = len(self.shared) - 1
        if state is None:
            return _made_anew, (place, make, args)
        return _made_anew, (place, make, args), (place, state, set_state), None, None, _set_state_anew

    def _is_named(self, thing: object, module: str) -> bool:
        """True for an object that an installed library holds under a name (`dataclasses.MISSING`): it is shared."""
        named = self._named.get(module)
        if named is None:
            found = sys.modules.get(module)
            names = vars(found) if isinstance(found, types.ModuleType) and module != "__main__" else {}
            file = names.get("__file__")
            of_user = isinstance(file, str) and is_user_file(file)
            named = self._named[module] = frozenset() if of_user else frozenset(map(id, names.values()))
        return id(thing) in named

    def _share(self, thing: object) -> tuple[Callable[[int], object], tuple[int]]:
        self.shared.append(thing)
        return _nth, (len(self.shared) - 1,)


class Copies:
    """Copies of several things for one forked child: an object to which two of them refer is copied once.

    `end_for_child` returns the child's own `Connection` for its parent's; `found` is called for each function, class
    and module that a copy refers to. A thing that can't be copied as a whole is returned as it is.

    `finalizable` are the copies that have a finalizer. `held` are the child's ends of pipes to which only a failed copy
    refers: a thing that is returned as it is refers to the parent's ends, whose descriptors mean the child's own.
    """

    def __init__(self, popen: Any, end_for_child: Callable[[_End], _End], found: Callable[[_Holder], None]) -> None:
        self._file = io.BytesIO()
        self._popen = popen
        self._pickler = _Copying(self._file, end_for_child, found)
        self._unpickler = pickle.Unpickler(self._file)
        self.finalizable: list[weakref.ref[object]] = []
        self.held: list[_End] = []

    def of(self, thing: _T) -> _T:
        """A copy of `thing`."""
        begin = self._file.seek(0, io.SEEK_END)
        known = len(self._pickler.ends)
        context.set_spawning_popen(self._popen)
        try:
            self._pickler.dump(thing)
            self._file.seek(begin)
            _taken[:] = self._pickler.shared
            copied: _T = self._unpickler.load()
            self.finalizable += map(weakref.ref, _made)
            return copied
        except Exception:
            lay_to_rest(_made)
            self.held += [mine for _, mine in list(self._pickler.ends.values())[known:]]
            self._pickler.clear_memo()
            # The unpickler has numbered what it has read so far, and the pickler begins to count anew.
            self._unpickler = pickle.Unpickler(self._file)
            return thing
        finally:
            _taken.clear()
            _made.clear()
            context.set_spawning_popen(None)


def lay_to_rest(things: Iterable[object]) -> None:
    """Take their finalizer from objects of plain classes."""
    for thing in things:
        finalized_already(thing)


def _nth(place: int) -> object:
    return _taken[place]


def _bound(place: int, owner: object) -> object:
    """A method in C, such as `log.append`, of the copy of its owner."""
    method: Any = _taken[place]
    return method if method.__self__ is owner else getattr(owner, method.__name__)


def _is_plain(kind: type) -> bool:
    """True for a Python class without pickling methods of its own, and without state in C."""
    for name in ("__reduce_ex__", "__reduce__"):
        if getattr(kind, name) is not getattr(object, name):
            return False
    if not all(base.__flags__ & _HEAP_TYPE for base in kind.__mro__[:-1]) or kind.__basicsize__ > _size_of_plain(kind):
        return False
    try:
        probe: object = object.__new__(kind)  # types of C may look like classes of Python: locks do
        if hasattr(kind, "__del__"):
            lay_to_rest((probe,))
    except TypeError:
        return False
    return True


def _size_of_plain(kind: type) -> int:
    """The bytes of an object with nothing but attributes and slots; types of C, such as a database's, have more."""
    places = len(_slots_of(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return object.__basicsize__ + places * _POINTER


def _slots_of(kind: type) -> list[str]:
    places = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            place = f"_{base.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
            if place not in ("__dict__", "__weakref__"):
                places.append(place)
    return places


def _state_of(thing: object) -> _Slots:
    values = ((place, _attribute(thing, place)) for place in _slots_of(type(thing)))
    slots = {place: value for place, value in values if value is not _EMPTY}
    attributes: Any = _attribute(thing, "__dict__")
    return None if attributes is _EMPTY else attributes, slots


def _attribute(thing: object, name: str) -> object:
    """The attribute, without the object's own `__getattribute__`."""
    try:
        return object.__getattribute__(thing, name)
    except AttributeError:
        return _EMPTY


def _bare(kind: type) -> object:
    return object.__new__(kind)


def _bare_with_finalizer(kind: type) -> object:
    thing = _bare(kind)
    _made.append(thing)
    return thing


def _set_state(thing: object, state: _Slots) -> None:
    attributes, slots = state
    if attributes is not None:
        object.__getattribute__(thing, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(thing, name, value)


def _made_anew(place: int, make: Callable[..., Any], args: tuple[object, ...]) -> object:
    thing = _taken[place]
    kind = type(thing)
    try:
        return make(*args)
    except Exception:
        base = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
        if base is object or make not in (kind, copyreg.__dict__["__newobj__"]):
            return thing
    new: Callable[..., object] = base.__new__
    try:  # the program's own constructor of an exception or a tuple takes other arguments
        return new(kind, *(args if make is kind else args[1:]))
    except Exception:
        return thing


def _set_state_anew(thing: Any, given: tuple[int, Any, Callable[[Any, Any], object] | None]) -> None:
    place, state, set_state = given
    if thing is _taken[place]:
        return
    if set_state is not None:
        set_state(thing, state)
    elif hasattr(thing, "__setstate__"):
        thing.__setstate__(state)
    else:
        _set_state(thing, state if isinstance(state, tuple) and len(state) == 2 else (state, {}))


def _items_of(line: queue.SimpleQueue[object]) -> list[object]:
    items = [_take_item(line, False) for _ in range(line.qsize())]
    _fill(line, items)
    return items


def _fill(line: queue.SimpleQueue[object], items: list[object]) -> None:
    for item in items:
        _put_item(line, item)


def _set_state_by_method(thing: Any, state: object) -> None:
    thing.__setstate__(state)
