"""The frozen plan of a scenario: the settings of a run, and its expectations."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from simdist.faults import Fault
from simdist.result import Status
from simdist.settings import START_TIME

if TYPE_CHECKING:
    from simdist.judges import Judge

__all__ = ["Expectations", "ExpectedException", "Plan", "Verdict", "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The function that each rank calls: `target` is "module:function", looked for in `folder` first.

    "{tmp}" inside any string of `args` and `kwargs` stands for a folder that is fresh for each run, at the same path in
    each, and removed after it.
    """

    target: str
    folder: Path
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedException:
    """A rank's expected exception: `type`: the class or a base; `message`: part of the text; `pattern`: a regex."""

    type: str | None = None
    message: str | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """The oracles of a scenario. None: not judged.

    `outcomes` has an entry for each rank. A tuple of keys means "equal under these keys of the returned table"; the
    empty tuple means the whole value.
    """

    outcomes: tuple[Status, ...]
    exceptions: Mapping[int, ExpectedException] = field(default_factory=dict)
    restarts: int | None = None
    equal_values: tuple[str, ...] | None = None
    same_as_without_faults: tuple[str, ...] | None = None
    min_values: Mapping[str, float] = field(default_factory=dict)
    max_values: Mapping[str, float] = field(default_factory=dict)
    checkpoints: tuple[str, ...] = ()
    deadlock: bool = False
    faults_strike: bool = True
    min_virtual_time_ns: int | None = None
    max_virtual_time_ns: int | None = None
    max_events: int | None = None
    max_steps_lost: int | None = None  # by one restart
    equal_states: bool = False  # of all ranks, whenever they report their states
    same_states_as_without_faults: bool = False  # in the same step
    same_as_one_rank: tuple[str, ...] | None = None  # apart from rounding of sums of floats
    samples_once: int | None = None  # the number of samples in an epoch
    max_files: int | None = None  # at the end
    no_late_writes: bool = False
    findings: tuple[str, ...] = ()  # the judges that must find something

    @property
    def needs_undisturbed(self) -> bool:
        """True if something is compared with a run without faults."""
        return self.same_as_without_faults is not None or self.same_states_as_without_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One scenario, checked. `cluster` holds the arguments of `simdist.cluster.make`, empty for the default."""

    source: str
    title: str
    world_size: int
    workload: Workload
    expect: Expectations
    backend: str = "gloo"
    seed: int = 0
    max_restarts: int = 0
    min_hosts: int | None = None  # the least hosts for a restart; None: all
    policy: str = "fifo"
    start_time: datetime.datetime = START_TIME
    isolate: bool | Sequence[str] = ()  # the modules that each rank imports for itself, besides the user's; or False
    share: Sequence[str] = ()
    program_ns: int = 0  # `program_time` in the file: the duration of a program outside the simulation
    stall_s: float = 30.0
    strict: bool | None = None
    judges: bool | Sequence[str | Judge] = False
    values: str = "all"
    portable: bool = False  # the file is meant for real processes, too
    time_scale: float = 1.0  # for these: real seconds per virtual second
    cluster: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    disk: Mapping[str, object] | None = None  # the settings of a `Mount` at "{tmp}"
    faults: tuple[Fault, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return Path(self.source).stem

    @property
    def heading(self) -> str:
        """The file's name, and its title if it has one."""
        return f"{self.name}: {self.title}" if self.title else self.name

    @property
    def replay_words(self) -> list[str]:
        """The command that repeats the run, word by word."""
        words = ["simdist", "run", self.source, "--seed", str(self.seed)]
        for override in self.overrides:
            words += ["--set", override]
        return words

    @property
    def replay(self) -> str:
        """The command that repeats the run, as a shell takes it."""
        return shlex.join(self.replay_words)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judged expectation. `name` is its key in the file, `evidence` describes in one line what was found."""

    name: str
    ok: bool
    evidence: str
