"""Attributes of shared modules and classes, as each rank has set them.

Examples are a mock, a patched function of a library, a default in a class, a hook in `sys`. If ranks have modules of
their own, an attribute that a rank's code sets on a shared module or class is the rank's own too. From then on the
attribute is exchanged at each hand-over, and the host's is back when the world has ended.

Python does not report that an attribute of a module or a class is set. So while a world with isolation lives, the slot
for setting attributes of `ModuleType`, of `type` and of their subclasses is the one of Python classes, which looks for
a `__setattr__` and finds ours. That notes the change, and sets the attribute by the function that was in the slot.

What a rank sets in its own `builtins` (`_isolation`) is set in those of shared modules, too.

Only what the user's code and a rank's own libraries set is kept apart, directly or by `unittest.mock`, pytest's
monkeypatch and the helpers of torch's own tests. What shared libraries set in themselves (imports, caches) is for all,
as their modules are.

A process that a rank has started likewise has for itself what it sets on a module or a class of a library, which it
shares with its parent. From the first such process on this also holds in a world whose ranks share all modules.

Invariant: an attribute is in `_of_host` from the first time that a rank has set it, with the value for all processes
that have not. `_of_rank` has the value of each process that has set it, except while that process has the baton: then
the module or class has it.

In doubt: writes that do not set an attribute are not seen: `vars(module)[...]`, `global` in a shared module's function,
the inside of a list. The layout is CPython's, and checked before it is used: if it is another, nothing is kept apart
here. Metaclasses that a rank defines meanwhile keep the slower slot. Nothing is noticed while an extension module is
being loaded.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, TypeVar

from simdist.frames import is_ours, is_user_file
from simdist.inside.python import (
    Setter,
    can_exchange_setters,
    generic_setter,
    namespace_of,
    note_change,
    put_setter,
    setter_of,
)
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Runtime, current_process
from simdist.process._slots import name_own, own_names
from simdist.process.modules._fork_copies import is_users
from simdist.process.modules._library_tables import LibraryTables
from simdist.process.modules._sharing import Sharing
from simdist.process.stdlib._tempfiles import FOLDER_SLOT
from simdist.process.stdlib._warnings import FILTERS_SLOT
from simdist.process.threads._thread_slots import HOOK_SLOT

__all__ = ["AttributeViews"]

_T = TypeVar("_T")
_Holder = type | ModuleType
_MISSING = object()
_subclasses: Callable[[type], list[type]] = type.__subclasses__  # of all processes, also while a world lives
_MESSENGERS = frozenset(("unittest.mock", "_pytest.monkeypatch", "contextlib"))  # they set what their callers ask for
_TEST_HELPERS = "torch.testing._internal."  # the same: `patch_unshard` and its like set a method of FSDP's classes
_METHODS = ("__setattr__", "__delattr__")  # of a metaclass or a kind of modules, which call ours
_MOCKS = "unittest.mock"
name_own("sys", ("argv", "stdout", "stderr", "excepthook", "path", "meta_path", "path_hooks", "modules"))
name_own("os", ("environ",))
name_own("tempfile", ("tempdir",), FOLDER_SLOT)
name_own("threading", ("excepthook",), HOOK_SLOT)
name_own("warnings", ("filters", "showwarning"), FILTERS_SLOT)


class _Template:
    """A Python class, for the slot that Python classes have."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)


class _Kind:
    """Modules, or classes, and functions that set their attributes without being noticed."""

    def __init__(self, base: type, function: int) -> None:
        self.base = base
        self.function = function
        setter = Setter(function)
        self.set: Callable[[object, str, object], int] = setter.set
        self.delete: Callable[[object, str], int] = setter.delete

    def put(self, owner: _Holder, name: str, value: object) -> None:
        if value is not _MISSING:
            self.set(owner, name, value)
        elif name in vars(owner):
            self.delete(owner, name)

    def types(self) -> Iterator[type]:
        """The base and all below it, each once."""
        found: dict[type, None] = {self.base: None}
        left = [self.base]
        while left:
            each = left.pop()
            yield each
            lower = _subclasses(each)
            for below in lower:
                if below not in found:
                    found[below] = None
                    left.append(below)


