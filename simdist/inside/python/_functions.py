"""Functions that behave differently while a world lives, no matter which code refers to them, and since when.

`from time import sleep` in a module loaded long before, `def f(clock=time.time)`, a class attribute, a
`functools.partial`, a name that a C extension keeps: each refers to the one function object. So simdist does not
replace the names but what the object does when it is called; no reference has to be found, and none can be missed. The
object stays the same one: `is`, `pickle` and `repr` see no difference.

- A *built-in function* has three words after its header that belong together: which C function it calls, how (`flags`
  and the entry point that goes with them), and the first argument of that function, the module. Redirected, it calls
  `PyObject_Vectorcall`, whose parameters are those of a C function with `METH_FASTCALL | METH_KEYWORDS`, and the first
  argument is simdist's callable, a module so that `__self__` still is one. All words are written while the GIL is held,
  so that no other thread sees a part of them; numpy writes those of many functions at once (`_Words`).
- A *Python function* gets another code object.

Invariant: `original` returns a second function object with the former behaviour, which is never redirected. Threads
that are not ranks' reach it through the replacement, which checks the calling thread.

In doubt: the layout (`PyCFunctionObject`) is CPython's own, though unchanged from 3.8 to 3.14. Each object is checked
before it is written to, and a world is refused if it looks different. The word in which weak references to the function
are kept is never written to.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import dis
import functools
import inspect
import itertools
import textwrap
import types
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Never, TypeVar

import numpy as np

from simdist.errors import UnsupportedError

__all__ = ["Batch", "Make", "Redirection", "assigned_globals", "can_be_redirected", "code_with", "looks_up"]
__all__ += ["built_in", "inner_of", "innermost", "note_wrapper", "original", "without_wrapper"]

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., object])

Make = Callable[[Callable[..., Never]], Callable[..., object]]
"""Makes the replacement of a function; both have the signature that belongs to the name."""

_Space = ctypes.Array[ctypes.c_size_t]
_FASTCALL_KEYWORDS = 0x80 | 0x02
_METHOD = 0x200  # the C function also gets its class: `PyCMethodObject`
_MODULE, _ENTRY = 2, 4  # indices of words; the first two are the method's definition and its first argument
_WRITTEN = (0, 1, _MODULE, _ENTRY)  # between the last two, weak references
_WORD = ctypes.sizeof(ctypes.c_void_p)
_AT_ONCE = 100  # functions: numpy keeps the GIL for up to 500 elements (`NPY_BEGIN_THREADS_THRESHOLDED`)

_api: Any = ctypes.pythonapi
_prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
_new_function: Callable[[int, object, object], Callable[..., Any]] = _prototype(("PyCFunction_NewEx", _api))
_redirections: dict[int, Redirection] = {}  # by id of the function, which they keep alive
_wrappers: dict[int, tuple[object, Any]] = {}  # by id: the wrapper, and what it calls
_built_in: dict[int, tuple[object, object]] = {}  # by id: what `built_in` has made, and what it calls
_stands: dict[
    tuple[int, int, object], _Stand
] = {}  # by definition, first argument and maker: equal functions share one


class _Definition(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_void_p),
    )


def can_be_redirected(function: object) -> bool:
    """True for a function of a module, built-in or Python; not for callable objects of other kinds."""
    if isinstance(function, types.BuiltinFunctionType):
        return isinstance(function.__self__, types.ModuleType | type)
    return isinstance(function, types.FunctionType)


def original(function: _F) -> _F:
    """The function as it is outside simulated ranks, for every caller; the function itself if ranks have no other."""
    redirection = _redirections.get(id(function))
    if redirection is None:
        function = without_wrapper(function)
        redirection = _redirections.get(id(function))
    if redirection is None:
        return function
    before: _F = redirection._original
    return before


def note_wrapper(wrapper: object, function: object) -> None:
    """Note that `wrapper` replaces a function while worlds live: `original` looks through it."""
    _wrappers[id(wrapper)] = wrapper, function


def without_wrapper(function: _T) -> _T:
    """The function inside a noted wrapper; the function itself if it is none."""
    known = _wrappers.get(id(function))
    if known is None:
        return function
    inner: _T = known[1]
    return inner


def built_in(function: Callable[..., object], like: _F, module_name: str) -> _F:
    """A built-in function of a module that calls a Python function: as an attribute of a class it makes no method."""
    words = _words_of(like)
    was = _Definition.from_address(words[0])
    owner: object = getattr(like, "__self__", None)
    kind = type("replaced", (types.ModuleType,), {"__call__": staticmethod(function)})
    module: Any = kind(getattr(owner, "__name__", ""))
    module.definition = definition = _Definition(was.name, _vectorcall_address(), _FASTCALL_KEYWORDS, was.doc)
    made: Any = _new_function(ctypes.addressof(definition), module, module_name)
    _built_in[id(made)] = made, function
    of_its_kind: _F = made
    return of_its_kind


def inner_of(function: object) -> object:
    """What a wrapper wraps, also one that `built_in` has made; None for other functions."""
    known = _built_in.get(id(function))
    return getattr(function if known is None else known[1], "__wrapped__", None)


def innermost(function: _F) -> _F:
    """What is within all wrappers of a function."""
    found: Any = function
    while (inner := inner_of(found)) is not None:
        found = inner
    inside: _F = found
    return inside


class Redirection:
    """A function with two behaviours.

    Example:
        >>> import time
        >>> from time import time as early
        >>> redirection = Redirection.of(time.time, lambda original: lambda: 0.0)
        >>> redirection.switch(on=True)
        >>> early()
        0.0
        >>> redirection.switch(on=False)
    """

    __slots__ = ("_code", "_original", "_words", "function", "made_by")

    def __init__(self, function: Callable[..., object], make: Make) -> None:
        self.function = function
        self.made_by: object = make
        self._words: tuple[_Space, list[int], list[int]] | None = (
            None  # of the object; and what to write there: on, off
        )
        self._code: tuple[types.CodeType, types.CodeType] | None = None  # on, off
        self._original: Any  # a function with the signature of `function`
        if isinstance(function, types.FunctionType):
            self._original = _copy_of_python(function)
            self._code = (_code_calling(make(self._original), function.__code__), function.__code__)
        else:
            words = _words_of(function)
            key = (words[0], id(getattr(function, "__self__", None)), make)
            stand = _stands.get(key)
            if stand is None:
                stand = _stands[key] = _Stand(function, words, make)
            self._original = stand.original
            on = [*stand.first_words, words[_MODULE], _fast_entry()]
            self._words = words, on, [words[place] for place in _WRITTEN]

    @classmethod
    def of(cls, function: Callable[..., object], make: Make) -> Redirection:
        """The redirection of `function` to `make(original)`, made once: `make` must depend on nothing but `original`.

        Raises:
            UnsupportedError: this Python has another layout of functions.
        """
        known = _redirections.get(id(function))
        if known is None or known.made_by is not make:
            known = _redirections[id(function)] = cls(function, make)
        return known

    @classmethod
    def to_code(cls, function: types.FunctionType, make: Callable[[types.FunctionType], types.CodeType]) -> Redirection:
        """The redirection of a Python function to the code that `make(function)` returns, made once."""
        known = _redirections.get(id(function))
        if known is None or known.made_by is not make:
            known = _redirections[id(function)] = cls(function, lambda original: original)
            known.made_by, known._code = make, (make(function), function.__code__)
        return known

    def switch(self, *, on: bool) -> None:
        """Switch the function object to its other behaviour, or back."""
        Batch((self,)).switch(on=on)


class Batch:
    """Redirections that are switched together: a world has more than a hundred."""

    __slots__ = ("_functions", "_other", "_own", "_words")

    def __init__(self, redirections: Iterable[Redirection]) -> None:
        kept = list(redirections)
        codes = [(each.function, *each._code) for each in kept if each._code is not None]
        self._functions = [function for function, _, _ in codes]
        self._other = [other for _, other, _ in codes]
        self._own = [own for _, _, own in codes]
        words = [each._words for each in kept if each._words is not None]
        self._words = [_Words(words[first : first + _AT_ONCE]) for first in range(0, len(words), _AT_ONCE)]

    def switch(self, *, on: bool) -> None:
        """Switch all these functions to their other behaviour, or back."""
        # `map` takes half the time of a loop: worlds start by the thousand.
        deque(map(setattr, self._functions, itertools.repeat("__code__"), self._other if on else self._own), 0)
        for each in self._words:
            each.memory[each.places] = each.on if on else each.off


class _Words:
    """The words of some built-in functions, as numpy writes them: `memory` spans from the first to the last of them."""

    __slots__ = ("memory", "off", "on", "places")

    def __init__(self, functions: Sequence[tuple[_Space, list[int], list[int]]]) -> None:
        starts = [ctypes.addressof(words) for words, _, _ in functions]
        first = min(starts)
        extent = (max(starts) - first) // _WORD + _ENTRY + 1
        self.memory = np.asarray(_Memory(first, extent))
        self.places = np.array([(start - first) // _WORD + place for start in starts for place in _WRITTEN])
        self.on = np.array([word for _, on, _ in functions for word in on], dtype=np.uintp)
        self.off = np.array([word for _, _, off in functions for word in off], dtype=np.uintp)


class _Memory:
    """So many words from an address on, for numpy. A ctypes array has a type for each length, which is in a cycle."""

    def __init__(self, first: int, extent: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (extent,),
            "typestr": np.dtype(np.uintp).str,
            "data": (first, False),
        }


class _Stand:
    """What a redirected built-in function refers to. It is never freed: a thread may be in the middle of a call."""

    __slots__ = ("_definition", "_module", "first_words", "original")

    def __init__(self, function: Any, words: _Space, make: Make) -> None:
        was = _Definition.from_address(words[0])
        self.original = _new_function(words[0], function.__self__, function.__module__)
        kind = type("redirected", (types.ModuleType,), {"__call__": staticmethod(make(self.original))})
        self._module = kind(getattr(function.__self__, "__name__", ""))
        self._definition = _Definition(was.name, _vectorcall_address(), _FASTCALL_KEYWORDS, was.doc)
        _api.Py_IncRef(ctypes.py_object(self._module))  # the reference that the functions hold meanwhile
        self.first_words = ctypes.addressof(self._definition), id(self._module)


def _words_of(function: Any) -> _Space:
    """The five words after the header of a built-in function.

    Raises:
        UnsupportedError: they are not as expected.
    """
    size = type(function).__basicsize__
    if size >= object.__basicsize__ + 5 * _WORD:
        words = (ctypes.c_size_t * 5).from_address(id(function) + object.__basicsize__)
        if words[1] == id(function.__self__) and words[_MODULE] in (0, id(function.__module__)) and words[0]:
            definition = _Definition.from_address(words[0])
            if definition.name == function.__name__.encode() and not definition.flags & _METHOD:
                return words
    raise UnsupportedError(
        f"this Python keeps its built-in functions otherwise than CPython 3.11 to 3.14 do ({function!r}): its clocks "
        "can't be made virtual"
    )


def _copy_of_python(function: types.FunctionType) -> types.FunctionType:
    parts = (function.__name__, function.__defaults__, function.__closure__)
    copy = types.FunctionType(function.__code__, function.__globals__, *parts)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    copy.__doc__ = function.__doc__
    return copy


@functools.cache
def _vectorcall_address() -> int:
    return ctypes.cast(_api.PyObject_Vectorcall, ctypes.c_void_p).value or 0


@functools.cache
def _fast_entry() -> int:
    """The entry point for `METH_FASTCALL | METH_KEYWORDS`, taken from a function that has it."""
    for function in vars(builtins).values():
        if type(function) is types.BuiltinFunctionType:
            words = _words_of(function)
            if _Definition.from_address(words[0]).flags == _FASTCALL_KEYWORDS and words[_ENTRY]:
                return int(words[_ENTRY])
    raise UnsupportedError("this Python has no built-in function that takes keyword arguments: clocks can't be virtual")


def looks_up(function: types.FunctionType, name: str) -> bool:
    """True if a function reads a global name, and uses the name for nothing else."""
    return {each.opname for each in dis.get_instructions(function) if each.argval == name} == {"LOAD_GLOBAL"}


_ASSIGNING = frozenset(dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))


def assigned_globals(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that a function, or one inside it, assigns or deletes; some more than once."""
    if not _ASSIGNING.isdisjoint(code.co_code[::2]):
        for each in dis.get_instructions(code):
            if each.opcode in _ASSIGNING:
                yield each.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from assigned_globals(inner)


