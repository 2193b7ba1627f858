"""`simdist calibrate`: measure this machine, and write the costs for simulations of it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from simdist.cli._console import page
from simdist.cli._outputs import output_problems, write_text
from simdist.cli._real import number_problems
from simdist.cli._table import plain_table
from simdist.errors import SimdistError
from simdist.values import format_duration

__all__ = ["calibrate_machine"]


def calibrate_machine(backend: str, ranks: Sequence[int], output: str, limit_s: float) -> int:
    """Measure, fit, measure again, print both, write the description; return the exit code, 3 without the backend.

    Raises:
        SimdistError: the file can't be written, or a measurement failed.
    """
    from simdist.hardware import Nodes, calibrate, rows_of, unavailable

    problems = output_problems({"-o": output}) + number_problems("--real-timeout", limit_s)
    if problems:
        raise SimdistError("\n".join(problems))
    missing = unavailable(backend, max(ranks), Nodes())
    if missing:
        click.echo(f"not measured: {missing}", err=True)
        return 3
    calibration = calibrate(backend, sorted(set(ranks)), limit_s=limit_s)
    write_text(output, lambda stream: stream.write(calibration.to_toml()))
    with page() as out:
        columns = ("operation", "bytes", "ranks", "measured", "predicted", "ratio")
        table = plain_table(*columns, right=("bytes", "ranks", "measured", "predicted", "ratio"))
        for operation, size, count, measured_s, predicted_s in rows_of(calibration):
            table.add_row(
                operation,
                str(size),
                str(count),
                format_duration(round(measured_s * 1e9)),
                format_duration(round(predicted_s * 1e9)),
                f"{predicted_s / measured_s:.2f}",
            )
        out.print(table)
        out.print()
        slower = ("latency", "data")  # of reductions
        models = plain_table("ranks", "latency", "bandwidth", *slower, "from", "fit", "all_reduce", "broadcast")
        for fit in calibration.fits:
            models.add_row(
                str(fit.ranks),
                format_duration(fit.model.latency_ns),
                f"{fit.model.bandwidth_bytes_per_s / 1e9:.2f} GB/s",
                f"x {fit.model.latency_slowdown:.2f}",
                f"x {fit.model.slowdown:.2f}",
                f"{fit.model.from_bytes} B",
                f"{fit.error(fit.fitted):.1%}",
                f"{fit.error(fit.checked, 'all_reduce'):.1%}",
                f"{fit.error(fit.checked, 'broadcast'):.1%}",
            )
        out.print(models)
        out.print()
        out.print(
            "fit: geometric mean of the error on what was fitted; per operation: on a second measurement, made after"
        )
        out.print(f"over all of it: {calibration.error():.1%}")
        out.print(f"written: {output}")
    return 0
