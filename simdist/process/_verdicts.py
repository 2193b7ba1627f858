"""Carries out a verdict on the process whose effect was announced: one function, for every layer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from simdist.errors import SimdistError
from simdist.kernel import PASS, Bus, Verdict
from simdist.process._process import SimProcess
from simdist.records import delayed

__all__ = ["Strike", "carry_out", "refusal_of"]

Strike = tuple[Literal["during", "after"], Callable[[], None]]
"""What is still to strike an announced effect, and when."""


def carry_out(
    process: SimProcess,
    verdict: Verdict,
    what: str,
    *,
    limit_ns: int | None = None,
    yields: bool = False,
    takes: Collection[str] = (),
) -> Strike | None:
    """Do what a verdict wants before an announced effect of the running process; return the strike left for later.

    The delay comes first, then the strike, then the error. `what` is the effect's name in the record of a delay. The
    delay takes no longer than `limit_ns`. With `yields` other tasks run after a strike, because the process does not
    park in the effect itself. The caller does what `takes` names ("change", "change_result", "drop", "part_bytes").

    Raises:
        Exception: the error that the verdict puts in place of the effect.
        SimdistError: the verdict wants something else that can't be done to this effect.
    """
    simulation = process.simulation
    if (
        verdict.change is not None
        or verdict.change_result is not None
        or verdict.drop
        or verdict.part_bytes is not None
    ):
        _require(verdict, what, takes)
    if verdict.delay_ns:
        simulation.bus.record(delayed(simulation.now_ns, process.rank, verdict.delay_ns, what))
        simulation.sleep(verdict.delay_ns if limit_ns is None else min(verdict.delay_ns, limit_ns))
    strike, when = verdict.strike, verdict.when
    if strike is not None and when == "before":
        strike()
        task = simulation.current
        if yields or (task is not None and task.paused):
            simulation.sleep(0)
    if verdict.error is not None:
        raise verdict.error
    return None if strike is None or when == "before" else (when, strike)


def _require(verdict: Verdict, what: str, takes: Collection[str]) -> None:
    wanted = {
        "change": ("changed", verdict.change is not None),
        "change_result": ("done with another result", verdict.change_result is not None),
        "drop": ("dropped", verdict.drop),
        "part_bytes": ("done in part", verdict.part_bytes is not None and verdict.when != "during"),
    }
    for name, (word, is_wanted) in wanted.items():
        if is_wanted and name not in takes:
            raise SimdistError(
                f"{what} can't be {word}, as a judge wants it; what can be changed is a write to a simulated disk, "
                "what an operation reads and what a collective fills, what can be dropped a write and a sync, what can "
                "be done in part a write"
            )


def refusal_of(bus: Bus, event: object) -> BaseException | None:
    """Announce an effect that can only be refused; return the error that takes its place, or None.

    No task causes it, so that none could wait or be struck; or it was announced before, and this is a second look.

    Raises:
        SimdistError: a judge wants something else.
    """
    verdict = bus.announce(event)
    if verdict is PASS:
        return None
    wanted = {
        "a delay": verdict.delay_ns,
        "a strike": verdict.strike,
        "a change": verdict.change or verdict.change_result,
        "a drop": verdict.drop,
    }
    if any(wanted.values()):
        first = next(word for word, value in wanted.items() if value)
        raise SimdistError(
            f"an announced {type(event).__name__} can only be refused, with an error; a judge wants {first}"
        )
    return verdict.error
