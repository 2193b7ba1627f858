"""Replaces names while a world lives, and puts them back at its end.

Worlds start by the thousand, and each replaces nearly the same names, by the same things, as the one before. So the
steps that the install functions take are remembered (`Patches.install`). The next world takes them without calling the
functions.

An error while a world starts or ends must not keep the next one from starting. So a step is noted before it is taken,
undoing a step that was not taken does nothing, and a step that fails to be undone does not keep `undo` from the others.

Invariant: remembered steps are taken only if each name refers to what it did the first time. If not, because the
program has put a mock there, the functions are called anew. `undo` puts back what was replaced, last first.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from simdist.inside.python import (
    Batch,
    Make,
    Redirection,
    built_in,
    can_be_redirected,
    namespace_of,
    noter_of_changes,
    without_wrapper,
)
from simdist.process._undoing import call_all

__all__ = ["Make", "MakeAttribute", "Patched", "Patches", "Replacement", "patched_now"]

_MISSING = object()


def _is_of_module(function: Any) -> bool:
    """True for a built-in function of a module."""
    return isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, types.ModuleType)


MakeAttribute = Callable[[Any], object]
"""Makes the replacement of an attribute of any kind from the original, as `Make` does for a function."""


@dataclass(frozen=True, slots=True, order=True)
class Patched:
    """A name that is replaced while a world lives.

    `owner` is the module or class that has the name, `how` the way in which it is replaced: "name" for what the name
    refers to, "function" for what the function itself does, however it was imported, "method" for a method of a type
    that Python code can't change, "added" for a name that the owner lacks. `by` is simdist's module that does it, `why`
    the first sentence of that module.
    """

    owner: str
    name: str
    how: str
    by: str
    why: str


def patched_now() -> list[Patched]:
    """Every name that is replaced at this moment, sorted; none outside worlds.

    Example:
        >>> import simdist
        >>> replaced = simdist.run(patched_now, world_size=1).values[0]
        >>> "time.monotonic" in [f"{each.owner}.{each.name}" for each in replaced], patched_now()
        (True, [])
    """
    home = __name__.partition(".")[0]
    files = {str(module.__file__): name for name, module in list(sys.modules.items()) if name.partition(".")[0] == home}
    return sorted({_patched(files, *row) for patches in list(Patches.living) for row in patches.rows()})


_Row = tuple[object, str, str, object, str]  # owner, name, how, what has replaced it, the module that asked for that


def _patched(files: Mapping[str, str], owner: object, name: str, how: str, replacement: object, by: str) -> Patched:
    if isinstance(owner, types.ModuleType):
        place = "os" if owner.__name__ == os.name else owner.__name__  # the module of the functions that `os` has
    else:
        kind = owner if isinstance(owner, type) else type(owner)
        place = f"{kind.__module__}.{kind.__qualname__}" + ("" if owner is kind else " (an object)")
    by = _module_of(replacement, files) or by
    return Patched(place, name, how, by, _first_sentence(by))


def _module_of(replacement: object, files: Mapping[str, str]) -> str:
    """The module of simdist that defines it, "" if none does: `functools.wraps` gives a function another's name."""
    code = getattr(getattr(replacement, "for_ranks", replacement), "__code__", None)  # see `on_ranks`
    if code is not None:
        return files.get(code.co_filename, "")
    kind = replacement if isinstance(replacement, type) else type(replacement)
    return str(kind.__module__) if str(kind.__module__).startswith("simdist") else ""


