"""`simdist.resume`: compares a training that is killed at a step and resumed with the same one uninterrupted."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from simdist.api import run
from simdist.errors import ArgumentError, RunFailedError
from simdist.judges import JUDGES, Step, Trails
from simdist.result import RunResult, report_of
from simdist.settings import check_settings
from simdist.values import Shown

if TYPE_CHECKING:
    from simdist.settings import ResumeSettings

__all__ = ["ResumeDifference", "ResumeReport", "resume"]


@dataclass(frozen=True, slots=True)
class ResumeDifference:
    """The first difference from the uninterrupted run after a crash before optimizer step `crash`, counted from 0.

    `name` is for example "batch", "option lr", "state exp_avg of weight", "parameter weight", "generator of torch".
    `step` is the step of the uninterrupted run; None where no step is known.
    """

    crash: int
    problem: str
    rank: int = -1
    step: int | None = None
    name: str = ""
    where: str = ""

    def __str__(self) -> str:
        who = f", rank {self.rank}" if self.rank >= 0 else ""
        when = f", step {self.step}" if self.step is not None else ""
        line = f", {self.where}" if self.where else ""
        return f"crash before step {self.crash}{who}{when}{line}: {self.problem}"


@dataclass(frozen=True, slots=True)
class ResumeReport(Shown):
    """The result of `resume`: the first difference of each crash, and all results, the uninterrupted one first."""

    crashes: tuple[int, ...]
    differences: tuple[ResumeDifference, ...]
    results: tuple[RunResult, ...]

    @property
    def ok(self) -> bool:
        """True if every resumed run equals the uninterrupted one."""
        return not self.differences

    def __str__(self) -> str:
        if self.ok:
            return f"{len(self.crashes)} crashes, each resumed as if nothing had happened"
        return "\n".join(map(str, self.differences))

    def raise_for_failure(self) -> None:
        """Do nothing if all resumed runs equal the uninterrupted one.

        Raises:
            RunFailedError: there are differences; its text is the report.
        """
        if not self.ok:
            found = f"{len(self.differences)} of {len(self.crashes)} resumed runs differ from the uninterrupted one"
            raise RunFailedError(f"{found}\n{self}")


def resume(
    train: Callable[[str], object],
    *,
    world_size: int,
    crashes: Sequence[int] | None = None,
    **settings: Unpack[ResumeSettings],
) -> ResumeReport:
    """Kill a training before each of its steps, resume it from its checkpoints, and compare it with one that ran on.

    `train(folder)` is called on every rank. It keeps its checkpoints in `folder`, which is empty at first and the same
    in all lives of one run, and loads the last one if there is any. Nothing else is needed: at each step of an
    optimizer the batches and losses since the last step, generators, options (the learning rate), state and parameters
    are compared, bit for bit, on every rank. The first step of a resumed run is recognised by its parameters. Other
    state, such as a moving average of the parameters, is compared if the ranks report it with `simdist.state`.

    Args:
        train: the program of a rank.
        world_size: number of ranks.
        crashes: the optimizer steps, counted from 0, before which rank 0 is killed; default: each one but the first, so
            that a training of 100 steps runs 100 times.
        settings: further settings of `simdist.run`; `max_restarts` is 1 unless it is given.

    Returns:
        For each crash after which anything differs: rank, step and name of the first difference. A generator is named
        only if something else differs, too, at that step or later.

    Raises:
        ArgumentError: `train` makes no optimizer step, or there is no such step.
        RunFailedError: the uninterrupted run failed.
    """
    whole, trails = _run(train, world_size, None, settings)
    whole.raise_for_failure()
    count = len(trails.steps.get((0, 0), ()))
    if not count:
        raise ArgumentError("simdist.resume", ["train: rank 0 takes no optimizer step, so there is nothing to compare"])
    wanted = tuple(range(1, count)) if crashes is None else tuple(crashes)
    wrong = [each for each in wanted if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < count]
    if wrong:
        raise ArgumentError("simdist.resume", [f"crashes: expected steps from 0 to {count - 1}, found {wrong[0]!r}"])
    results, differences = [whole], []
    for crash in wanted:
        result, resumed = _run(train, world_size, crash, settings)
        results.append(result)
        found = _first_difference(crash, result, resumed, whole, trails)
        if found is not None:
            differences.append(found)
    return ResumeReport(wanted, tuple(differences), tuple(results))


def _run(
    train: Callable[[str], object], world_size: int, crash: int | None, settings: Mapping[str, Any]
) -> tuple[RunResult, Trails]:
    given = dict(settings)
    judges = check_settings("simdist.resume", {"judges": given.pop("judges", False)})["judges"]
    if isinstance(judges, bool):
        judges = tuple(JUDGES) if judges else ()
    trails = Trails(crash)
    given.setdefault("max_restarts", 1)
    with tempfile.TemporaryDirectory() as folder:
        program = functools.partial(train, folder)
        functools.update_wrapper(program, train)
        return run(program, world_size=world_size, judges=(trails, *judges), **given), trails


def _first_difference(
    crash: int, result: RunResult, resumed: Trails, whole: RunResult, trails: Trails
) -> ResumeDifference | None:
    if result.first_failure() is not None:
        return ResumeDifference(crash, f"the run failed: {report_of(result).headline}")
    life = len(result.ranks) and result.ranks[0].lives - 1
    found = []
    for (_, rank), expected in trails.steps.items():
        steps = resumed.steps.get((life, rank), [])
        difference = _compare(crash, rank, steps, expected) if resumed.crashed else None
        if difference is not None:
            found.append(difference)
    if not found and resumed.crashed:
        found += _differing_states(crash, result, whole)
    if not found and result.findings:
        first = result.findings[0]
        problem = f"judge {first.judge} found: {first.problem}"
        return ResumeDifference(crash, problem, first.rank, None, first.subject, first.where)
    return min(found, key=lambda each: (-1 if each.step is None else each.step, each.rank), default=None)


def _differing_states(crash: int, result: RunResult, whole: RunResult) -> Iterator[ResumeDifference]:
    """Yield for each rank the first part of a state that differs after its resumption.

    Its last report is compared with the uninterrupted run's last one, and so on backward.
    """
    expected = _last_states(whole)
    for rank, states in _last_states(result).items():
        others = expected.get(rank, [])
        count = min(len(states), len(others))
        for mine, other in zip(states[len(states) - count :], others[len(others) - count :], strict=True):
            name = next((name for name in other if mine.get(name) != other[name]), None)
            if name is not None:
                problem = f"{name}, as reported by simdist.state, differs from the uninterrupted run"
                yield ResumeDifference(crash, problem, rank, None, f"state {name}")
                break


def _last_states(result: RunResult) -> dict[int, list[dict[str, str]]]:
    """Return the ranks' reports by `simdist.state` in their last lives: contents by name, in the reports' order."""
    states: dict[int, list[dict[str, str]]] = {}
    for event in result.events:
        if event.kind == "restart":
            states = {}
        elif event.kind == "state":
            parts: Any = event.data["parts"]
            states.setdefault(event.rank, []).append(dict(part.split(" ", 1) for part in parts))
    return states


def _compare(crash: int, rank: int, steps: Sequence[Step], expected: Sequence[Step]) -> ResumeDifference | None:
    """Return the first difference of a rank's steps after its resumption; None if it equally did all that remained."""
    if not steps:
        if crash + 1 < len(expected):
            return ResumeDifference(crash, f"takes no step any more, of {len(expected)}", rank)
        return None
    begin = _beginning(steps, expected)
    if begin is None:
        problem = "goes on with parameters that it never had before"
        return ResumeDifference(crash, problem, rank, None, "parameters", steps[0].where)
    cause: ResumeDifference | None = None
    for step, mine, other in zip(range(begin, len(expected)), steps, expected[begin:], strict=False):
        generator = next(
            (
                name
                for name, state in other.generators.items()
                if mine.generators[name] != state and _draws(expected[max(0, begin - 1) : step + 2], name)
            ),
            None,
        )
        found = next(_differences(mine, other, first=step == begin), None)
        if cause is None and generator is not None:
            problem = f"the generator of {generator} is in another state than in the uninterrupted run"
            cause = ResumeDifference(crash, problem, rank, step, f"generator of {generator}", mine.where)
        if found is not None:
            name, problem = found
            own = ResumeDifference(crash, problem, rank, step, name, mine.where)
            is_effect = name in ("batch", "loss") or name.startswith("parameter")
            return cause if cause is not None and is_effect else own
    if len(steps) != len(expected) - begin:
        took = f"takes {len(steps)} steps from step {begin} on, where {len(expected) - begin} remain"
        return ResumeDifference(crash, took, rank, begin, "steps", steps[-1].where)
    return None


