"""The expectations: each looks at the results of a run and yields a verdict with its evidence.

Every oracle is a generator of verdicts over `Seen`; an expectation that is not set yields nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simdist.result import RankResult, RunResult
from simdist.scenario._equality import difference, near
from simdist.scenario._plan import ExpectedException, Plan, Verdict
from simdist.scenario._steps import lost_steps, lost_words
from simdist.scenario._training import judge_training
from simdist.scenario._workload import fill
from simdist.values import format_duration, rank_text, repr_of, shortened, text_of, without_source

__all__ = ["Seen", "judge", "judge_real"]


@dataclass(frozen=True, slots=True)
class Seen:
    """The data of the oracles: the run, the fault-free run if an expectation needs one, and the run's folder."""

    plan: Plan
    result: RunResult
    baseline: RunResult | None
    tmp: str
    reword: Callable[[str], str] = str  # rewords an exception's text as a simulation's
    single: RunResult | None = None  # the run of one rank, if an expectation needs one


def judge(seen: Seen) -> tuple[Verdict, ...]:
    """Return the verdicts, in a fixed order."""
    return tuple(verdict for oracle in _ORACLES for verdict in oracle(seen))


def judge_real(
    plan: Plan, result: RunResult, baseline: RunResult | None, tmp: str, reword: Callable[[str], str] = str
) -> tuple[Verdict, ...]:
    """Return the verdicts on a run of real processes: those that need nothing that only a simulation has.

    Left out are the deadlock report, and the bounds on virtual time, events and lost steps. `reword` turns an
    exception's text into the words of a simulation.
    """
    seen = Seen(plan, result, baseline, tmp, reword)
    return tuple(verdict for oracle in _ORACLES if oracle not in _SIMULATED_ONLY for verdict in oracle(seen))


def _outcomes(seen: Seen) -> Iterator[Verdict]:
    expected = seen.plan.expect.outcomes
    wrong: dict[str, list[int]] = {}
    for rank, want in zip(seen.result.ranks, expected, strict=False):  # after a restart there may be fewer
        if rank.status != want:
            wrong.setdefault(f"{_ended(rank)}, expected {want}", []).append(rank.rank)
    groups: dict[str, list[int]] = {}
    for index, want in enumerate(expected):
        groups.setdefault(want, []).append(index)
    yield Verdict("outcomes", not wrong, _by_ranks(wrong or groups))


def _exceptions(seen: Seen) -> Iterator[Verdict]:
    expected = seen.plan.expect.exceptions
    if not expected:
        return
    wrong: dict[str, list[int]] = {}
    right: dict[str, list[int]] = {}
    for index, want in expected.items():
        if index >= len(seen.result.ranks):
            wrong.setdefault("is not there any more", []).append(index)
            continue
        rank = seen.result.ranks[index]
        if rank.exception is None:
            wrong.setdefault(f"{_ended(rank)}, no exception", []).append(index)
            continue
        line = f"{type(rank.exception).__name__}: {shortened(without_source(text_of(rank.exception)), 120)}"
        side = right if _matches(rank.exception, want, seen.reword) else wrong
        side.setdefault(line, []).append(index)
    yield Verdict("exception", not wrong, _by_ranks(wrong or right))


def _matches(exception: BaseException, want: ExpectedException, reword: Callable[[str], str]) -> bool:
    text = reword(text_of(exception))
    return (
        (want.type is None or want.type in [base.__name__ for base in type(exception).__mro__])
        and (want.message is None or want.message in text)
        and (want.pattern is None or re.search(want.pattern, text) is not None)
    )


def _restarts(seen: Seen) -> Iterator[Verdict]:
    want, had = seen.plan.expect.restarts, seen.result.restarts
    if want is not None:
        yield Verdict("restarts", had == want, f"{had}" if had == want else f"{had}, expected {want}")


def _faults_strike(seen: Seen) -> Iterator[Verdict]:
    if not seen.plan.faults or not seen.plan.expect.faults_strike:
        return
    idle = [fault.called for fault in seen.result.faults if not fault.ok]
    count, struck = len(seen.result.faults), sum(fault.struck for fault in seen.result.faults)
    text = f"never struck: {', '.join(idle)}" if idle else f"{struck} of {count} struck"
    yield Verdict("faults_strike", not idle, text)


