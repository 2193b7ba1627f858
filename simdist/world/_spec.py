"""The settings that start a world: those of a run, and those that its starter adds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, fields
from types import FrameType
from typing import Any

from simdist.settings import RunSettings, check_settings
from simdist.world._agent import GRACE_NS, MONITOR_NS

__all__ = ["WorldSpec"]


@dataclass(frozen=True, kw_only=True)
class WorldSpec(RunSettings):
    """A run's settings, and those that its starter adds. `call` is called as `call(rank)` on each rank.

    Raises:
        ArgumentError, FaultError, TopologyError: a setting is invalid, or settings do not fit together.
    """

    call: Callable[[int], object]
    # More environment, by life, rank, local rank and number of the host.
    rank_env: Callable[[int, int, int, int], Mapping[str, str]] | None = None
    monitor_ns: int = MONITOR_NS  # how often the agent checks its workers
    grace_ns: int = GRACE_NS  # from SIGTERM to SIGKILL
    stop_on_failure: bool = False
    torchrun: bool = True  # set the environment that torchrun sets
    replay: str = ""
    echo_last_lines: bool = False  # `echo` also gets a last line without an end, when its process has ended
    prints_exceptions: bool = True  # a rank prints the exception that ends it; mp.spawn's pass it to their parent
    # Called before the threads end, with the innermost frame of each rank that hangs or was killed.
    on_frames: Callable[[Mapping[int, FrameType]], None] | None = None
    # Runs in a process of its own on the first host while the ranks run: it launched them, and communicates with them.
    launcher: Callable[[], None] | None = None
    checked: bool = False  # its maker has checked the settings
    variables: Context = field(default_factory=copy_context)  # context variables: see `with_variables`

    def __post_init__(self) -> None:
        if self.checked:
            return
        checked = check_settings("a world", {each.name: getattr(self, each.name) for each in fields(RunSettings)})
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def with_variables(self, function: Callable[..., None], *arguments: object) -> Callable[[], None]:
        """Return a function that calls `function(*arguments)` with a copy of the starter's context variables.

        So a test sees what its fixtures have set, and no rank sees what another one sets. The values themselves are
        shared, as those of a closure are, but for the context of `decimal`, which programs change in place.
        """
        own = self.variables.copy()
        decimal: Any = sys.modules.get("decimal")
        if decimal is not None:
            own.run(lambda: decimal.setcontext(decimal.getcontext().copy()))
        return functools.partial(own.run, function, *arguments)
