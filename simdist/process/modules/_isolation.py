"""Each rank imports the user's modules for itself, as a spawned process does.

`sys.modules` stays the same dictionary, for the interpreter itself refers to it. Its isolated modules (`_sharing`) are
exchanged when the baton goes to another process. So import statements, `importlib`, pickle, `inspect`, `typing` and
dataclasses need no hook: all read that dictionary. In addition:

- A finder in front of `sys.meta_path` gives each rank a spec of its own for a module that the host, or the first rank,
  found in the same folders by the same finders. The real loader runs, and the module keeps it.
- Each rank has code objects of its own: dynamo keeps its caches on them. A file that has changed is compiled anew, as
  is a module that a rank loads a second time.
- The import system's locks are per rank: a rank may park inside an import (a barrier at the top of a module).
- A module's `__builtins__`, and what `import builtins` returns, are the rank's own copy.
- Loggers keep one tree; what a rank changes on a logger is its own (`_logging`).
- `__subclasses__()` of a shared class leaves out the classes of other processes (`_subclasses`).

Invariant: `sys.modules` holds the isolated modules of the process with the baton, or the host's while none has it.
All others' are in their `_View`.

In doubt: a view is read back when a module was imported through the finder, or when the number of modules changed;
`sys.modules[name] = other` under a name that is there already is missed until then. Modules that register something in
C under a fixed name, such as an operator of torch.library, can be imported once only: `share` them. Another thread of
the host finds the rank's modules while a rank runs. A module found by one rank is found by the next, though another of
the name may meanwhile stand in a folder that is searched before.
"""

from __future__ import annotations

import builtins
import copy
import functools
import importlib._bootstrap as bootstrap
import importlib.machinery
import marshal
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import filterfalse
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simdist.inside.python import original
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Runtime, current_process, current_runtime
from simdist.process._undoing import call_all
from simdist.process._when_imported import report_own
from simdist.process.modules._attributes import AttributeViews
from simdist.process.modules._handed_back import HandedBack
from simdist.process.modules._handed_over import HandedOver
from simdist.process.modules._left_behind import belongs_to_library
from simdist.process.modules._sharing import Sharing
from simdist.process.modules._subclasses import of_process, without_those_of_others
from simdist.process.stdlib._logging import LoggingViews

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

    from _typeshed.importlib import MetaPathFinderProtocol

__all__ = ["Isolation", "handed_over", "own", "run_program"]

_bootstrap: ModuleType = bootstrap  # these have what the stubs leave out
_runpy: ModuleType = runpy
_T = TypeVar("_T")
_Loads = TypeVar("_Loads", bound=Callable[..., None])
_LOAD = "__simdist_load__"  # in a `_Program` that has not been imported: the function that imports it
_PATHS = ("path", "meta_path", "path_hooks")  # lists in `sys` that say where modules come from


class _Program(ModuleType):
    """`__main__` of a process that was not started with a program of its own: the program that the host runs.

    It is imported when one of its names is first read, or a child begins.
    """

    def __getattr__(self, name: str) -> Any:
        load = vars(self).get(_LOAD)
        if load is not None and not name.startswith("__"):
            try:
                load(self)
            except Exception as error:
                raise AttributeError(f"the program, which holds {name!r}, can't be imported: {error!r}") from error
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _View:
    """What one process, or the host, has in `sys.modules` for itself."""

    __slots__ = ("builtins", "found", "locks", "modules", "paths")

    def __init__(self, own_builtins: ModuleType, paths: Iterable[list[object]]) -> None:
        self.paths = list(paths)  # those of `_PATHS`
        self.builtins = own_builtins
        self.modules: dict[str, ModuleType] = {"builtins": own_builtins}  # by name
        self.locks: dict[str, object] = {}  # the import system's, by module
        self.found: set[str] = set()  # the names of modules that its finder has looked for


class _Finder:
    """Finds for one rank the modules that other finders find for all."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self._isolation.spec_for(name, path, target)


def _as_importlib(function: _Loads) -> _Loads:
    # Python leaves the frames of its own importing out of tracebacks; it knows them by their file.
    plain: Any = function
    plain.__code__ = plain.__code__.replace(co_filename=_bootstrap._find_and_load.__code__.co_filename)
    return function


class _Loader:
    """Stands in for a module's real loader while the module is made."""

    def __init__(self, isolation: Isolation, real: Loader, *, again: bool) -> None:
        self._isolation = isolation
        self._real = real
        self._again = again  # True if the process has loaded the module before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._isolation.compiled.get(spec.name) or self._real.create_module(spec)

    @_as_importlib
    def exec_module(self, module: ModuleType) -> None:
        self._isolation.execute(module, self._real, again=self._again)


