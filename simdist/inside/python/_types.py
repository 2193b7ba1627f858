"""Parts of types and objects that Python code can't change: dictionaries, attribute setters, what is finalized.

The C function that sets attributes is in `PyTypeObject.tp_setattro`, the 20th word of a type.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable
from types import ModuleType

from simdist.inside._facts import fact

__all__ = ["Setter", "can_exchange_setters", "finalized_already", "generic_setter", "namespace_of", "note_change"]
__all__ += ["noter_of_changes", "put_setter", "setter_of"]

_type_modified = ctypes.PYFUNCTYPE(None)(("PyType_Modified", ctypes.pythonapi))  # converted by hand, ahead of time
_finalize = ctypes.PYFUNCTYPE(None)(("PyObject_CallFinalizer", ctypes.pythonapi))
_NONE = object()
_SLOT = 19 * ctypes.sizeof(ctypes.c_void_p)
_set_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.py_object)
_delete_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)


def namespace_of(owner: type) -> dict[str, object]:
    """The dictionary of a type itself, behind its read-only view. Call `note_change` after each change."""
    (namespace,) = gc.get_referents(vars(owner))
    return namespace  # type: ignore[no-any-return]


def note_change(owner: type) -> None:
    """Clear the interpreter's caches of a type, as C code that changes a type has to."""
    _type_modified(ctypes.py_object(owner))


def finalized_already(thing: object) -> None:
    """Mark an object as finalized, so that the interpreter does not call its `__del__` when it collects the object."""
    kind = type(thing)
    space = namespace_of(kind)
    own = space.get("__del__", _NONE)
    space["__del__"] = _do_nothing
    note_change(kind)
    try:
        _finalize(ctypes.py_object(thing))
    finally:
        if own is _NONE:
            del space["__del__"]
        else:
            space["__del__"] = own
        note_change(kind)


def _do_nothing(thing: object) -> None:
    """Replace a finalizer."""


def noter_of_changes(owner: type) -> Callable[[], None]:
    """`note_change` for one type, with half the work done in advance, for code that changes it often."""
    return functools.partial(_type_modified, ctypes.py_object(owner))


class Setter:
    """The C function by which objects set and delete attributes, to be called from Python.

    Both return 0, or raise what the function raises.
    """

    __slots__ = ("_delete", "address", "set")

    def __init__(self, address: int) -> None:
        self.address = address
        self.set: Callable[[object, str, object], int] = _set_of(address)
        self._delete: Callable[[object, str, None], int] = _delete_of(address)

    def delete(self, owner: object, name: str) -> int:
        """Delete an attribute."""
        return self._delete(owner, name, None)


def _slot(owner: type) -> ctypes.c_size_t:
    return ctypes.c_size_t.from_address(id(owner) + _SLOT)


def setter_of(owner: type) -> int:
    """The address of the C function by which objects of a type set attributes."""
    return _slot(owner).value


def put_setter(owner: type, address: int) -> None:
    """Let objects of a type set attributes by another C function."""
    _slot(owner).value = address


generic_setter = ctypes.cast(ctypes.pythonapi.PyObject_GenericSetAttr, ctypes.c_void_p).value or 0
"""The address of the function of most types."""


class _Class:
    """A Python class, with the slot that Python classes have."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)


def can_exchange_setters() -> bool:
    """True if the slot is where it is expected. `type` has a function of its own, and so has a Python class."""
    return (
        setter_of(ModuleType) == generic_setter == setter_of(object)
        and len({generic_setter, setter_of(type), setter_of(_Class)}) == 3
    )


@fact(
    "python.setters",
    what="the 20th word of a type is the function that sets attributes",
    source="CPython, Include/cpython/object.h, PyTypeObject.tp_setattro",
    seen="3.11 to 3.14",
    feature="attributes that ranks set on modules and classes are shared between ranks",
)
def _setters_are_known() -> str:
    return "" if can_exchange_setters() else "something else is there"
