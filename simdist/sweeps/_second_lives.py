"""Second lives, by what they find: one that begins as another did ends as that did, and is not run again.

After a crash the launcher stops all ranks and starts them anew. Nothing is left of their memory, so three things decide
what follows: the files, the hosts that are there, and the number of restarts. A run is ended where its second life
begins, if one that began with the same files on the same hosts has been seen to its end. Only the judgement of an
oracle on both lives together, the steps lost, is computed anew.

The files also count as the same if they differ in nothing that the seen life has looked at: the rest that a crash has
left of a file does not matter if the file is begun anew before it is read (`Disks.note_looks`). What is left of it at
the end matters, because oracles read it.

This does not hold where more of the first life could be seen: modules that all ranks share, bounds on virtual time or
events, a user's check that gets the whole run, a deadlock on the way. Nor does it hold in a program that keeps the time
of day in what it computes; no program here did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from simdist.files import Looks, present_disks
from simdist.kernel import Bus
from simdist.process import RankBegan, SimProcess
from simdist.result import Event, RunResult
from simdist.scenario import lost_steps
from simdist.sweeps._images import Found, found_now
from simdist.trace import EventStream, events_of
from simdist.world import observed_by

__all__ = ["KnownEndError", "Problems", "SecondLife", "SecondLives", "left_in"]

Problems = tuple[tuple[str, str], ...]
"""The name of each oracle that failed, and its evidence."""

Left = tuple[tuple[str, str], ...]
"""For each path that is not as its host saw it, in which way."""


@dataclass(frozen=True, slots=True)
class SecondLife:
    """The end of a second life: its problems, except the steps lost, and its first step (None: it had none).

    `unread` are files that it has overwritten before they were read.
    """

    problems: Problems
    first_step: int | None
    unread: tuple[str, ...] = ()


class KnownEndError(Exception):
    """Ends a run: the life that begins is known. `name` identifies what it found.

    `reached` is the last step before it, -1 for none; `lost` is how many steps earlier restarts have lost.
    """

    def __init__(self, name: str, life: SecondLife, reached: int, lost: int, left: Left) -> None:
        super().__init__(name, life, reached, lost, left)
        self.name = name
        self.life = life
        self.reached = reached
        self.lost = lost
        self.left = left


class SecondLives:
    """The second (and third) lives that have been seen. An observer of worlds, while `of_one_run` is entered.

    Unless it `merges`, it only names them.
    """

    def __init__(self, *, merges: bool) -> None:
        self._merges = merges
        self.outcomes: Mapping[str, Found] = {}  # the possible states after losses of power, by digest
        self.seen: dict[str, SecondLife] = {}  # to their ends, by what they found without unread files
        self._unread: dict[tuple[str, ...], None] = {}  # the files that lives have not read
        self._all: tuple[str, ...] = ()  # the host of each rank before any failure
        self._begun: tuple[str, Callable[[tuple[str, ...]], str]] | None = None  # the life of the running world
        self._looks: Looks | None = None  # by that life
        self._last = 1  # the number of the life that decides

    @contextmanager
    def of_one_run(self, crashes: int) -> Iterator[Callable[[RunResult, Problems], str | None]]:
        """Watch one run, and end it with a `KnownEndError` if its life after these crashes is known.

        Call the yielded function with the result of a run that reached its end, and with its problems; it returns the
        name of that life.
        """
        self._begun, self._looks, self._last = None, None, crashes
        with observed_by(self):
            yield self._remember

    def world_begins(self, bus: Bus) -> None:
        """Watch the ranks that begin."""
        bus.listen(RankBegan, lambda event: self._on_rank(event.process))

    def known(self, digest: str) -> SecondLife | None:
        """Return the second life that all hosts begin with these files."""
        found, hosts = self.outcomes.get(digest), self._all
        name = self.name(digest)
        return self.seen.get(name) if found is None else self._like(name, lambda unread: _name(found, unread, hosts, 1))

    def name(self, digest: str) -> str:
        """Return the name of the second life that all hosts begin with these files."""
        return _titled(digest, self._all, 1)

    def learn(self, lives: Mapping[str, SecondLife]) -> None:
        """Add lives that have been seen."""
        self.seen.update(lives)
        self._unread |= dict.fromkeys(life.unread for life in lives.values())

    def _on_rank(self, process: SimProcess) -> None:
        simulation, disks = process.simulation, present_disks()
        if disks is None or (process.life and self._begun is not None):
            return
        if not process.life:
            self._all = self._all or disks.hosts_of_ranks()
            return
        if process.life != self._last or simulation.deadlock is not None or disks.has_older(process.life):
            return
        found, hosts = found_now(disks), disks.hosts_of_ranks()

        def named(unread: tuple[str, ...]) -> str:
            return _name(found, unread, hosts, process.life)

        name = named(())
        self._begun = name, named
        life = self._like(name, named)
        if life is None:
            self._looks = disks.note_looks() if self._merges else None
            return
        self.learn({name: life})
        events = EventStream(simulation.events.records)
        reached = max((int(str(e.data["step"])) for e in events_of(events, "step")), default=-1)
        simulation.abort(KnownEndError(name, life, reached, lost_steps(events), left_in(events)))

    def _like(self, name: str, named: Callable[[tuple[str, ...]], str]) -> SecondLife | None:
        """Return a life that has been seen and finds the same, in everything that it reads."""
        if not self._merges:
            return None
        life = self.seen.get(name)
        for unread in self._unread if life is None else ():
            life = life or self.seen.get(named(unread))
        return life

    def _remember(self, result: RunResult, problems: Problems) -> str | None:
        if self._begun is None or result.restarts != self._last or result.deadlock is not None:
            return None
        name, named = self._begun
        first_step, life = None, 0
        for event in events_of(result.events, "restart", "step"):
            life += event.kind == "restart"
            if life == self._last and event.kind == "step":
                first_step = int(str(event.data["step"]))
                break
        if self._merges:
            unread = () if self._looks is None else tuple(sorted(self._looks.unread))
            seen = SecondLife(problems, first_step, unread)
            self.learn({name: seen, named(unread): seen})
        return name


def _name(found: Found, unread: tuple[str, ...], hosts: tuple[str, ...], life: int) -> str:
    """Return a name that distinguishes a life from those that find something else, apart from unread files."""
    name = _titled(found.digest(unread), hosts, life)
    return f"{name} but for {unread!r}" if unread else name


def _titled(digest: str, hosts: tuple[str, ...], life: int) -> str:
    return f"{digest} {life} {' '.join(hosts)}"


def left_in(events: Sequence[Event]) -> Left:
    """Return what crashes have left on the disk."""
    return tuple((str(e.data["path"]), str(e.data["text"])) for e in events_of(events, "disk"))
