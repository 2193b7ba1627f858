"""The base of all faults, and what a fault may know of its world.

A fault is a class. It holds everything about the fault: its fields, its problems in a world, how it strikes in a
simulation and on a real machine, and its texts. Users write their own in the same way, from one of the bases:

| base | what it is | what a subclass says | simulated | real |
|---|---|---|---|---|
| `RankFault` | strikes a rank when its trigger comes | `strike` or `exception` | yes | yes |
| `OperationDelay` | a rank's operations start late, for a while | `lateness_ns` | yes | yes |
| `LinkFault` | messages between ranks go astray, for a while | `effect_on` | yes | with network namespaces |
| `DiskFault` | a simulated disk misbehaves, for a while | `lay_on` | yes | no |
| `StoreFault` | the launcher's store misbehaves | `request_delay_ns`, `lost_at_ns` | yes | without restarts |
| `Fault` | anything else | `arm` | yes | no, unless `real_obstacle` says so |

Invariants: a fault is frozen and holds plain data, so that it can be shown, compared, written into a file and sent to
real processes; everything that changes during a run is in the injector or in the real rank. Faults of a run are
distinguished by identity, not by equality: two equal descriptions are two faults.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, dataclass_transform

from simdist.faults._fields import NAME, TRUTH, fields_of, kind_name, ranks_in
from simdist.values import Finding, Maybe, Unfit, findings_of, guess_or_list

if TYPE_CHECKING:
    from simdist.faults._stage import Stage

__all__ = ["Fault", "Machine", "Problem", "Surroundings"]

_DEVICES = 'backend="nccl", or devices_per_host in its cluster, gives it some'

Problem = tuple[str, str]
"""The field that is wrong, or "" for the fault as a whole; and what is wrong."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The world of a fault, as far as it is known before it runs.

    `max_restarts`, `has_disk`, `has_local_disks` and `has_devices` are None if they are not known yet. `waits` maps the
    name of each fault of the world to the name of the one that it comes after ("" for none). `wrong` has the fields
    that are wrong by themselves; nothing more is said about these.
    """

    world_size: int
    max_restarts: int | None = None
    has_disk: bool | None = None
    waits: Mapping[str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()  # names that several faults have
    wrong: frozenset[str] = frozenset()
    has_local_disks: bool | None = None  # one for each host
    has_devices: bool | None = None  # virtual ones; None: not known yet
    moves_payloads: bool = True  # False: large payloads of floating-point numbers are not moved

    def fine(self, *fields: str) -> bool:
        """True if none of these fields is invalid alone."""
        return self.wrong.isdisjoint(fields)


@dataclass(frozen=True, slots=True)
class Machine:
    """The surroundings of a real run: its backend, its number of machines, and its restarts.

    `no_network` returns why ranks can't have a network of their own there, or "" if they can; called only if it
    matters.
    """

    backend: str
    nodes: int
    max_restarts: int
    no_network: Callable[[], str] = str


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True, repr=False)
class Fault:
    """A failure that is injected into a run. A subclass is a frozen dataclass with keywords only, without a decorator.

    `name` is its name for other faults and reports. `after` is the name of another fault: this one comes into play when
    that one has struck, and its times count from then. A fault that never strikes fails the run, unless `optional`.

    Example:
        >>> import simdist, time
        >>> class Grumble(Fault):
        ...     at_ns: int = 0
        ...     def arm(self, stage):
        ...         stage.call_at(self.at_ns, stage.report)
        >>> result = simdist.run(lambda: time.sleep(1), world_size=2, faults=[Grumble(at_ns=5_000_000)])
        >>> result.faults[0].struck_ns
        (5000000,)
    """

    kind: ClassVar[str] = "fault"  # as events name it: the class's name in small letters

    name: Annotated[str, NAME] = ""
    after: Annotated[str | None, Maybe(NAME)] = None
    optional: Annotated[bool, TRUTH] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        dataclass(frozen=True, kw_only=True, repr=False)(cls)
        cls.kind = kind_name(cls.__name__)

    def __post_init__(self) -> None:
        # Numpy's numbers become Python's, lists tuples; a misfit stays, and is reported with the problems.
        for name, each in fields_of(type(self)).items():
            value = getattr(self, name)
            if value is not each.default:
                with suppress(Unfit):
                    object.__setattr__(self, name, each.spec.check(value))

    def with_texts(self, change: Callable[[str], str]) -> Fault:
        """Return the fault with its texts changed; reports and random draws still treat it as this one."""
        texts = {e.name: getattr(self, e.name) for e in dataclasses.fields(self)}
        changed: dict[str, Any] = {}
        changed |= {n: change(text) for n, text in texts.items() if isinstance(text, str) and change(text) != text}
        if not changed:
            return self
        return _marked(dataclasses.replace(self, **changed), {**self._marks(), "words": repr(self)})

    def found_in(self, folder: str) -> Fault:
        """Return the same fault; when it is unpickled, its class's module is found from this folder."""
        return _marked(dataclasses.replace(self), {**self._marks(), "folder": folder})

    def _marks(self) -> dict[str, str]:
        marks: dict[str, str] = self.__dict__.get("_marked", {})
        return marks

    def __repr__(self) -> str:
        """The call that makes this fault, with the fields that differ from the defaults."""
        words = self._marks().get("words")
        if words is not None:
            return words
        said = {name: (getattr(self, name), each.default) for name, each in fields_of(type(self)).items()}
        parts = [f"{name}={value!r}" for name, (value, default) in said.items() if not _same(value, default)]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> Any:
        # By the names of module and class: modules of a scenario's folder are forgotten and imported anew.
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return _remade, (type(self).__module__, type(self).__qualname__, values, self._marks())

    # -- problems ------------------------------------------------------------------------------------------------

    def misfits(self) -> Mapping[str, tuple[Finding, ...]]:
        """Return the findings about each field alone; valid fields are left out."""
        found = {name: findings_of(each.spec, getattr(self, name)) for name, each in fields_of(type(self)).items()}
        return {name: findings for name, findings in found.items() if findings}

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield what is wrong with the fault as a whole, and with it in its world, as (field, text).

        An override also yields the problems of the base: `yield from super().problems(world)`. Fields that are wrong by
        themselves may hold anything; ask `world.fine("rank")` before looking at one.
        """
        for name, ranks in self.named_ranks().items():
            for rank in ranks if world.fine(name) else ():
                if not 0 <= rank < world.world_size:
                    yield name, f"rank {rank} is outside the world of {world.world_size} ranks"
        if world.has_disk is False and world.fine("op") and self.needs_disk:
            yield "", "it strikes what a rank does to a simulated disk, and there is none; mount one"
        if world.has_devices is False and self.needs_devices:
            yield "", f"strikes a virtual device, and the world has none; {_DEVICES}"
        if world.fine("name") and self.name in world.taken:
            yield "name", f"{self.name!r} is the name of another fault, too"
        if world.fine("after") and self.after is not None:
            yield from self._problems_of_after(self.after, world)

    @property
    def needs_disk(self) -> bool:
        """True if it can strike only where there is a simulated disk."""
        return False

    @property
    def needs_devices(self) -> bool:
        """True if it can strike only where there are virtual devices."""
        return False

    def _problems_of_after(self, after: str, world: Surroundings) -> Iterator[Problem]:
        if after not in world.waits:
            hint = guess_or_list(after, world.waits) if world.waits else "; none has a name"
            yield "after", f"no fault is called {after!r}{hint}"
            return
        seen = [after]
        while seen[-1] != self.name and (following := world.waits.get(seen[-1], "")) and following not in seen:
            seen.append(following)
        if self.name and seen[-1] == self.name:
            way = f", by way of {', '.join(map(repr, seen[:-1]))}" if len(seen) > 1 else ""
            yield "after", f"it waits for itself{way}, so it never comes"

    def named_ranks(self) -> Mapping[str, Sequence[int]]:
        """Return the ranks that each field names, for fields whose spec is `RANK`."""
        found = {name: tuple(ranks_in(e.spec, getattr(self, name))) for name, e in fields_of(type(self)).items()}
        return {name: ranks for name, ranks in found.items() if ranks}

    # -- in a simulation -----------------------------------------------------------------------------------------

    def arm(self, stage: Stage) -> None:
        """Come into play in a simulation: at its start, when the program adds the fault, or after another fault.

        Everything set up on `stage` ends when the fault is lifted. The fault reports its strike by `stage.report`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no arm(self, stage)")

    # -- on a real machine ---------------------------------------------------------------------------------------

    def real_obstacle(self, machine: Machine) -> str:
        """Return why real processes on this machine can't have the fault; "" if they can."""
        return "it is made for simulations only"

    # -- words ---------------------------------------------------------------------------------------------------

    @property
    def target(self) -> int | None:
        """The rank that the fault strikes; None if it strikes links, a store, or all ranks."""
        rank = getattr(self, "rank", None)
        return rank if isinstance(rank, int) else None

    def struck_ranks(self, hosts: Sequence[str]) -> frozenset[int]:
        """Return the ranks that it strikes; `hosts` has the host of each rank of the world."""
        return frozenset() if self.target is None else frozenset({self.target})

    def begins(self) -> str:
        """Return the text of the event when it strikes or begins."""
        words = self.kind.replace("_", " ")
        return words if self.target is None else f"{words} strikes rank {self.target}"

    def ends(self) -> str:
        """Return the text of the event when it is over; "" for a fault that has no end."""
        return ""

    @property
    def called(self) -> str:
        """Its name in reports: its name, or its kind and the rank that it strikes."""
        whom = "" if self.target is None else f" of rank {self.target}"
        return f"{self.name!r} ({self.kind}{whom})" if self.name else f"{self.kind}{whom}"


def _same(value: object, default: object) -> bool:
    return value is default or (isinstance(value, str | int | float | None) and value == default)


def _marked(fault: Fault, marks: dict[str, str]) -> Fault:
    """Mark the fault with what is no field: `words` to report it by, the `folder` from which its module is found."""
    object.__setattr__(fault, "_marked", marks)
    return fault


def _remade(module: str, name: str, values: dict[str, Any], marks: dict[str, str]) -> Fault:
    """Return the fault that was pickled."""
    path = list(sys.path)
    sys.path[:0] = [marks["folder"]] if "folder" in marks else []
    try:
        found: Any = importlib.import_module(module)
    finally:
        sys.path[:] = path
    for part in name.split("."):
        found = getattr(found, part)
    made = found(**values)
    assert isinstance(made, Fault)
    return _marked(made, marks)