def _beginning(steps: Sequence[Step], expected: Sequence[Step]) -> int | None:
    """Return the step at which a resumed run begins, by its parameters; among equal ones that with as many left."""
    fitting = [place for place, step in enumerate(expected) if step.before == steps[0].before]
    if not fitting:
        return None
    return next((place for place in fitting if len(expected) - place == len(steps)), fitting[0])


def _draws(steps: Sequence[Step], generator: str) -> bool:
    """True if these steps draw from a generator."""
    return len({step.generators[generator] for step in steps}) > 1


def _differences(mine: Step, other: Step, *, first: bool) -> Iterator[tuple[str, str]]:
    """Yield the name of each difference in one step, and a description; causes come before their effects."""
    for name, value in other.options.items():
        if mine.options.get(name) != value:
            yield f"option {name}", f"{name} is {mine.options.get(name)!r}, in the uninterrupted run {value!r}"
    for name in (*other.state, *(name for name in mine.state if name not in other.state)):
        if mine.state.get(name) != other.state.get(name):
            how = "is missing" if name not in mine.state else "differs" if name in other.state else "is new"
            yield f"state {name}", f"the optimizer's {name} {how}"
    count = len(other.batches)
    if (mine.batches[-count:] if count else [] if first else mine.batches) != other.batches:
        yield "batch", "the batch is another one than in the uninterrupted run"
    count = len(other.losses)
    if (mine.losses[-count:] if count else mine.losses) != other.losses:
        losses = ", ".join(f"{value:.6g}" for value in mine.said[-count:])
        yield "loss", f"the loss is {losses}, in the uninterrupted run {', '.join(f'{x:.6g}' for x in other.said)}"
    for name, bits in other.before.items():
        if mine.before.get(name) != bits:
            yield f"parameter {name}", f"parameter {name} differs before the step"
    for name, bits in other.after.items():
        if mine.after and mine.after.get(name) != bits:
            yield f"parameter {name}", f"parameter {name} differs after the step"
