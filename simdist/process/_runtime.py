"""Who is running, and what is patched while a world lives."""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from simdist.errors import SimdistError
from simdist.kernel import Simulation
from simdist.process._process import SimProcess
from simdist.process._redirect import Redirection, can_be_redirected, switch
from simdist.process._slots import Slot, Slots

if TYPE_CHECKING:
    from simdist.process._isolation import Isolation
    from simdist.process._left_behind import LeftBehind

__all__ = ["Patches", "Replacement", "Runtime", "current_process", "current_runtime"]

_MISSING = object()
_REDIRECTED = object()
_active: Runtime | None = None
_get_ident = _thread.get_ident


@dataclass(frozen=True, slots=True)
class _InType:
    """What stood in the dictionary of a type that refuses `setattr`, by name."""

    attributes: dict[str, Any]


@functools.cache
def _namespace_of(owner: type) -> dict[str, Any]:
    """The dictionary behind the type's read-only view."""
    (namespace,) = gc.get_referents(vars(owner))
    return namespace  # type: ignore[no-any-return]


def _set_in_type(owner: type, attributes: dict[str, Any]) -> None:
    _namespace_of(owner).update(attributes)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


class Replacement:
    """What the function `owner.name` does while a world lives: what `make(original)` does.

    `make` must depend on nothing but the original. The function is the one that is there now; what a program puts in
    its place later, a mock of its own, stays what it is.
    """

    __slots__ = ("function", "make", "name", "owner")

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self.make = make
        self.function: Any = getattr(owner, name)


@functools.cache
def _redirections_of(replacements: tuple[Replacement, ...]) -> tuple[list[Redirection], list[Replacement]]:
    """The redirections, and what can have none: somebody put an object of another kind in the function's place."""
    functions = [each for each in replacements if can_be_redirected(each.function)]
    others = [each for each in replacements if not can_be_redirected(each.function)]
    return [Redirection.of(each.function, each.make) for each in functions], others


