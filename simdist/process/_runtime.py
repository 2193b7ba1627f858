"""Which process is running, and what is patched while a world lives."""

from __future__ import annotations

import _thread
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from simdist.errors import SimdistError, UnsupportedError
from simdist.kernel import Simulation
from simdist.process._patches import Make, Patches, Replacement
from simdist.process._process import SimProcess, process_of
from simdist.process._programs import Programs
from simdist.process._slots import Slot, Slots
from simdist.process._undoing import call_all

__all__ = [
    "Extra",
    "Extras",
    "Make",
    "OwnModules",
    "Patches",
    "Replacement",
    "Replacements",
    "Runtime",
    "StateLeft",
    "active_runtime",
]
__all__ += ["class_on_ranks", "current_process", "current_runtime", "on_ranks"]

_active: Runtime | None = None
_get_ident = _thread.get_ident
_T = TypeVar("_T")


class Extra(Generic[_T]):
    """A key of `Runtime.extras` whose value is of this type. A class is a key, too: of its one instance."""

    def __init__(self, name: str) -> None:
        self.name = name


class Extras(Protocol):
    """A dictionary, as far as it is used, with the type of each value known from its key."""

    def get(self, key: type[_T] | Extra[_T], /) -> _T | None:
        """The value; None if there is none."""
        ...

    def setdefault(self, key: type[_T] | Extra[_T], value: _T, /) -> _T:
        """The value; sets it to this one if there was none."""
        ...

    def clear(self) -> None:
        """Forget all."""
        ...

    def __contains__(self, key: object, /) -> bool: ...

    def __getitem__(self, key: type[_T] | Extra[_T], /) -> _T: ...

    def __setitem__(self, key: type[_T] | Extra[_T], value: _T, /) -> None: ...


_BY_A_RANK = (
    "; a rank has started it: if the rank imports the file that starts worlds, put that under "
    '`if __name__ == "__main__":`'
)


class StateLeft(Protocol):
    """What ranks leave in state that all of a process share (`modules._left_behind`)."""

    @property
    def stays(self) -> dict[str, None]:
        """What can't be taken back, in words."""
        ...

    def changes(self) -> tuple[str, ...]:
        """What ranks have changed so far, in words."""
        ...

    def restore(self) -> None:
        """Put back what can be."""
        ...


class Replacements(Protocol):
    """What a world replaces in Python (`_installed`)."""

    def state_left(self) -> StateLeft:
        """Remember what is shared, before anything is replaced."""
        ...

    def begin(self, runtime: Runtime) -> None:
        """Replace all that does not depend on the program."""
        ...

    def follow(self, patches: Patches, called: Sequence[object]) -> None:
        """Replace what user code, and the functions that the ranks run, took before."""
        ...

    def keep_file_times(self, patches: Patches) -> None:
        """Show ranks virtual times of what they write."""
        ...

    def files_cut_off(self, runtime: Runtime) -> AbstractContextManager[None]:
        """Keep tasks that are unwound from changing files."""
        ...

    def notice_writes(self, patches: Patches) -> None:
        """Wake a rank's tasks that poll when it writes to a file descriptor."""
        ...


class OwnModules(Protocol):
    """How each process imports modules for itself (`modules._isolation`)."""

    def isolates(self, name: str) -> bool:
        """True for a module that each process has for itself."""
        ...

    def uses(self, library: str) -> bool:
        """True if a module of the process with the baton has something in its variables for which it imported this."""
        ...

    def own(self, thing: _T) -> _T:
        """What the calling process has in place of a class or a function of the host."""
        ...

    def own_classes(self, found: Iterable[type]) -> list[type]:
        """Those of the classes that the calling process would find if it were real."""
        ...

    def handed_over(self, thing: _T) -> _T:
        """An object of the host in terms of the calling process's classes."""
        ...

    def handed_back(self, thing: _T) -> _T:
        """An object of a process in terms of the host's classes."""
        ...

    def import_main(self) -> None:
        """Import the program's main module for the calling process."""
        ...

    def inherit(self, parent: SimProcess, child: SimProcess) -> None:
        """Give a forked child what its parent has imported."""
        ...

    def keeps_apart(self, owner: type | ModuleType, name: str) -> bool:
        """True if processes have set this attribute, so that each of them has its own."""
        ...

    def run_program(self, script: str, *, module: bool) -> None:
        """Run a script, or a module as `python -m` does, as the main module of the calling process."""
        ...


