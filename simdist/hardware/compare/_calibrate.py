"""Calibration: measure the machine's own backend, fit the cost model, and check the fit against a second measurement.

The model has five numbers for each world size: the latency of a message, the bandwidth between two ranks, and for a
reduction the size from which on it is slower, and by how much both its latency and its data are. They describe the
machine as it is: where there are fewer cores than ranks, a message waits for a core as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from simdist.c10d import GLOO, Done, Flow, Operation
from simdist.errors import SimdistError
from simdist.hardware._job import Job
from simdist.hardware._keeper import Keeper
from simdist.hardware._launch import Nodes, launch
from simdist.hardware.compare._measured import OPERATIONS, SIZES
from simdist.hardware.compare._outcome import outcome_of

__all__ = ["Calibration", "Fit", "Model", "calibrate", "fit_model", "measured_on", "predict_s", "rows_of"]

_ELEMENT = 4
_LIMIT_S = 600.0

Measurement = Mapping[tuple[str, int], float]  # operation and payload in bytes -> seconds


@dataclass(frozen=True, slots=True)
class Model:
    """The numbers of the cost model; see `simdist.cluster.Cluster`."""

    latency_ns: int
    byte_ns: float
    slowdown: float = 1.0
    latency_slowdown: float = 1.0
    from_bytes: int = 0

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """Between two ranks."""
        return max(1, round(1e9 / self.byte_ns))


@dataclass(frozen=True, slots=True)
class Fit:
    """The model's numbers for one world size, and the measurements for the fit and for its check, in seconds."""

    ranks: int
    model: Model
    fitted: Measurement
    checked: Measurement

    def predicted_s(self, operation: str, size: int) -> float:
        """Return the model's prediction."""
        return predict_s(operation, size, self.ranks, self.model)

    def error(self, measurement: Measurement, operation: str | None = None) -> float:
        """Return the geometric mean of the predictions' errors: 0.25 is 25 % too much or too little."""
        logs = [
            abs(math.log(self.predicted_s(*point) / seconds))
            for point, seconds in measurement.items()
            if operation in (None, point[0])
        ]
        return math.exp(sum(logs) / len(logs)) - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fits of one machine and backend, by world size."""

    backend: str
    fits: tuple[Fit, ...]

    def error(self, operation: str | None = None) -> float:
        """Return the geometric mean over all world sizes, against the measurement made after the fit."""
        logs = [math.log1p(fit.error(fit.checked, operation)) for fit in self.fits]
        return math.exp(sum(logs) / len(logs)) - 1

    def to_toml(self) -> str:
        """Return the cluster description: for `cluster.calibration` in a scenario."""
        lines = [
            f"# Measured by simdist calibrate --real {self.backend}, torch {torch.__version__.partition('+')[0]}.",
            '# In a scenario: [cluster] calibration = "this file"; the entry of the world\'s size is taken.',
            f'backend = "{self.backend}"',
        ]
        for fit in self.fits:
            lines += [
                "",
                "[[world]]",
                f"ranks = {fit.ranks}",
                f'local_latency = "{fit.model.latency_ns}ns"',
                f'local_bandwidth = "{fit.model.bandwidth_bytes_per_s}B/s"',
                f"reduction_slowdown = {fit.model.slowdown:.3f}",
                f"reduction_latency_slowdown = {fit.model.latency_slowdown:.3f}",
                f"reduction_from_bytes = {fit.model.from_bytes}",
                f"error = {fit.error(fit.checked):.3f}",
            ]
        return "\n".join(lines) + "\n"


def calibrate(backend: str, world_sizes: Sequence[int], *, limit_s: float = _LIMIT_S) -> Calibration:
    """Measure, fit, and measure again.

    Raises:
        SimdistError: a measurement did not end, or failed.
    """
    first = [measured_on(backend, ranks, limit_s=limit_s) for ranks in world_sizes]
    models = [fit_model(ranks, measured) for ranks, measured in zip(world_sizes, first, strict=True)]
    second = [measured_on(backend, ranks, limit_s=limit_s) for ranks in world_sizes]
    fits = [
        Fit(ranks, model, one, other)
        for ranks, model, one, other in zip(world_sizes, models, first, second, strict=True)
    ]
    return Calibration(backend, tuple(fits))


def measured_on(backend: str, ranks: int, *, limit_s: float = _LIMIT_S) -> Measurement:
    """Return times on real processes of this machine.

    Raises:
        SimdistError: they did not end, or failed.
    """
    with Keeper() as keeper:
        job = Job(
            target="simdist.hardware.compare._measured:measure",
            folder=str(keeper.folder),
            args=(backend, list(OPERATIONS), list(SIZES)),
            kwargs={},
            world_size=ranks,
            backend=backend,
            seed=0,
            max_restarts=0,
            time_scale=1.0,
            limit_s=limit_s,
            out=str(keeper.folder),
            board=("", 0),
            key=b"",
            record=False,
        )
        seen = launch(job, Nodes(), keeper)
        assert seen is not None
        result = outcome_of(seen, "")
    if not result.ok:
        bad = next(rank for rank in result.ranks if not rank.ok)
        tail = "\n".join(f"  {line}" for line in bad.stderr.rstrip().splitlines()[-6:])
        raise SimdistError(f"measuring {ranks} ranks failed: rank {bad.rank} {bad.status}\n{tail}")
    rows: list[list[Any]] = result.ranks[0].value
    return {(str(operation), int(size)): float(seconds) for operation, size, seconds in rows}


# -- the model ---------------------------------------------------------------------------------------------------


class _Links:
    """Links that are the same between all pairs of ranks."""

    def __init__(self, latency_ns: int, byte_ns: float) -> None:
        self._latency_ns = latency_ns
        self._byte_ns = byte_ns

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        return self._latency_ns

    def byte_ns(self, source: int, target: int) -> float:
        return self._byte_ns

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        return now_ns


@lru_cache(maxsize=65536)
def predict_s(operation: str, size: int, ranks: int, model: Model) -> float:
    """Return the seconds that a simulation with these numbers takes from the last call to the last return."""
    what = Operation(operation, size, _ELEMENT, torch.float32, (size // _ELEMENT,), "sum", 0)
    if operation == "all_reduce":
        slower, longer = (model.latency_slowdown, model.slowdown) if size >= model.from_bytes else (1.0, 1.0)
        return GLOO.algorithm.duration_ns(what, ranks, round(model.latency_ns * slower), model.byte_ns * longer) / 1e9
    flow = Flow(
        lambda rank: GLOO.algorithm.program(what, rank, ranks, lambda _: ([], [])),
        _Links(model.latency_ns, model.byte_ns),
    )
    for rank in range(ranks):
        flow.arrive(rank, 0)
    ends = [outcome.time_ns for rank in range(ranks) if isinstance(outcome := flow.outcome(rank), Done)]
    return max(ends) / 1e9


def fit_model(ranks: int, measured: Measurement) -> Model:
    """Return the numbers with the least mean error in logarithms: each in turn is varied on a grid that gets finer.

    Every measured size is tried as the size from which on a reduction is slower.
    """

    def error(model: Model) -> float:
        return sum(
            abs(math.log(predict_s(operation, size, ranks, model) / seconds))
            for (operation, size), seconds in measured.items()
        )

    best = Model(50_000, 0.3)
    for from_bytes in sorted({size for _, size in measured}):
        model, width = replace(best, slowdown=2.0, from_bytes=from_bytes), 3.0
        while width > 0.01:
            steps = [math.exp(step * width) for step in (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)]
            nearby = [model]
            for step in steps:
                nearby += [
                    replace(model, latency_ns=max(1, round(model.latency_ns * step))),
                    replace(model, byte_ns=model.byte_ns * step),
                    replace(model, slowdown=model.slowdown * step),
                    replace(model, latency_slowdown=model.latency_slowdown * step),
                ]
            better = min(nearby, key=error)
            width = width if better != model else width * 0.5
            model = better
        best = min(best, model, key=error)
    return best


def rows_of(calibration: Calibration) -> list[tuple[str, int, int, float, float]]:
    """Return operation, size, ranks, seconds measured after the fit, and predicted seconds of every point."""
    return [
        (operation, size, fit.ranks, seconds, fit.predicted_s(operation, size))
        for fit in calibration.fits
        for (operation, size), seconds in fit.checked.items()
    ]