# Types of loaders that a program may ask for before it loads the module.
_FILES: tuple[type, ...] = (importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader)


def _stand_in(loader: _Loader, real: Loader) -> Any:
    """The loader, as an object of the real type if that is one of Python's own."""
    if type(real) not in _FILES:
        return loader
    made: Any = copy.copy(real)
    made.create_module, made.exec_module = loader.create_module, loader.exec_module
    return made


class _Found(NamedTuple):
    """A spec, and where it was found: by finders in folders."""

    folders: list[object]
    finders: list[object]
    spec: ModuleSpec


class Isolation:
    """The modules of every process of one world.

    Example:
        >>> isolation = Isolation(runtime, Sharing())
        >>> isolation.begin()   # from here on ranks import for themselves
        >>> isolation.end()
    """

    def __init__(self, runtime: Runtime, sharing: Sharing) -> None:
        self.compiled: dict[str, ModuleType] = {}  # extension modules inside isolated packages: one for all
        self._runtime = runtime
        self._sharing = sharing
        self._finder = _Finder(self)
        self._host = self._present = _View(builtins, ())
        self._views: dict[SimProcess, _View] = {}
        self._patches = Patches()
        self._logging = LoggingViews(self._patches)
        self._attributes = AttributeViews(runtime, sharing)
        self._specs: dict[str, _Found] = {}  # by module: found once for all ranks
        self._codes: dict[str, tuple[object, bytes]] = {}  # likewise: the state of its file, and its code, marshalled
        # File and spec of the program, for `__mp_main__` of processes that spawn; None: that of the host's `__main__`.
        self._program: tuple[str, ModuleSpec | None] | None = None
        self._imported = False  # True if something was imported since the present view was read
        self._count = 0  # of entries in `sys.modules` when it was read
        self._known: frozenset[str] = frozenset()  # their names when the world began
        self._shared: set[str] = set()  # names that were found to be shared
        self._finders: list[MetaPathFinderProtocol] = []  # those of `sys.meta_path` that all processes have
        self._original_lock: Callable[[str], object] = _bootstrap._get_module_lock

    def begin(self) -> None:
        """Let each process of the runtime import for itself, from the next hand-over on."""
        runtime = self._runtime
        self._known = frozenset(sys.modules)
        self._shared = self._sharing.shared_among(list(sys.modules))
        self._host.modules = {**self._isolated(), "builtins": builtins}
        self._count = len(sys.modules)
        self._original_lock = _bootstrap._get_module_lock
        self._patches.replace(_bootstrap, "_get_module_lock", self._module_lock)
        self._patches.wrap_in_type(type, "__subclasses__", without_those_of_others)
        self._logging.install()
        self._attributes.install(self._patches)
        self._patches.replace(sys, "meta_path", [self._finder, *sys.meta_path])
        self._host.paths = [getattr(sys, name) for name in _PATHS]
        self._finders = list(sys.meta_path)
        runtime.slots.add(self._switch)
        runtime.isolation = self

    def end(self) -> None:
        """Put back what the host had; may also be called after a `begin` that failed.

        Raises:
            BaseException: the first error of a step; all others are taken.
        """
        self._runtime.isolation = None
        call_all(
            lambda: self._switch(None, None),
            self._attributes.restore,
            self._logging.restore,
            self._patches.undo,
            self._keep_finders,
            self._views.clear,
        )

    def _keep_finders(self) -> None:
        sys.meta_path.extend(finder for finder in self._finders if finder not in (self._finder, *sys.meta_path))

    # -- at a hand-over ------------------------------------------------------------------------------------------

    def _switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        self._attributes.switch(entering)
        view = self._host if entering is None else self._views.get(entering)
        if view is None:
            assert entering is not None
            mine = ModuleType("builtins")
            mine.__dict__.update(builtins.__dict__)
            view = self._views[entering] = _View(mine, map(list, self._host.paths))
            if self._sharing.isolates("__main__"):
                view.modules |= dict.fromkeys(("__main__", "__mp_main__"), self._main())
        present, modules, system = self._present, sys.modules, vars(sys)
        if view is present:
            return
        if self._imported or len(modules) != self._count:
            self._share_finders()
            present.modules = {**self._isolated(), "builtins": present.builtins}
            self._imported = False
        if present.modules.keys() != view.modules.keys():
            for name in present.modules:
                del modules[name]
        modules.update(view.modules)
        present.paths = [system.get(name, []) for name in _PATHS]  # a program may delete them
        system.update(zip(_PATHS, view.paths, strict=True))
        self._count = len(modules)
        self._present = view
        self._logging.switch(entering)

    def _share_finders(self) -> None:
        """Give all processes the finder that a shared library put among one rank's: it does so once, when imported."""
        own = getattr(sys, "meta_path", [])
        for place, finder in enumerate(own):
            if finder not in self._finders and belongs_to_library(finder, self._sharing.isolates):
                self._finders.append(finder)
                for view in (self._host, *self._views.values()):
                    known = view.paths[_PATHS.index("meta_path")]
                    if known is not own and finder not in known:
                        known.insert(place, finder)

    def inherit(self, parent: SimProcess, child: SimProcess) -> None:
        """Give a forked child the modules of the process with the baton; it owns their contents (`_fork_copies`)."""
        mine = self._present.builtins
        view = self._views[child] = _View(mine, [list(getattr(sys, name, [])) for name in _PATHS])
        view.found |= self._present.found
        view.modules = {**self._isolated(), "builtins": mine}
        self._attributes.inherit(child)
        self._logging.inherit(child)

    def keeps_apart(self, owner: type | ModuleType, name: str) -> bool:
        """True if processes have set this attribute, so that each of them has its own."""
        return self._attributes.keeps_apart(owner, name)

    def isolates(self, name: str) -> bool:
        """True if each rank imports the module for itself."""
        return self._sharing.isolates(name)

    def own_classes(self, found: Iterable[type]) -> list[type]:
        """Those of the classes that the process with the baton would find if it were real; see `_subclasses`."""
        views = (self._host, *self._views.values())
        return of_process(
            found, self.isolates, self._present.builtins, [each.modules for each in views if each is not self._present]
        )

    def _isolated(self) -> dict[str, ModuleType]:
        shared, modules = self._shared, sys.modules
        found = {}
        for name in filterfalse(shared.__contains__, list(modules)):  # there may be thousands that are shared
            module = modules[name]
            if self._sharing.isolates(name) or (name not in self._known and self._was_put_there(name, module)):
                found[name] = module
            else:
                shared.add(name)
        return found

    def _was_put_there(self, name: str, module: object) -> bool:
        """True for a module that a rank made itself instead of importing it, as a stand-in for a library.

        Extension modules put modules there, too, once for all ranks.
        """
        if name.partition(".")[0] in self._known or getattr(module, "__spec__", None) is not None:
            return False
        above = name
        while above := above.rpartition(".")[0]:
            loader = getattr(getattr(sys.modules.get(above), "__spec__", None), "loader", None)
            if isinstance(loader, importlib.machinery.ExtensionFileLoader):
                return False
        return True

    # -- importing -----------------------------------------------------------------------------------------------

    def spec_for(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A rank's own spec of an isolated module; None to leave the module to the other finders."""
        if self._present is self._host or current_process() is None or not self._sharing.isolates(name):
            return None
        self._imported = True
        again = name in self._present.found
        spec = self._find(name, path, target, again=again)
        if spec is None:
            return None
        self._present.found.add(name)
        fresh: Any = copy.copy(spec)
        fresh._initializing = False
        if type(spec.submodule_search_locations) is list:
            fresh.submodule_search_locations = list(spec.submodule_search_locations)
        if spec.loader is not None:
            fresh.loader = _stand_in(_Loader(self, spec.loader, again=again), spec.loader)
        own: ModuleSpec = fresh
        return own

    def _find(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None, *, again: bool
    ) -> ModuleSpec | None:
        """What another process has found in the same folders, unless this one looks `again`; else look for it."""
        folders: list[object] = [*(getattr(sys, "path", ()) if path is None else path)]
        finders = [finder for finder in sys.meta_path if finder is not self._finder]
        of_host = self._found_by_host(name, folders)
        known = self._specs.get(name, of_host)
        if known is not None and not again and known[:2] == (folders, finders) and _is_there(known.spec):
            return known.spec
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is not None:
            self._specs[name] = _Found(folders, [*finders], spec)
        elif of_host is not None and _is_there(of_host.spec):
            return of_host.spec
        return spec

    def _found_by_host(self, name: str, folders: list[object]) -> _Found | None:
        """What the host has imported under the name; as its `__main__` a process finds something else."""
        host = self._host
        spec = None if name == "__main__" else getattr(host.modules.get(name), "__spec__", None)
        if spec is None:
            return None
        above = name.rpartition(".")[0]
        searched = getattr(host.modules.get(above), "__path__", folders) if above else host.paths[_PATHS.index("path")]
        finders = host.paths[_PATHS.index("meta_path")]
        return _Found([*searched], [finder for finder in finders if finder is not self._finder], spec)

    @_as_importlib
    def execute(self, module: ModuleType, real: Loader, *, again: bool = False) -> None:
        """Run a module of a rank, whose loader is `real`, and which it may run `again`."""
        name, spec = module.__name__, module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = real
        if isinstance(real, importlib.machinery.ExtensionFileLoader):
            if name not in self.compiled:  # Python refuses a second time, or both would share their state
                self.compiled[name] = module
                real.exec_module(module)
            return
        module.__dict__["__builtins__"] = self._present.builtins.__dict__
        if type(real) is not importlib.machinery.SourceFileLoader:
            real.exec_module(module)
            return
        state, known = _state(real.path), self._codes.get(name)
        if known is None or again or state is None or known[0] != state:
            known = self._codes[name] = state, marshal.dumps(real.get_code(name))
        _bootstrap._call_with_frames_removed(exec, marshal.loads(known[1]), module.__dict__)
        report_own(name)

    def _module_lock(self, name: str) -> object:
        if current_process() is None or not self._sharing.isolates(name):
            return self._original_lock(name)
        return self._present.locks.setdefault(name, _bootstrap._DummyModuleLock(name))

    # -- what the host hands over --------------------------------------------------------------------------------

    def uses(self, library: str) -> bool:
        """True if a module of the process with the baton has something in its variables for which it imported this.

        That is the library itself, something out of it, or out of a shared module that imports it. What only a
        function's own variables had is not found.
        """
        values = [value for module in self._isolated().values() for value in list(_names_in(module).values())]
        return any(_comes_from(value, library) for value in values)

    def own(self, thing: _T) -> _T:
        """The rank's own version of a module, class or function of the host's; all else as it is."""
        own: _T = self._own_of(thing)
        return own

    def _own_of(self, thing: Any) -> Any:
        if isinstance(thing, functools.partial):
            keywords = {name: self.own(each) for name, each in thing.keywords.items()}
            return functools.partial(self.own(thing.func), *map(self.own, thing.args), **keywords)
        if isinstance(thing, ModuleType):
            return self._import(thing.__name__) if self._sharing.isolates(thing.__name__) else thing
        if isinstance(thing, MethodType):
            return MethodType(self.own(thing.__func__), self.own(thing.__self__))
        if not isinstance(thing, type | FunctionType) or not self._sharing.isolates(thing.__module__ or "builtins"):
            return thing
        module = self._import(thing.__module__)
        try:
            return functools.reduce(getattr, thing.__qualname__.split("."), module)
        except AttributeError:
            return thing if isinstance(thing, type) else self._over(module, thing)

    def handed_over(self, thing: _T) -> _T:
        """A thing of the host, with the rank's own classes and functions in it."""
        return HandedOver(self.own, self._sharing.isolates)(thing)

    def _over(self, module: ModuleType, function: FunctionType) -> FunctionType:
        """Make the rank's version of a closure or a lambda: the same code and cells over its module's globals."""
        cells = tuple(self._own_cell(cell) for cell in function.__closure__ or ())
        made = FunctionType(function.__code__.replace(), vars(module), function.__name__, function.__defaults__, cells)
        made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
        made.__dict__.update(function.__dict__)
        return made

    def _own_cell(self, cell: CellType) -> CellType:
        try:
            held = cell.cell_contents
        except ValueError:  # empty as yet
            return cell
        mine = self.own(held)
        return cell if mine is held else CellType(mine)

    def import_main(self) -> None:
        """In a spawned process: import the program, as `__mp_main__`, so that its guarded main part does not run."""
        load = vars(sys.modules["__main__"]).get(_LOAD)
        if load is not None:
            load(sys.modules["__main__"])

    def _import(self, name: str) -> ModuleType:
        if name == "__main__":
            self.import_main()
        if name in sys.modules:
            return sys.modules[name]
        imported: ModuleType = _bootstrap._gcd_import(name)
        return imported

    def _main(self) -> ModuleType:
        """What a new process finds as `__main__`, and as `__mp_main__`: as multiprocessing's spawn makes it."""
        host = self._host.modules.get("__main__")
        file, spec = self._program or (getattr(host, "__file__", None), getattr(host, "__spec__", None))
        main = _Program("__mp_main__")
        # As multiprocessing's `_fixup_main_from_name`: the main part of a package, folder or archive is not guarded.
        if file is not None and (spec is None or spec.name.rpartition(".")[2] != "__main__"):
            file = os.path.normpath(file)
            if spec is None:
                spec = importlib.machinery.ModuleSpec("__mp_main__", None, origin=file)
                spec.has_location = True
            main.__file__, main.__spec__, main.__package__ = file, copy.copy(spec), spec.parent
            vars(main)[_LOAD] = self._load_main
        return main

    def _load_main(self, main: ModuleType) -> None:
        names = vars(main)
        load = names.pop(_LOAD)
        try:
            self.execute(main, importlib.machinery.SourceFileLoader("__mp_main__", names["__file__"]))
        except BaseException:
            names[_LOAD] = load  # the next caller gets the error, too
            raise
        main.__class__ = ModuleType

    def run_program(self, script: str, *, module: bool) -> None:
        """Run a script, or a module as `python -m` does, as the rank's `__main__`; see the function `run_program`."""
        main = ModuleType("__main__")
        names = main.__dict__
        self._imported = True
        for name in ("__main__", "__mp_main__"):
            sys.modules.pop(name, None)
        if module:
            _, spec, code = _runpy._get_module_details(script)
            self._program = spec.origin, spec
            names.update(__spec__=spec, __package__=spec.parent, __loader__=spec.loader, __cached__=spec.cached)
            if script != "__main__":
                sys.argv[0] = spec.origin
        else:
            loader = importlib.machinery.SourceFileLoader("__main__", script)
            self._program = script, None
            names.update(__spec__=None, __package__=None, __loader__=loader, __cached__=None)
            if script not in self._codes:
                self._codes[script] = None, marshal.dumps(loader.get_code("__main__"))
            code = marshal.loads(self._codes[script][1])
        names.update(__file__=self._program[0], __builtins__=self._present.builtins)
        sys.modules["__main__"] = main
        exec(code, names)

    def handed_back(self, thing: _T) -> _T:
        """What a rank returned or raised, as objects of the host's classes if the host has the same ones."""
        return HandedBack(self._of_host)(thing)

    def _of_host(self, thing: Any) -> Any:
        name = getattr(thing, "__module__", None) or "builtins"
        if name == "builtins" or not self._sharing.isolates(name):
            return thing
        found: Any = self._host.modules.get("__main__" if name == "__mp_main__" else name)
        for part in thing.__qualname__.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, type | FunctionType) else thing


