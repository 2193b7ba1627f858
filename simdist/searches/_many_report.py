"""The report on many runs of one program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simdist.programs import died_words
from simdist.searches._outcomes import Cause
from simdist.searches._report import INTERRUPTED, SearchReport
from simdist.values import Json

__all__ = ["FailedRuns", "ManyReport", "SingleRun"]

_SEEDS = 10  # that are shown of a cause


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleRun:
    """One of many runs, counted from 0.

    `variant` is the number of its variant (-1: there are none). `outcome` says how its ranks ended, and is empty if the
    run could not be done, as when its process died. `cause` is why it failed, None if it did not. `replay` is the call
    or command that repeats it; `token` is the word for `simdist replay`, for a scenario. `cpu_s` is the processor time
    that it took.
    """

    number: int
    seed: int
    variant: int = -1
    outcome: str = ""
    cause: Cause | None = None
    digest: str = ""
    virtual_time_ns: int = 0
    restarts: int = 0
    replay: str = ""
    token: str = ""
    cpu_s: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        """True if it did not fail."""
        return self.cause is None

    def summary(self) -> dict[str, Json]:
        """Return the run as JSON-ready data."""
        return {
            "number": self.number,
            "seed": self.seed,
            "variant": None if self.variant < 0 else self.variant,
            "ok": self.ok,
            "outcome": self.outcome,
            "cause": None if self.cause is None else str(self.cause),
            "digest": self.digest,
            "virtual_time_ns": self.virtual_time_ns,
            "restarts": self.restarts,
        }


@dataclass(frozen=True, slots=True)
class FailedRuns:
    """Runs that failed for the same cause, in their order."""

    cause: Cause
    runs: tuple[SingleRun, ...]

    @property
    def first(self) -> SingleRun:
        """The first of them."""
        return self.runs[0]

    def lines(self, count: int) -> Iterator[str]:
        """Yield the lines about the failure in a report of `count` runs."""
        yield f"found: {self.cause}"
        yield f"  {len(self.runs)} of {count} runs: {_seed_text(self.runs)}"
        yield f"  replay: {self.first.replay}"

    def summary(self) -> dict[str, Json]:
        """Return the failure as JSON-ready data."""
        return {
            **self.cause.summary(),
            "count": len(self.runs),
            "first": self.first.number,
            "seed": self.first.seed,
            "variant": None if self.first.variant < 0 else self.first.variant,
            "replay": self.first.replay,
            "token": self.first.token,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyReport(SearchReport):
    """The results of all runs, in the order of variants and seeds.

    `died` counts worker processes that died; a run fails if processes die of it repeatedly. If the runs were
    `interrupted`, some are missing.
    """

    results: tuple[SingleRun, ...]
    died: int = field(default=0, compare=False)
    interrupted: bool = False

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.results)

    @property
    def ok(self) -> bool:
        """True if all runs were done, and none failed."""
        return not self.interrupted and self.first_failure() is None

    @property
    def failures(self) -> tuple[FailedRuns, ...]:
        """The runs that failed, by cause, in the order in which the causes were seen first."""
        by_cause: dict[str, list[SingleRun]] = {}
        for run in self.results:
            if run.cause is not None:
                by_cause.setdefault(run.cause.key, []).append(run)
        return tuple(FailedRuns(runs[0].cause, tuple(runs)) for runs in by_cause.values() if runs[0].cause is not None)

    @property
    def runs_a_minute_per_core(self) -> float:
        """By the processor time that the runs took."""
        spent_s = sum(run.cpu_s for run in self.results)
        return 60 * len(self.results) / spent_s if spent_s else 0.0

    def first_failure(self) -> SingleRun | None:
        """Return the first run that failed."""
        return next((run for run in self.results if not run.ok), None)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        if self.interrupted:
            yield INTERRUPTED
        failed = sum(not run.ok for run in self.results)
        yield f"{self.runs} run{'' if self.runs == 1 else 's'}: {self.runs - failed} passed, {failed} failed"
        failures = self.failures
        if self.died and not any(failure.cause.kind == "died" for failure in failures):
            yield died_words(self.died)
        for failure in failures:
            yield from failure.lines(self.runs)

    def __str__(self) -> str:
        return "\n".join([*self.lines(), f"{self.runs_a_minute_per_core:,.0f} runs a minute per core"])

    def summary(self) -> dict[str, Json]:
        """Return the report as JSON-ready data."""
        failures = self.failures
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "runs": self.runs,
            "passed": sum(run.ok for run in self.results),
            "failures": [failure.summary() for failure in failures],
            "results": [run.summary() for run in self.results],
        }


def _seed_text(runs: Sequence[SingleRun]) -> str:
    """Return the seeds of runs, grouped by variant; the first few, and how many more."""
    by_variant: dict[int, list[int]] = {}
    for run in runs[:_SEEDS]:
        by_variant.setdefault(run.variant, []).append(run.seed)
    texts = []
    for variant, seeds in by_variant.items():
        text = f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
        texts.append(text if variant < 0 else f"variant {variant}, {text}")
    return "; ".join(texts) + (f" and {len(runs) - _SEEDS} more" if len(runs) > _SEEDS else "")