def _judges(seen: Seen) -> Iterator[Verdict]:
    if not seen.result.judges:
        return
    found = list(dict.fromkeys(finding.judge for finding in seen.result.findings))
    text = "; ".join(f"{each.judge}: {each.problem}" for each in seen.result.findings[:2])
    missing = [name for name in seen.plan.expect.findings if name not in found]
    text = "; ".join([*([text] if text else []), *(f"{name} found nothing" for name in missing)])
    ok = set(found) == set(seen.plan.expect.findings)
    yield Verdict("judges", ok, text or f"{', '.join(seen.result.judges)}: nothing found")


def _equal_values(seen: Seen) -> Iterator[Verdict]:
    keys = seen.plan.expect.equal_values
    if keys is None:
        return
    try:
        values = [_under(rank, keys) for rank in seen.result.ranks]
    except _NoValueError as error:
        yield Verdict("equal_values", False, str(error))
        return
    for index, value in enumerate(values):
        text = difference(values[0], value)
        if text is not None:
            yield Verdict("equal_values", False, f"ranks 0 and {index} differ at {text}")
            return
    yield Verdict("equal_values", True, f"{_called(keys)} equal on {rank_text(range(len(values)))}")


def _same_as_without_faults(seen: Seen) -> Iterator[Verdict]:
    keys = seen.plan.expect.same_as_without_faults
    if keys is None or seen.baseline is None:
        return
    name = "same_as_without_faults"
    if len(seen.result.ranks) < len(seen.baseline.ranks):
        yield Verdict(
            name, False, f"{len(seen.result.ranks)} ranks are left, without faults {len(seen.baseline.ranks)}"
        )
        return
    for rank, other in zip(seen.result.ranks, seen.baseline.ranks, strict=True):
        try:
            text = difference(_under(rank, keys), _under(other, keys, "the fault-free run's "))
        except _NoValueError as error:
            yield Verdict(name, False, str(error))
            return
        if text is not None:
            yield Verdict(name, False, f"final {_called(keys)} equal: no; rank {rank.rank} at {text} without faults")
            return
    yield Verdict(name, True, f"final {_called(keys)} equal: yes, on {rank_text(range(len(seen.result.ranks)))}")


def _bounds(seen: Seen) -> Iterator[Verdict]:
    """Judge min_values and max_values: each key on every rank."""
    checks: list[tuple[str, Mapping[str, float], Callable[[float, float], bool]]] = [
        ("min_values", seen.plan.expect.min_values, lambda value, bound: value >= bound),
        ("max_values", seen.plan.expect.max_values, lambda value, bound: value <= bound),
    ]
    for name, bounds, holds in checks:
        if not bounds:
            continue
        bad, good = [], []
        for key, bound in bounds.items():
            values = []
            try:
                values = [_under(rank, (key,))[key] for rank in seen.result.ranks]
            except _NoValueError as error:
                bad.append(str(error))
                continue
            wrong = [v for v in values if isinstance(v, bool) or not isinstance(v, int | float) or not holds(v, bound)]
            sign = ">=" if name == "min_values" else "<="
            if wrong:
                bad.append(f"{key} is {shortened(repr_of(wrong[0]), 40)}, expected {sign} {bound:g}")
            else:
                worst = min(values) if name == "min_values" else max(values)
                good.append(f"{key} {worst:.6g} {sign} {bound:g}")
        yield Verdict(name, not bad, "; ".join(bad or good))


def _checkpoints(seen: Seen) -> Iterator[Verdict]:
    for path in seen.plan.expect.checkpoints:
        # The evidence shows the path as the file writes it: the folder's real name differs from run to run.
        yield Verdict("checkpoint", *_loads(fill(path, seen.tmp), path, seen.tmp))


def _loads(path: str, shown: str, tmp: str) -> tuple[bool, str]:
    import torch

    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        return False, f"{shown} does not exist"
    except Exception as error:  # a damaged file may raise anything
        reason = shortened(str(error).replace(tmp, "{tmp}"), 120)
        return False, f"{shown} does not load: {type(error).__name__}: {reason}"
    keys = f", with {', '.join(map(str, content))}" if isinstance(content, dict) and len(content) <= 6 else ""
    return True, f"{shown} loads{keys}"