def _comes_from(value: object, library: str) -> bool:
    if isinstance(value, ModuleType):
        name = _names_in(value).get("__name__")
    else:
        name = value.__module__ if isinstance(value, (type, FunctionType, BuiltinFunctionType)) else None
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    there = [sys.modules[each] for each in (name, top) if each in sys.modules]
    return top == library or any(library in _names_in(module) for module in there)


def _names_in(module: ModuleType) -> dict[str, object]:
    """The variables of a module; one that loads itself when it is first used stays unloaded."""
    names: dict[str, object] = object.__getattribute__(module, "__dict__")
    return names


def _state(path: str) -> object:
    """What changes with a file's content; None if the host has no such file."""
    try:
        found = original(os.stat)(path)
    except (OSError, ValueError):
        return None
    return path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_there(spec: ModuleSpec) -> bool:
    return not spec.has_location or spec.origin is None or _state(spec.origin) is not None


def own(thing: _T) -> _T:
    """On a rank: its own version of a class, function or module of the host. All else, or without isolation, stays."""
    runtime = current_runtime()
    return thing if runtime is None or runtime.isolation is None else runtime.isolation.own(thing)


def handed_over(thing: _T) -> _T:
    """On a rank: a thing of the host as a real process would get it, with the rank's own classes in it; see `own`."""
    runtime = current_runtime()
    return thing if runtime is None or runtime.isolation is None else runtime.isolation.handed_over(thing)


def run_program(script: str, *, module: bool = False) -> None:
    """Run a script on a rank as its `__main__`, or a module as `python -m` does; the world isolates modules.

    The module `__main__` is that of a folder or an archive which `sys.path` begins with.

    Raises:
        BaseException: the error that the program raises.
    """
    runtime = current_runtime()
    assert runtime is not None
    assert runtime.isolation is not None
    runtime.isolation.run_program(script, module=module)
