"""Who is running, and what is patched while a world lives."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from simdist.errors import SimdistError
from simdist.kernel import Simulation
from simdist.process._process import SimProcess

__all__ = ["Patches", "Runtime", "current_process", "current_runtime"]

_MISSING = object()
_active: Runtime | None = None
_get_ident = _thread.get_ident


@dataclass(frozen=True, slots=True)
class _InType:
    """What stood in the dictionary of a type that refuses `setattr`."""

    attribute: Any


def _set_in_type(owner: type, name: str, attribute: Any) -> None:
    (namespace,) = gc.get_referents(vars(owner))
    namespace[name] = attribute
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


class Patches:
    """Attributes replaced for a while; `undo` puts every one back, the last first."""

    # (owner, name) -> (original, replacement) of what `wrap` has made before: worlds start by the thousand.
    _made: ClassVar[dict[tuple[int, str], tuple[Any, Any, Any]]] = {}

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._by_original: dict[int, tuple[Any, Any]] = {}  # id -> (original, replacement); never leaves this object

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name`; where it did not exist before, `undo` deletes it."""
        original = vars(owner).get(name, _MISSING) if isinstance(owner, type) else getattr(owner, name, _MISSING)
        self._done.append((owner, name, original))
        self._by_original[id(original)] = (original, replacement)
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
        original = vars(owner)[name]
        made = self._made.get((id(owner), name))
        if made is None or made[0] is not owner or made[1] is not original:
            made = self._made[id(owner), name] = (owner, original, make(original))
        self._done.append((owner, name, _InType(original)))
        _set_in_type(owner, name, made[2])

    def follow_into(self, namespace: dict[str, Any]) -> None:
        """Replace what a module took with `from time import sleep` before the world began."""
        for name, value in list(namespace.items()):
            found = self._by_original.get(id(value))
            if found is not None and found[0] is value and value is not None and callable(value):
                self._done.append((namespace, name, value))
                namespace[name] = found[1]

    def on_undo(self, action: Callable[[], None]) -> None:
        """Call `action` when everything is put back, in its turn."""
        self._done.append((action, "", None))

    def undo(self) -> None:
        """Put everything back."""
        while self._done:
            owner, name, original = self._done.pop()
            if not name:
                owner()
            elif isinstance(owner, dict):
                owner[name] = original
            elif isinstance(original, _InType):
                _set_in_type(owner, name, original.attribute)
            elif original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._by_original.clear()


class Runtime:
    """The processes of the one world that is active in this interpreter.

    Example:
        >>> runtime = Runtime(simulation, echo=None)
        >>> runtime.activate()          # from here on ranks see their own process
        >>> runtime.deactivate()
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        seed: int,
        echo: Callable[[int, int, str, str], None] | None = None,
    ) -> None:
        self.simulation = simulation
        self.seed = seed
        self.echo = echo
        self.patches = Patches()
        self.processes: dict[int, SimProcess] = {}  # by pid, all lives
        self.extras: dict[Any, Any] = {}  # what the layers above keep for the length of the world
        self.in_child: Callable[[], None] = self.deactivate  # called in a process forked from this one meanwhile

    def activate(self, namespaces: Iterable[dict[str, Any]] = ()) -> None:
        """Install every replacement. `namespaces` are module dictionaries to search for names imported early.

        Raises:
            SimdistError: another world is active.
        """
        from simdist.process import _clock, _environ, _exits, _stdio, _warnings

        global _active
        if _active is not None:
            raise SimdistError(
                "another simulated world is running in this process; run one after the other, or in separate processes"
            )
        _active = self
        for module in (_clock, _environ, _exits, _stdio, _warnings):
            module.install(self.patches)
        for namespace in namespaces:
            self.patches.follow_into(namespace)

    def deactivate(self) -> None:
        """Put everything back."""
        global _active
        self.patches.undo()
        if _active is self:
            _active = None
        self.processes.clear()
        self.extras.clear()


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