class Patches:
    """Attributes replaced for a while; `undo` puts every one back, the last first."""

    # (owner, name) -> (original, replacement) of what `wrap` has made before: worlds start by the thousand.
    _made: ClassVar[dict[tuple[int, str], tuple[Any, Any, Any]]] = {}
    # Methods of a type that nobody else can change: those that it had, and those that were made of them.
    _made_in_type: ClassVar[dict[Any, tuple[dict[str, Any], dict[str, Any]]]] = {}

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name`; where it did not exist before, `undo` deletes it."""
        original = vars(owner).get(name, _MISSING) if isinstance(owner, type) else getattr(owner, name, _MISSING)
        self._done.append((owner, name, original))
        setattr(owner, name, replacement)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`, which must depend on nothing but the original."""
        original = getattr(owner, name)
        made = self._made.get((id(owner), name))
        if made is None or made[0] is not owner or made[1] is not original:
            made = self._made[id(owner), name] = (owner, original, make(original))
        self.replace(owner, name, made[2])

    def wrap_in_type(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the method `name` of a type that Python code can't change, by `make` of what stood there.

        Through the dictionary behind the type's read-only view; the interpreter is told, as C code that changes a type
        has to.
        """
        self.wrap_all_in_type(owner, {name: make})

    def wrap_all_in_type(self, owner: type, make: Mapping[str, Callable[[Any], Any]]) -> None:
        """Likewise with every method of these names that the type has."""
        key = owner, tuple(make.items())
        known = self._made_in_type.get(key)
        if known is None:
            originals = {name: vars(owner)[name] for name in make if name in vars(owner)}
            known = originals, {name: make[name](each) for name, each in originals.items()}
            self._made_in_type[key] = known
        self._done.append((owner, "methods", _InType(known[0])))
        _set_in_type(owner, known[1])

    def redirect(self, replacements: tuple[Replacement, ...]) -> None:
        """Let functions themselves do what their replacements do, whoever took them and when."""
        redirections, others = _redirections_of(replacements)
        self.switch_on(redirections)
        for each in others:
            self.wrap(each.owner, each.name, each.make)

    def switch_on(self, redirections: Sequence[Redirection]) -> None:
        """Let functions do the other thing."""
        switch(redirections, on=True)
        self._done.append((redirections, "redirections", _REDIRECTED))

    def on_undo(self, action: Callable[[], None]) -> None:
        """Call `action` when everything is put back, in its turn."""
        self._done.append((action, "", None))

    def undo(self) -> None:
        """Put everything back."""
        while self._done:
            owner, name, original = self._done.pop()
            if not name:
                owner()
            elif original is _REDIRECTED:
                switch(owner, on=False)
            elif isinstance(original, _InType):
                _set_in_type(owner, original.attributes)
            elif original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class Runtime:
    """The processes of the one world that is active in this interpreter.

    Example:
        >>> runtime = Runtime(simulation, slots, seed=0)
        >>> runtime.activate()          # from here on ranks see their own process
        >>> runtime.deactivate()
    """

    def __init__(
        self,
        simulation: Simulation,
        slots: Slots,
        *,
        seed: int,
    ) -> None:
        self.simulation = simulation
        self.slots = slots  # whose `switch` is the simulation's `on_switch`
        self.seed = seed
        self.patches = Patches()
        self.processes: dict[int, SimProcess] = {}  # by pid, all lives
        self.isolation: Isolation | None = None  # while each process imports modules for itself
        self.extras: dict[Any, Any] = {}  # what the layers above keep for the length of the world
        self.thread_begins: list[Callable[[SimProcess], None]] = []  # called by each thread that a rank starts
        self.left_behind: LeftBehind  # in state that all share; there from `activate` on
        # Called with parent, child and whether it is forked, by a rank that starts a process.
        self.child_begins: list[Callable[[SimProcess, SimProcess, bool], None]] = []
        self.cores: set[int] | None = None  # that the host may use; its ranks take turns on one
        self._noticing = False  # writes to file descriptors
        self.in_child: Callable[[], None] = self.deactivate  # called in a process forked from this one meanwhile

    def activate(self, *called: Any) -> None:
        """Install every replacement; `called` is what runs on the ranks.

        Raises:
            SimdistError: another world is active.
        """
        from simdist.process import (
            _children,
            _clock,
            _descriptors,
            _entropy,
            _environ,
            _exits,
            _following,
            _left_behind,
            _locks,
            _multiprocessing,
            _process_wide,
            _signals,
            _stdio,
            _tempfiles,
            _threads,
            _uuids,
            _warnings,
        )

        global _active
        if _active is not None:
            raise SimdistError(
                "another simulated world is running in this process; run one after the other, or in separate processes"
            )
        _active = self
        self.left_behind = _left_behind.LeftBehind()
        patched = (
            _children,
            _clock,
            _descriptors,
            _entropy,
            _environ,
            _exits,
            _left_behind,
            _multiprocessing,
            _process_wide,
            _signals,
            _stdio,
            _tempfiles,
            _uuids,
            _warnings,
        )
        for module in patched:
            module.install(self.patches)
        _locks.install(self.patches, _locks.Locks(self.simulation))
        _threads.install(self.patches, self)
        self.slots.remember_host()
        _following.follow(self.patches, called)

    def separate(self, slot: Slot[Any]) -> None:
        """From now on give each process a state of its own in `slot`; called by a rank, any number of times."""
        task = self.simulation.current
        assert task is not None
        self.slots.separate(slot, task.context)

    def notice_writes(self) -> None:
        """From now on a rank that writes to a file descriptor wakes its tasks that poll; called by one that does."""
        if not self._noticing:
            from simdist.process import _descriptors

            self._noticing = True
            _descriptors.notice_writes(self.patches)

    def deactivate(self) -> None:
        """Put everything back."""
        global _active
        self.patches.undo()
        if _active is self:
            _active = None
            self.left_behind.restore()
        for process in self.processes.values():
            for descriptor in process.descriptors.values():
                descriptor.close()
            if process.parent is not None:
                process.forget()
        self.processes.clear()
        self.extras.clear()
        self.thread_begins.clear()
        self.child_begins.clear()


def _leave_to_parent() -> None:
    """In a forked child: the world goes on in the parent, where its threads are."""
    if _active is not None:
        _active.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


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
    if _get_ident() != simulation.current_ident or simulation.current is None:
        return None
    context = simulation.current.context
    return context if isinstance(context, SimProcess) else None
