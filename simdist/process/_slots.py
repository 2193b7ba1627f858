"""State that Python keeps once per interpreter, and that each process of a world has for itself.

`Slots.switch` swaps, at each hand-over, the state that nearly every process changes (arguments, streams, random
generators), and the object that is `os.environ`. The layers above add functions that swap theirs. A *slot* is for state
that few programs touch: it is described once, and swapped from the moment that a rank first touches it. A world in
which no rank does pays nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from simdist.process._process import SimProcess
from simdist.process._randomness import GlobalGenerator, Memory, RandomStates

__all__ = ["Copy", "Slot", "Slots", "Swap", "name_own", "own_names"]

_S = TypeVar("_S")
_T = TypeVar("_T")
Swap = Callable[[SimProcess | None, SimProcess | None], None]
"""Called with the process that loses the baton and the one that gets it; None stands for the host."""


class Copy(Protocol):
    """Copies a thing for a forked child."""

    def __call__(self, thing: _T, /) -> _T: ...


def _the_same(state: _S) -> _S:
    return state


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Generic[_S]):
    """A piece of state.

    `save` reads what is there now and `load` sets it; `fresh` is what a process starts with, given what the host has.
    `fresh` is called at a hand-over, on any thread, and must not ask who runs. `copied` is for state that refers to
    objects of the program: it is called with a function that copies these together with all else that the child has.
    """

    name: str
    save: Callable[[], _S]
    load: Callable[[_S], object]
    fresh: Callable[[SimProcess, _S], _S]
    forked: Callable[[_S], _S] = _the_same  # what a forked child gets of its parent's state
    copied: Callable[[_S, Copy], _S] | None = None  # what it has instead, in the end
    kept_by_exec: bool = False  # spawned children begin with their parent's state, too


# Attributes of modules that each process has for itself anyway, by module and name.
_own: dict[str, dict[str, Slot[Any] | None]] = {}


def name_own(module: str, names: Iterable[str], slot: Slot[_S] | None = None) -> None:
    """Name attributes of a module that each process has for itself anyway, in `slot` from when they are set.

    Without a slot, a process has them from its first moment. They must not be exchanged with the module's other
    attributes as well: each process would get what another has set.
    """
    _own.setdefault(module, {}).update(dict.fromkeys(names, slot))


def own_names(module: str) -> Mapping[str, Slot[Any] | None]:
    """What `name_own` was given for a module: the slot of each attribute, None for those that need none."""
    return _own.get(module, {})


class _Swapped(Generic[_S]):
    """A slot while a world lives, and what each process has in it.

    Invariant: the slot holds the state of the process with the baton, or the host's while none has it; all other states
    are in `kept`.
    """

    def __init__(self, slot: Slot[_S], running: SimProcess | None) -> None:
        self._slot = slot
        self.kept: dict[SimProcess | None, _S] = {}
        self.swap(None, running)

    def swap(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Swap the state when the baton goes from one process to another; None stands for the host."""
        slot, kept = self._slot, self.kept
        kept[leaving] = slot.save()
        if entering is None or entering in kept:
            slot.load(kept[entering])
        else:
            slot.load(slot.fresh(entering, kept[None]))

    def inherit(self, child: SimProcess) -> None:
        """Give a child of the process with the baton its state."""
        self.kept[child] = self._slot.forked(self._slot.save())

    def copy(self, child: SimProcess, copy: Copy) -> None:
        """Give a forked child copies of the program's objects in what it has inherited."""
        if self._slot.copied is not None:
            self.kept[child] = self._slot.copied(self.kept[child], copy)


class Slots:
    """Everything that is swapped when the baton goes from one process to another.

    Example:
        >>> slots = Slots(0, third, memory)
        >>> simulation = Simulation(on_switch=slots.switch)
    """

    def __init__(self, seed: int, third: GlobalGenerator, memory: Memory) -> None:
        self.random = RandomStates(seed, third, memory)
        self._argv = sys.argv
        self._streams = sys.stdout, sys.stderr, sys.excepthook
        self._environ = os.environ
        self._system, self._os = vars(sys), vars(os)  # to set an attribute of a module costs three times as much
        self._swaps: list[Swap] = []
        self._own: dict[Slot[Any], _Swapped[Any]] = {}

    def remember_host(self) -> None:
        """Keep what is there now, replaced streams included, for the threads that are not ranks'."""
        self._argv = sys.argv
        self._streams = sys.stdout, sys.stderr, sys.excepthook
        self._environ = os.environ

    def restore(self) -> None:
        """Put back what the host had."""
        self._show_host()
        self.random.restore()

    def add(self, swap: Swap) -> None:
        """Call `swap` as well, from the next hand-over on."""
        self._swaps.append(swap)

    def separate(self, slot: Slot[_S], running: SimProcess | None) -> None:
        """From now on give each process a state of its own in `slot`; called by a rank, any number of times, or before
        any has begun."""
        if slot not in self._own:
            swapped = self._own[slot] = _Swapped(slot, running)
            self._swaps.append(swapped.swap)

    def forget(self) -> None:
        """Forget what each process had: the world is gone."""
        self._own.clear()
        self._swaps.clear()

    def change_all(self, slot: Slot[_S], change: Callable[[], object], *, host: bool = True) -> None:
        """Make a change in the kept states of all processes, and of the host; none before `separate`."""
        swapped = self._own.get(slot)
        if swapped is not None:
            here = slot.save()
            try:
                for each, state in swapped.kept.items():
                    if host or each is not None:
                        slot.load(state)
                        change()
                        swapped.kept[each] = slot.save()
            finally:  # the change may be refused
                slot.load(here)

    def states(self, slot: Slot[_S]) -> list[_S]:
        """The kept states of those that do not have the baton, the host among them; none before `separate`."""
        swapped = self._own.get(slot)
        return [] if swapped is None else list(swapped.kept.values())

    def inherit(self, child: SimProcess, *, forked: bool) -> None:
        """Give a child of the process with the baton the states that are there."""
        for slot, swapped in self._own.items():
            if forked or slot.kept_by_exec:
                swapped.inherit(child)

    def copy(self, child: SimProcess, copy: Copy) -> None:
        """Give a forked child copies of the program's objects in the states that it has inherited."""
        for swapped in self._own.values():
            swapped.copy(child, copy)

    def switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Swap what is process-wide. Hot: called by the kernel at each hand-over to another process."""
        random, system = self.random, self._system
        if leaving is not None:
            leaving.argv = system["argv"]
            leaving.streams = system["stdout"], system["stderr"], system["excepthook"]
            leaving.environ_object = self._os["environ"]
        if entering is None:
            self._show_host()
            if leaving is not None:
                leaving.random_states = random.save()
        else:
            system["argv"] = entering.argv
            system["stdout"], system["stderr"], system["excepthook"] = entering.streams or self._streams
            self._os["environ"] = entering.environ_object
            left = random.exchange(entering.random_states)
            if leaving is not None:
                leaving.random_states = left
        for swap in self._swaps:
            swap(leaving, entering)

    def _show_host(self) -> None:
        sys.argv = self._argv
        sys.stdout, sys.stderr, sys.excepthook = self._streams
        self._os["environ"] = self._environ