class Runtime:
    """The processes of the one world that is active in this interpreter.

    Example:
        >>> runtime = Runtime(simulation, slots, seed=0, python=PythonReplacements())
        >>> runtime.activate()          # from here on ranks see their own process
        >>> runtime.deactivate()
    """

    def __init__(
        self,
        simulation: Simulation,
        slots: Slots,
        *,
        seed: int,
        python: Replacements,
    ) -> None:
        self.simulation = simulation
        self.slots = slots  # whose `switch` is the simulation's `on_switch`
        self.seed = seed
        self._python = python
        self.hosts: Sequence[str] = ()  # names of the cluster's, in its order
        self.patches = Patches()
        self.processes: dict[int, SimProcess] = {}  # by pid, all lives
        self.isolation: OwnModules | None = None  # while each process imports modules for itself
        self.extras: Extras = dict[Any, Any]()  # what the layers above keep for the length of the world
        self.thread_begins: list[Callable[[SimProcess], None]] = []  # called by each thread that a rank starts
        self.stops: list[Callable[[], None]] = []  # called by a thread of a rank before a debugger stops it
        self.left_behind: StateLeft  # in state that all share; there from `activate` on
        # Called with parent, child and whether it is forked, by a rank that starts a process.
        self.child_begins: list[Callable[[SimProcess, SimProcess, bool], None]] = []
        # By the encoded name of a variable: called with the process that has set or deleted it in its environment.
        self.variable_listeners: dict[bytes, Callable[[SimProcess], None]] = {}
        self.cores: set[int] | None = None  # that the host may use; its ranks take turns on one
        self.programs = Programs()  # outside the simulation that its ranks start
        self._noticing = False  # writes to file descriptors
        # Called, perhaps repeatedly, as soon as others can see when a rank's garbage closes a file.
        self.collect_in_rounds: Callable[[], None] = _nothing
        self.in_child: Callable[[], None] = self.deactivate  # called in a process forked from this one meanwhile

    def activate(self, *called: object) -> None:
        """Install every replacement; `called` is what runs on the ranks. `deactivate` takes back what an error leaves.

        Raises:
            SimdistError: another world is active.
        """
        global _active
        if _active is not None:
            raise SimdistError(
                "another simulated world is running in this process; run one after the other, or in separate processes"
                + ("" if current_process() is None else _BY_A_RANK)
            )
        UnsupportedError.take_texts()  # by earlier worlds
        self.left_behind = self._python.state_left()
        _active = self
        self._python.begin(self)
        self.slots.remember_host()
        self._python.follow(self.patches, called)

    def keep_file_times(self) -> None:
        """From now on give ranks virtual times of what they write; called before any has begun."""
        self._python.keep_file_times(self.patches)

    def files_cut_off(self) -> AbstractContextManager[None]:
        """A context in which the remaining tasks can be unwound without changing files."""
        return self._python.files_cut_off(self)

    def separate(self, slot: Slot[_T]) -> None:
        """From now on give each process a state of its own in `slot`; called by a rank, any number of times."""
        task = self.simulation.current
        assert task is not None
        self.slots.separate(slot, process_of(task))

    def notice_writes(self) -> None:
        """From now on a rank's write to a file descriptor wakes its tasks that poll; called by a rank that polls."""
        if not self._noticing:
            self._noticing = True
            self._python.notice_writes(self.patches)
            self.collect_in_rounds()

    def deactivate(self) -> None:
        """Put everything back. May be called without `activate`, and after one that failed.

        Raises:
            BaseException: the first error of a step; the next world can still start.
        """
        call_all(
            self.patches.undo,
            self.programs.end,
            self._leave,
            *(functools.partial(_let_go, process) for process in self.processes.values()),
            self.processes.clear,
            self.extras.clear,
            self.thread_begins.clear,
            self.stops.clear,
            self.child_begins.clear,
            self.variable_listeners.clear,
        )

    def _leave(self) -> None:
        global _active
        self.collect_in_rounds = _nothing  # it refers to the world, which would be left to the collector
        if _active is self:
            _active = None
            self.left_behind.restore()

    @contextmanager
    def left_by_program(self) -> Iterator[None]:
        """While a rank starts a program: what Python runs in its process before (`preexec_fn`) is not simulated."""
        before, self.in_child = self.in_child, _leave_as_it_is
        try:
            yield
        finally:
            self.in_child = before


