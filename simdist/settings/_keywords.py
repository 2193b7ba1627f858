"""The keyword arguments of `simdist.run` that its relatives take as `**settings`, as types, for checkers and editors.

Each relative leaves out what it has as parameters itself. `tests/settings/test_keywords.py` checks that names and types
are `simdist.run`'s, and those that each relative takes. The checks of `_settings` refuse unknown names at the call.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from simdist.cluster import Cluster
    from simdist.faults import Fault
    from simdist.judges import Judge
    from simdist.storage import Mount

__all__ = ["AgreeSettings", "CheckedSettings", "ExploreSettings", "FuzzSettings", "ResumeSettings", "RunManySettings"]
__all__ += ["SettingsOfRun", "SweepSettings"]


class _Common(TypedDict, total=False):
    backend: str
    cluster: Cluster | None
    max_restarts: int
    min_hosts: int | None
    env: Mapping[str, str] | None
    argv: Sequence[str] | None
    start_time: datetime.date
    isolate: bool | Sequence[str]
    share: Sequence[str]
    program_ns: int
    strict: bool | None
    stall_s: float


class _OneSeed(TypedDict, total=False):
    seed: int


class _Values(TypedDict, total=False):
    values: str


class _Judged(TypedDict, total=False):
    policy: str
    judges: bool | Sequence[str | Judge]
    record_results: bool


class FuzzSettings(_Common, _OneSeed, _Values, total=False):
    """Settings of `simdist.fuzz`, which sets the faults, the schedules and the judges itself."""

    args: Sequence[object]
    kwargs: Mapping[str, object] | None


class ExploreSettings(FuzzSettings, total=False):
    """Settings of `simdist.explore`, which sets the schedules and the judges itself."""

    faults: Sequence[Fault]
    disk: Mount | str | os.PathLike[str] | None


class SweepSettings(_Common, _OneSeed, _Values, _Judged, total=False):
    """Settings of `simdist.sweep`, which sets the arguments, the faults and the disk itself."""


class RunManySettings(_Common, _Values, _Judged, total=False):
    """Settings of `simdist.run_many`, whose runs have a seed each."""

    args: Sequence[object]
    kwargs: Mapping[str, object] | None
    faults: Sequence[Fault]


class AgreeSettings(_Common, _OneSeed, _Judged, total=False):
    """Settings of `simdist.agree`, which sets the number of ranks and the arguments itself, and compares values."""

    kwargs: Mapping[str, object] | None
    faults: Sequence[Fault]
    disk: Mount | str | os.PathLike[str] | None
    echo: Callable[[int, int, str, str], None] | None
    progress: Callable[[int, int], None] | None
    replay: str | None


class ResumeSettings(AgreeSettings, _Values, total=False):
    """Settings of `simdist.resume`."""

    args: Sequence[object]


class SettingsOfRun(ResumeSettings, total=False):
    """All settings except the function and the number of ranks."""


class CheckedSettings(SettingsOfRun, total=False):
    """What `check_settings` returns for `simdist.run` and `simdist.spawn`: the settings that were given."""

    fn: Callable[..., object]
    world_size: int
    nprocs: int
    join: bool