class AttributeViews:
    """What each process has set on which module or class that all share, or that a child shares with its parent.

    Without `sharing` it keeps apart only what ranks' children set, or what every process sets if `of_all`.
    """

    def __init__(self, runtime: Runtime, sharing: Sharing | None, *, of_all: bool = False) -> None:
        self._runtime = runtime
        self._sharing = sharing
        self._of_all = of_all
        self._of_host: dict[tuple[int, str], tuple[_Kind, _Holder, str, object]] = {}
        self._forked: set[SimProcess] = set()  # which have the user's modules for themselves
        self._of_rank: dict[SimProcess, dict[tuple[int, str], object]] = {}
        self._present: SimProcess | None = None
        self._exchanged: list[tuple[type, int]] = []  # types, and the function that stood in their slot
        self._kinds = (
            (_Kind(ModuleType, generic_setter), _Kind(type, setter_of(type))) if can_exchange_setters() else ()
        )
        self._methods: list[tuple[dict[str, Any], dict[str, object]]] = []  # namespaces, and what stood in them
        self._covered: dict[type, None] = {}  # types whose attributes are watched
        self._made: dict[_Kind, dict[str, Callable[..., None]]] = {}  # the methods that watch them
        self._notices = False  # False as well while compiled code is loaded

    def install(self, patches: Patches) -> None:
        """From now on notice what is set, by the process that has the baton and by all others."""
        self._present = current_process()
        loader = importlib.machinery.ExtensionFileLoader
        for name in ("create_module", "exec_module"):
            patches.replace(loader, name, self.without(getattr(loader, name)))
        for kind in self._kinds:
            made: dict[str, Callable[..., None]] = {
                "__setattr__": self._setting(kind),
                "__delattr__": self._deleting(kind),
            }
            self._made[kind] = made
            self._cover(kind, made)
        self._notices = True

    def _cover(self, kind: _Kind, made: dict[str, Callable[..., None]]) -> None:
        """Watch all types of a kind that are not watched yet."""
        ours = setter_of(_Template)
        fresh = []
        for each in kind.types():
            if each in self._covered:
                continue
            self._covered[each] = None
            function = setter_of(each)
            if function == kind.function:
                fresh.append((each, function))
            # A C type with a function of its own (pybind11's) calls what is in the base's slot, and that would look
            # for the method in this very type.
            if each is kind.base or function not in (kind.function, ours):
                namespace = namespace_of(each)
                self._methods.append((namespace, {name: namespace.get(name, _MISSING) for name in made}))
                namespace.update(made)
                note_change(each)
        note_change(kind.base)
        self._exchanged += fresh  # noted first: `restore` may be called at any moment
        for each, _ in fresh:
            put_setter(each, ours)

    def without(self, load: Callable[..., _T]) -> Callable[..., _T]:
        """Make a function that loads compiled code while nothing is noticed: a metaclass that is made there, with a
        function of its own, would call itself for ever."""

        @functools.wraps(load)
        def loading(*args: object) -> _T:
            if not self._notices:
                return load(*args)
            ours = setter_of(_Template)
            self._notices = False
            for kind in self._kinds:
                put_setter(kind.base, kind.function)
            try:
                return load(*args)
            finally:
                if self._made:  # the world has not ended meanwhile
                    for kind in self._kinds:
                        self._cover(kind, self._made[kind])
                        put_setter(kind.base, ours)
                    self._notices = True

        return loading

    def restore(self) -> None:
        """Put back the host's attributes, and notice nothing any more."""
        self.switch(None)
        for each, function in self._exchanged:
            put_setter(each, function)
        for namespace, before in self._methods:
            for name, method in before.items():
                if method is _MISSING:
                    namespace.pop(name, None)
                else:
                    namespace[name] = method
        for kind in self._kinds:
            note_change(kind.base)
        self._exchanged.clear()
        self._methods.clear()
        self._covered.clear()
        self._made.clear()
        self._notices = False
        self._of_host.clear()
        self._of_rank.clear()
        self._forked.clear()

    def switch(self, entering: SimProcess | None) -> None:
        """Exchange attributes when the baton goes to another process, or to the host."""
        leaving = self._present
        held = {} if leaving is None else self._of_rank.get(leaving, {})
        coming = {} if entering is None else self._of_rank.get(entering, {})
        for key in {**held, **coming} if held or coming else ():
            kind, owner, name, of_host = self._of_host[key]
            now = vars(owner).get(name, _MISSING)
            if key in held:
                held[key] = now
            else:
                self._of_host[key] = kind, owner, name, now
            value = coming.get(key, of_host)
            if value is not now:  # a forked child's values are mostly its parent's
                kind.put(owner, name, value)
        self._present = entering

    def keeps_apart(self, owner: _Holder, name: str) -> bool:
        """True if processes have set this attribute, so that each of them has its own."""
        return (id(owner), name) in self._of_host

    def inherit(self, child: SimProcess) -> None:
        """Give a forked child of the process with the baton what that has set."""
        self._forked.add(child)
        held = {} if self._present is None else self._of_rank.get(self._present, {})
        if held:
            self._of_rank[child] = {
                key: vars(owner).get(name, _MISSING)
                for key, (_, owner, name, _) in self._of_host.items()
                if key in held
            }

    # -- what is set ---------------------------------------------------------------------------------------------

    def _setting(self, kind: _Kind) -> Callable[[_Holder, str, object], None]:
        def __setattr__(owner: _Holder, name: str, value: object) -> None:
            self._notice(kind, owner, name, sys._getframe(1))
            kind.set(owner, name, value)
            if isinstance(owner, ModuleType):
                self._put_in_builtins(kind, owner, name, value, sys._getframe(1))

        return __setattr__

    def _deleting(self, kind: _Kind) -> Callable[[_Holder, str], None]:
        def __delattr__(owner: _Holder, name: str) -> None:
            self._notice(kind, owner, name, sys._getframe(1))
            kind.delete(owner, name)
            if isinstance(owner, ModuleType):
                self._put_in_builtins(kind, owner, name, _MISSING, sys._getframe(1))

        return __delattr__

    def _notice(self, kind: _Kind, owner: _Holder, name: str, frame: FrameType | None) -> None:
        process = current_process()
        if process is None or process is not self._present or not self._is_rank_code(frame):
            return
        if not self._is_shared(process, owner) or _is_of_one_mock(owner):
            return
        of_slots = own_names(vars(owner)["__name__"]) if isinstance(owner, ModuleType) else {}
        if name in of_slots:
            slot = of_slots[name]
            if slot is not None:
                self._runtime.separate(slot)
            return
        tables = None if process.parent is None else self._runtime.extras.get(LibraryTables)
        if tables is not None and tables.exchanges(process, owner, name):
            return
        self._note(process, kind, owner, name)

    def _note(self, process: SimProcess, kind: _Kind, owner: _Holder, name: str) -> None:
        key = id(owner), name
        if key not in self._of_host:
            self._of_host[key] = kind, owner, name, vars(owner).get(name, _MISSING)
        self._of_rank.setdefault(process, {}).setdefault(key, None)

    def _put_in_builtins(
        self, kind: _Kind, owner: ModuleType, name: str, value: object, frame: FrameType | None
    ) -> None:
        """Let shared modules see what a rank sets in its own copy of `builtins`, such as a mock of `open`."""
        if owner is builtins or vars(owner).get("__name__") != "builtins" or sys.modules.get("builtins") is not owner:
            return
        process = current_process()
        if process is not None and process is self._present and self._is_rank_code(frame):
            self._note(process, kind, builtins, name)
            kind.put(builtins, name, value)

    def _is_rank_code(self, frame: FrameType | None) -> bool:
        """True for code of the user, and of libraries that each rank has for itself."""
        while frame is not None:
            name = frame.f_globals.get("__name__") or ""
            messenger = name in _MESSENGERS or name.startswith(_TEST_HELPERS)
            if not messenger and frame.f_code.co_name not in _METHODS:
                users = is_user_file(frame.f_code.co_filename) and not is_ours(frame)
                return users or (self._sharing is not None and self._sharing.isolates(name))
            frame = frame.f_back
        return False

    def _is_shared(self, process: SimProcess, owner: _Holder) -> bool:
        """True for what the process shares with others here, but would not share if they were real."""
        # A module that loads itself lazily has no name yet while it is made, and must not be asked for it.
        name = vars(owner).get("__name__") if isinstance(owner, ModuleType) else owner.__module__
        if not isinstance(name, str):
            return False
        if self._sharing is None:
            if self._of_all and process.parent is None:
                return True
            return process.parent is not None and not (process in self._forked and is_users(owner))
        if self._sharing.isolates(name):
            return process in self._forked and not is_users(owner)
        return name != "builtins"


def _is_of_one_mock(owner: _Holder) -> bool:
    """True for the class that each mock has for itself: it gets 77 methods, and all are exchanged with the mock."""
    module = sys.modules.get(_MOCKS)
    if module is None or isinstance(owner, ModuleType) or owner.__module__ != _MOCKS:
        return False
    names = vars(module)
    return names.get(owner.__name__) is not owner and names["NonCallableMock"] in owner.__mro__