def _nothing() -> None:
    pass


def _leave_as_it_is() -> None:
    global _active
    _active = None


def _let_go(process: SimProcess) -> None:
    """Close what a process has open."""
    for descriptor in process.descriptors.values():
        descriptor.close()
    process.let_go()
    if process.parent is not None:
        process.forget()


def _leave_to_parent() -> None:
    """In a forked child: the world goes on in the parent, where its threads are."""
    if _active is not None:
        _active.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def active_runtime() -> Runtime | None:
    """The runtime of the world that lives, no matter who calls."""
    return _active


def current_runtime() -> Runtime | None:
    """The runtime whose task calls, or None outside simulated ranks."""
    runtime = _active
    if runtime is None or _get_ident() != runtime.simulation.current_ident:
        return None
    return runtime


def current_process() -> SimProcess | None:
    """The process that the calling thread belongs to, or None outside simulated ranks."""
    runtime = _active
    if runtime is None:
        return None
    simulation = runtime.simulation
    if _get_ident() != simulation.current_ident:
        return None
    task = simulation.current
    # Hot, so the type is not checked: the context of a rank's task is its process.
    return None if task is None else task.context  # type: ignore[return-value]


def on_ranks(replacement: Callable[..., object]) -> Make:
    """For a patch: simulated ranks call `replacement`, all other threads the original.

    Example:
        >>> import time
        >>> look = on_ranks(lambda: 0.0)(time.monotonic)
        >>> look() > 0
        True
    """

    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            return (original if current_process() is None else replacement)(*args, **kwargs)

        vars(call)["for_ranks"] = replacement  # for `patched_now`, which names its module
        return call

    vars(make)["for_ranks"] = replacement
    return make


class _ClassOnRanks(type):
    """Metaclass of what `class_on_ranks` makes."""

    real: type
    others: tuple[type, ...]
    make: Callable[..., object]
    elsewhere: Callable[..., object]
    has: Callable[[object], bool] | None

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return (cls.elsewhere if current_process() is None else cls.make)(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.real, *cls.others)) if cls.has is None else cls.has(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (cls.real, *cls.others))

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


@functools.cache  # making a class takes longer than most replacements, and worlds start by the thousand
def class_on_ranks(
    real: type,
    make: Callable[..., object],
    *others: type,
    elsewhere: Callable[..., object] | None = None,
    has: Callable[[object], bool] | None = None,
    name: str | None = None,
    module: str | None = None,
) -> type:
    """A class to put in the place of `real`: called on a rank it makes `make`'s objects, elsewhere `elsewhere`'s.

    Attributes are those of `real`, and its objects and those of `others` are instances; `has` decides that in place
    of the classes. `name` and `module` are what it says of itself, those of `real` by default.

    Example:
        >>> from fractions import Fraction
        >>> fraction = class_on_ranks(Fraction, float)
        >>> fraction(1, 2), isinstance(Fraction(1, 2), fraction), fraction.__module__
        (Fraction(1, 2), True, 'fractions')
    """
    qualname = real.__qualname__ if name is None else name.removeprefix(f"{module}.")
    functions = {
        "make": staticmethod(make),
        "elsewhere": staticmethod(real if elsewhere is None else elsewhere),
        "has": None if has is None else staticmethod(has),
    }
    about = {"__module__": module or real.__module__, "__qualname__": qualname, "__doc__": real.__doc__}
    return _ClassOnRanks(name or real.__name__, (), {"real": real, "others": others, **functions, **about})
