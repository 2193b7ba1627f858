"""What a program asserts while it runs: conditions that always hold, and those that a search should reach sometimes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from simdist.frames import user_line
from simdist.process import Extras, current_process, current_runtime
from simdist.result import JudgeFinding

__all__ = ["Assertions", "always", "assertions_of", "sometimes"]


@dataclass(slots=True)
class Assertions:
    """The assertions of one world's ranks."""

    broken: dict[str, JudgeFinding] = field(default_factory=dict)  # by name, the first time
    reached: dict[str, bool] = field(default_factory=dict)  # by name, whether it ever held


def assertions_of(extras: Extras) -> Assertions:
    """Return the assertions of the world with these `extras`."""
    return extras.setdefault(Assertions, Assertions())


def always(name: str, condition: object) -> None:
    """Assert that `condition` holds whenever a rank passes here; a run in which it did not is not `ok`.

    The program goes on; the first failure is among the run's findings, with rank and line. Does nothing outside a
    simulation.
    """
    process = current_process()
    runtime = current_runtime()
    if process is None or runtime is None or condition:
        return
    broken = assertions_of(runtime.extras).broken
    if name not in broken:
        broken[name] = JudgeFinding(
            "always",
            f"{name}: does not hold",
            process.rank,
            process.life,
            process.simulation.now_ns,
            subject=name,
            where=user_line(sys._getframe(1)).removeprefix(" at "),
        )


def sometimes(name: str, condition: object = True) -> None:
    """Assert that `condition` should hold at least once when a rank passes here, in some run of many.

    `RunResult.sometimes` reports for each name whether it held. A name that never held shows that a search over faults,
    seeds or schedules has not reached what it should. Does nothing outside a simulation.
    """
    runtime = current_runtime()
    if current_process() is None or runtime is None:
        return
    reached = assertions_of(runtime.extras).reached
    reached[name] = reached.get(name, False) or bool(condition)