def _deadlock(seen: Seen) -> Iterator[Verdict]:
    want, report = seen.plan.expect.deadlock, seen.result.deadlock
    if report is None:
        yield Verdict("deadlock", not want, "none, expected one" if want else "none")
    else:
        cycle = " -> ".join(report.cycle)
        text = f"at {format_duration(report.time_ns)}" + (f": {cycle}" if cycle else "")
        yield Verdict("deadlock", want, text if want else f"{text}; expected none")


def _virtual_time(seen: Seen) -> Iterator[Verdict]:
    low, high = seen.plan.expect.min_virtual_time_ns, seen.plan.expect.max_virtual_time_ns
    took = seen.result.virtual_time_ns
    if low is not None:
        yield Verdict("min_virtual_time", took >= low, f"{format_duration(took)}, at least {format_duration(low)}")
    if high is not None:
        yield Verdict("max_virtual_time", took <= high, f"{format_duration(took)}, at most {format_duration(high)}")


def _events(seen: Seen) -> Iterator[Verdict]:
    bound, count = seen.plan.expect.max_events, len(seen.result.events)
    if bound is not None:
        yield Verdict("max_events", count <= bound, f"{count}, at most {bound}")


def _steps_lost(seen: Seen) -> Iterator[Verdict]:
    bound = seen.plan.expect.max_steps_lost
    if bound is not None:
        lost = lost_steps(seen.result.events)
        yield Verdict("max_steps_lost", lost <= bound, lost_words(lost, bound))


def _training(seen: Seen) -> Iterator[Verdict]:
    undisturbed = None if seen.baseline is None else seen.baseline.events
    yield from judge_training(seen.plan.expect, seen.result.events, undisturbed, seen.tmp)


def _one_rank(seen: Seen) -> Iterator[Verdict]:
    keys = seen.plan.expect.same_as_one_rank
    if keys is None or seen.single is None:
        return
    try:
        wanted = _under(seen.single.ranks[0], keys, "of the run of one rank ")
        for rank in seen.result.ranks:
            text = near(_under(rank, keys), wanted)
            if text is not None:
                yield Verdict("same_as_one_rank", False, f"{_called(keys)}: rank {rank.rank} at {text} with one rank")
                return
    except _NoValueError as error:
        yield Verdict("same_as_one_rank", False, str(error))
        return
    yield Verdict("same_as_one_rank", True, f"{_called(keys)} as of one rank")


class _NoValueError(Exception):
    """Return the verdict about a rank without a value to compare."""


def _under(rank: RankResult, keys: Sequence[str], whose: str = "") -> Any:
    if rank.status != "returned":
        raise _NoValueError(f"{whose}rank {rank.rank} returned nothing: it {_ended(rank)}")
    if not keys:
        return rank.value
    for key in keys:
        if not isinstance(rank.value, Mapping) or key not in rank.value:
            raise _NoValueError(
                f"{whose}rank {rank.rank} returned {shortened(repr_of(rank.value), 40)}, without {key!r}"
            )
    return {key: rank.value[key] for key in keys}


def _called(keys: Sequence[str]) -> str:
    return " and ".join(keys) if keys else "values"


def _ended(rank: RankResult) -> str:
    if rank.status == "raised":
        return f"raised {type(rank.exception).__name__}"
    if rank.status == "exited":
        return f"exited with code {rank.exit_code}"
    return {"killed": "was killed", "hung": "hangs"}.get(rank.status, rank.status)


def _by_ranks(groups: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{rank_text(ranks)} {text}" for text, ranks in groups.items())


_ORACLES: tuple[Callable[[Seen], Iterator[Verdict]], ...] = (
    _outcomes,
    _exceptions,
    _restarts,
    _faults_strike,
    _judges,
    _equal_values,
    _same_as_without_faults,
    _bounds,
    _checkpoints,
    _deadlock,
    _virtual_time,
    _events,
    _steps_lost,
    _training,
    _one_rank,
)
_SIMULATED_ONLY = (*(_deadlock, _virtual_time, _events, _steps_lost, _training, _one_rank),)