def _first_sentence(module: str) -> str:
    text = " ".join((getattr(sys.modules.get(module), "__doc__", None) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


class Replacement:
    """Makes the function `owner.name` do what `make(original)` does, while a world lives.

    `make` must depend on nothing but the original. The function is the one that is there now; a mock that a program
    puts in its place later is left alone.
    """

    __slots__ = ("function", "make", "name", "owner")

    def __init__(self, owner: object, name: str, make: Make) -> None:
        self.owner = owner
        self.name = name
        self.make = make
        self.function: Callable[..., object] = without_wrapper(getattr(owner, name))


@functools.cache
def _redirections_of(replacements: tuple[Replacement, ...]) -> tuple[_Functions, list[Replacement]]:
    """The redirections, and the replacements that can have none: the name refers to an object of another kind."""
    functions = [each for each in replacements if can_be_redirected(each.function)]
    others = [each for each in replacements if not can_be_redirected(each.function)]
    return _Functions([Redirection.of(each.function, each.make) for each in functions]), others


class _Attribute:
    """A name that refers to something else for a while; one that did not exist before is deleted again."""

    __slots__ = ("asker", "name", "original", "owner", "replacement")

    def __init__(
        self, owner: object, name: str, original: object, replacement: object, asker: Mapping[str, Any]
    ) -> None:
        self.owner = owner
        self.name = name
        self.original = original
        self.replacement = replacement
        self.asker = asker  # the names of the module that asks for the replacement

    def rows(self) -> Iterator[_Row]:
        how = "added" if self.original is _MISSING else "name"
        yield self.owner, self.name, how, self.replacement, self.asker["__name__"]

    def undo(self) -> None:
        if self.original is _MISSING:
            with contextlib.suppress(AttributeError):
                delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


class _Methods:
    """Methods of a type that Python code can't change: they are written to the dictionary behind its read-only view.

    The interpreter is informed, as C code does that changes a type.
    """

    __slots__ = ("_asker", "_names", "_namespace", "_note_change", "_originals", "_owner")

    def __init__(self, owner: type, make: Mapping[str, MakeAttribute], asker: Mapping[str, Any]) -> None:
        self._namespace = namespace_of(owner)
        self._note_change = noter_of_changes(owner)
        self._owner = owner
        self._asker = asker
        self._originals = {name: vars(owner)[name] for name in make if name in vars(owner)}
        self._names = {name: make[name](each) for name, each in self._originals.items()}

    def do(self) -> None:
        self._namespace.update(self._names)
        self._note_change()

    def rows(self) -> Iterator[_Row]:
        for name, replacement in self._names.items():
            yield self._owner, name, "method", replacement, self._asker["__name__"]

    def undo(self) -> None:
        self._namespace.update(self._originals)
        self._note_change()


class _Functions:
    """Redirected functions, which do something else no matter which code imported them, or when."""

    __slots__ = ("batch", "redirections")

    def __init__(self, redirections: Sequence[Redirection]) -> None:
        self.redirections = redirections
        self.batch = Batch(redirections)

    def do(self) -> None:
        self.batch.switch(on=True)

    def rows(self) -> Iterator[_Row]:
        for each in self.redirections:
            owner = each.function.__self__ if isinstance(each.function, types.BuiltinFunctionType) else None
            owner = sys.modules[each.function.__module__] if owner is None else owner
            yield owner, each.function.__name__, "function", each.made_by, "simdist"

    def undo(self) -> None:
        self.batch.switch(on=False)


class _Action:
    """A function to call when everything is put back."""

    __slots__ = ("undo",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.undo = action

    def rows(self) -> Iterator[_Row]:
        yield from ()


_Step = _Attribute | _Methods | _Functions | _Action


class _InDictionary:
    """Names of one module or class, written to its dictionary all at once: worlds start by the thousand."""

    __slots__ = ("_added", "_namespace", "_note_change", "_originals", "_replacements")

    def __init__(self, owner: object, attributes: Iterable[_Attribute]) -> None:
        kept = list(attributes)
        self._namespace = _dictionary_of(owner)
        self._note_change = noter_of_changes(owner) if isinstance(owner, type) else None
        self._replacements = {each.name: each.replacement for each in kept}
        self._originals = {each.name: each.original for each in kept if each.original is not _MISSING}
        self._added = [each.name for each in kept if each.original is _MISSING]

    @staticmethod
    def takes(attribute: _Attribute) -> bool:
        """False if more than the dictionary has to change: a class's special methods are in a table of C, too."""
        owner, name = attribute.owner, attribute.name
        special = name.startswith("__") and name.endswith("__")
        return type(owner) is types.ModuleType or (isinstance(owner, type) and not special)

    def do(self) -> None:
        self._namespace.update(self._replacements)
        if self._note_change is not None:
            self._note_change()

    def undo(self) -> None:
        self._namespace.update(self._originals)
        for name in self._added:
            self._namespace.pop(name, None)
        if self._note_change is not None:
            self._note_change()


class _Remembered:
    """The steps that functions took, to be repeated: all redirections at once, then the rest in its order."""

    __slots__ = (
        "_actions",
        "_attributes",
        "_elsewhere",
        "_functions",
        "_in_dictionaries",
        "_methods",
        "_names",
        "_originals",
        "_places",
    )

    def __init__(self, steps: Iterable[_Step]) -> None:
        kept = list(steps)
        self._functions = _Functions(
            [one for each in kept if isinstance(each, _Functions) for one in each.redirections]
        )
        self._methods = [each for each in kept if isinstance(each, _Methods)]
        self._actions = [each.undo for each in kept if isinstance(each, _Action)]
        self._attributes = [each for each in kept if isinstance(each, _Attribute)]
        at_once = [each for each in self._attributes if _InDictionary.takes(each)]
        self._in_dictionaries = [
            _InDictionary(owner, [each for each in at_once if each.owner is owner])
            for owner in {id(each.owner): each.owner for each in at_once}.values()
        ]
        self._elsewhere = [each for each in self._attributes if not _InDictionary.takes(each)]
        self._places = [_dictionary_of(each.owner) for each in self._attributes]
        self._names = [each.name for each in self._attributes]
        self._originals = [each.original for each in self._attributes]

    def fits(self) -> bool:
        """True if each name refers to what it did when the steps were taken first."""
        # `map` takes a third of the time of a loop: worlds start by the thousand.
        there = map(dict.get, self._places, self._names, itertools.repeat(_MISSING))
        return all(map(operator.is_, there, self._originals))

    def do(self) -> None:
        """Take the steps."""
        self._functions.do()
        for methods in self._methods:
            methods.do()
        for names in self._in_dictionaries:
            names.do()
        for each in self._elsewhere:
            setattr(each.owner, each.name, each.replacement)

    def rows(self) -> Iterator[_Row]:
        yield from self._functions.rows()
        for methods in self._methods:
            yield from methods.rows()
        for each in self._attributes:
            yield from each.rows()

    def undo(self) -> None:
        for each in self._elsewhere:
            each.undo()
        for names in self._in_dictionaries:
            names.undo()
        for methods in self._methods:
            methods.undo()
        self._functions.undo()
        call_all(*reversed(self._actions))


def _dictionary_of(owner: object) -> dict[str, Any]:
    return namespace_of(owner) if isinstance(owner, type) else vars(owner)


class Patches:
    """Attributes replaced for a while; `undo` puts every one back, the last first."""

    # (owner, name, code of `make`) -> (original, replacement) of what `wrap` has made before: worlds start by the
    # thousand.
    _made: ClassVar[dict[tuple[int, str, object], tuple[object, object, object]]] = {}
    # By type and names: methods of types that no other code can change.
    _made_in_type: ClassVar[dict[tuple[type, tuple[tuple[str, MakeAttribute], ...]], _Methods]] = {}
    _remembered: ClassVar[
        dict[tuple[Callable[[Patches], None], ...], _Remembered]
    ] = {}  # by the functions that took the steps

    living: ClassVar[weakref.WeakSet[Patches]] = weakref.WeakSet()  # for `patched_now`, which sorts

    def __init__(self) -> None:
        self._done: list[_Step | _Remembered] = []
        self.living.add(self)

    def rows(self) -> Iterator[_Row]:
        """What is replaced now; a name that two steps replace appears twice."""
        for each in self._done:
            yield from each.rows()

    def install(self, installers: tuple[Callable[[Patches], None], ...]) -> None:
        """Call these functions; or repeat the steps that they took, if each name refers to what it did then.

        Their replacements must depend on nothing but what they replace, and no name may be among them twice.
        """
        known = self._remembered.get(installers)
        if known is not None and known.fits():
            self._done.append(known)
            known.do()
            return
        before = len(self._done)
        for install in installers:
            install(self)
        self._remembered[installers] = _Remembered(
            each for each in self._done[before:] if not isinstance(each, _Remembered)
        )

    def replace(self, owner: object, name: str, replacement: object) -> None:
        """Set `owner.name`; if it did not exist before, `undo` deletes it."""
        self._replace(owner, name, replacement, sys._getframe(1).f_globals)

    def replace_all(self, owner: object, replacements: Mapping[str, object]) -> None:
        """Set attributes that exist."""
        there = vars(owner)
        asker = sys._getframe(1).f_globals
        for name, replacement in replacements.items():
            self._done.append(_Attribute(owner, name, there[name], replacement, asker))
            setattr(owner, name, replacement)

    def wrap(self, owner: object, name: str, make: MakeAttribute) -> None:
        """Replace `owner.name` by `make(original)`, which must depend on nothing but the original."""
        original = getattr(owner, name)
        key = id(owner), name, getattr(make, "__code__", make)
        made = self._made.get(key)
        if made is None or made[0] is not owner or made[1] is not original:
            wrapper: Any = make(original)
            if isinstance(owner, types.ModuleType) and _is_of_module(original):
                wrapper = built_in(wrapper, original, owner.__name__)
            made = self._made[key] = (owner, original, wrapper)
        self._replace(owner, name, made[2], sys._getframe(1).f_globals)

    def _replace(self, owner: object, name: str, replacement: object, asker: Mapping[str, Any]) -> None:
        original = vars(owner).get(name, _MISSING) if isinstance(owner, type) else getattr(owner, name, _MISSING)
        self._done.append(_Attribute(owner, name, original, replacement, asker))
        setattr(owner, name, replacement)

    def wrap_in_type(self, owner: type, name: str, make: MakeAttribute) -> None:
        """Replace the method `name` of a type that Python code can't change, by `make` of what stood there."""
        self._wrap_methods(owner, {name: make}, sys._getframe(1).f_globals)

    def wrap_all_in_type(self, owner: type, make: Mapping[str, MakeAttribute]) -> None:
        """Likewise with every method of these names that the type has."""
        self._wrap_methods(owner, make, sys._getframe(1).f_globals)

    def _wrap_methods(self, owner: type, make: Mapping[str, MakeAttribute], asker: Mapping[str, Any]) -> None:
        key = owner, tuple(make.items())
        methods = self._made_in_type.get(key)
        if methods is None:
            methods = self._made_in_type[key] = _Methods(owner, make, asker)
        self._done.append(methods)
        methods.do()

    def redirect(self, replacements: tuple[Replacement, ...]) -> None:
        """Make functions do what their replacements do, no matter which code imported them, or when."""
        functions, others = _redirections_of(replacements)
        self._switch_on(functions)
        for each in others:
            self.wrap(each.owner, each.name, each.make)

    def switch_on(self, redirections: Sequence[Redirection]) -> None:
        """Switch these redirections on."""
        self._switch_on(_Functions(redirections))

    def _switch_on(self, functions: _Functions) -> None:
        self._done.append(functions)
        functions.do()

    def on_undo(self, action: Callable[[], None]) -> None:
        """Call `action` when everything is put back, in its turn."""
        self._done.append(_Action(action))

    def undo(self) -> None:
        """Put everything back.

        Raises:
            BaseException: the first error of a step; all others are undone.
        """
        call_all(*[each.undo for each in reversed(self._done)], self._done.clear)