class _Marking(ast.NodeTransformer):
    """Replaces names by texts, which stand for values that source code can't spell."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(f"the value of {node.id}"), node) if node.id in self._names else node


def code_with(function: types.FunctionType, values: Mapping[str, object]) -> types.CodeType:
    """The code of a function, compiled anew, with these values in the place of these global names.

    Raises:
        OSError: its source is not available.
    """
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    (made,) = tree.body
    assert isinstance(made, ast.FunctionDef)
    made.decorator_list.clear()
    ast.increment_lineno(tree, first - 1)
    marks = {f"the value of {name}": value for name, value in values.items()}
    tree = _Marking(values).visit(tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the code calls texts
        module = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    # From Python 3.14 on its annotations are another code object in the module.
    (code,) = (each for each in module.co_consts if isinstance(each, types.CodeType) and each.co_name == made.name)
    return code.replace(
        co_consts=tuple(marks.get(each, each) if isinstance(each, str) else each for each in code.co_consts)
    )


def _template(*args: object, **kwargs: object) -> object:
    callee: Any = "the replacement"
    return callee(*args, **kwargs)


def _code_calling(replacement: Callable[..., object], code: types.CodeType) -> types.CodeType:
    """Code for a function with the name of `code` that calls `replacement`."""
    constants = tuple(replacement if each == "the replacement" else each for each in _template.__code__.co_consts)
    # A function takes only code with as many free variables as it has cells.
    return _template.__code__.replace(
        co_consts=constants, co_name=code.co_name, co_qualname=code.co_qualname, co_freevars=code.co_freevars
    )
