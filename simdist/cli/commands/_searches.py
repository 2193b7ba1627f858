"""Commands that search for failures of a scenario: by crashes, schedules, faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from simdist.cli._nodes import (
    Count,
    Ranks,
    report_options,
    scenario_options,
    worker_options,
)

if TYPE_CHECKING:
    from simdist.sweeps import Strike


__all__ = ["explore", "fuzz", "replay", "sweep"]


@click.command()
@scenario_options
@click.option(
    "--strike",
    "strikes",
    type=click.Choice(["rank", "host", "all", "swap", "lost", "sigterm", "hang"]),
    multiple=True,
    help="A rank dies, its host or all hosts lose power, hosts swap local disks, a host is lost, a rank gets SIGTERM "
    "or hangs; may repeat.",
)
@click.option(
    "--outcomes", type=Count(least=1), default=4, show_default=True, help="States of the disk for each loss of power."
)
@click.option("--limit", type=Count(least=1), help="At most so many crashes, spread over the run.")
@click.option("--second-crash", is_flag=True, help="Crash it a second time, during the recovery.")
@click.option(
    "--no-merge", is_flag=True, help="Run every crash to its end, even if its restart equals one already run."
)
@click.option("--keep", metavar="FILE", help="Keep what is found there; after Ctrl-C the same command goes on.")
@worker_options
@report_options
@click.option("--write", metavar="FOLDER", help="Write for each failure a scenario, a pytest test and a picture there.")
@click.pass_context
def sweep(
    context: click.Context,
    /,
    file: str,
    seed: int | None,
    overrides: tuple[str, ...],
    strikes: tuple[Strike, ...],
    outcomes: int,
    limit: int | None,
    second_crash: bool,
    no_merge: bool,
    keep: str | None,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    write: str | None,
) -> None:
    """Crash the scenario in FILE at every moment, start it again each time, and report where it does not recover.

    It needs a [disk], and is judged by its own expectations. Faults in the file are ignored.
    """
    from simdist.cli._sweep import sweep_file
    from simdist.sweeps import Tries

    tries = Tries(
        strikes=strikes or None, outcomes=outcomes, limit=limit, second_crash=second_crash, merge=not no_merge
    )
    code = sweep_file(
        file, seed, overrides, tries, keep=keep, workers=workers, json_path=json_path, junit=junit, write=write
    )
    context.exit(code)


@click.command()
@scenario_options
@click.option("--runs", type=Count(least=1), default=200, show_default=True, help="How many schedules are tried.")
@click.option("--schedules", type=Count(most=2**63), default=0, show_default=True, help="The seed of the schedules.")
@click.option("--systematic", is_flag=True, help="Draw none: try every order that can differ, in --runs at most.")
@click.option("--one-outcome", is_flag=True, help="Fail if what ranks return depends on the schedule.")
@click.option("--until-found", is_flag=True, help="Stop at the first failure.")
@worker_options
@report_options
@click.option("--write", metavar="FOLDER", help="Write for each failure a scenario and a pytest test there.")
@click.pass_context
def explore(
    context: click.Context,
    /,
    file: str,
    seed: int | None,
    overrides: tuple[str, ...],
    runs: int,
    schedules: int,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    write: str | None,
    *,
    systematic: bool,
    one_outcome: bool,
    until_found: bool,
) -> None:
    """Run the scenario in FILE under many schedules, and report those under which it fails.

    All judges look on unless the file names some. Exit codes: 0 nothing found, 1 found, 2 bad input.
    """
    from simdist.cli._explore import explore_file

    code = explore_file(
        file,
        seed,
        overrides,
        json_path=json_path,
        junit=junit,
        workers=workers,
        runs=runs,
        schedules=schedules,
        systematic=systematic,
        one_outcome=one_outcome,
        until_found=until_found,
        write=write,
    )
    context.exit(code)


@click.command()
@click.argument("file")
@click.option("--seed", type=Count(most=2**63), default=0, show_default=True, help="The seed of the plans.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
)
@click.option("--runs", type=Count(least=1), help="How many plans; default: 200, or as many as there is time for.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="For how long, in real time.")
@click.option("--budget", type=Count(least=1), default=1, show_default=True, help="Ranks that one run may strike.")
@click.option("--family", "families", multiple=True, metavar="NAME", help="Only faults of this family; may repeat.")
@click.option(
    "--spare", type=Ranks(), multiple=True, metavar="RANKS", help="No run strikes all of these: 0,2; may repeat."
)
@click.option("--database", metavar="DIR", help="Keep what is found there, and try it first the next time.")
@click.option("--no-shrink", is_flag=True, help="Report what is found as it was drawn.")
@worker_options
@report_options
@click.option("--write", metavar="FOLDER", help="Write for each failure a scenario and a pytest test there.")
@click.pass_context
def fuzz(
    context: click.Context,
    /,
    file: str,
    seed: int,
    overrides: tuple[str, ...],
    runs: int | None,
    minutes: float | None,
    budget: int,
    families: tuple[str, ...],
    spare: tuple[tuple[int, ...], ...],
    database: str | None,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    write: str | None,
    *,
    no_shrink: bool,
) -> None:
    """Run the scenario in FILE under random faults, and report the failures that no fault explains.

    Faults in the file are ignored. All judges look on unless the file names some. Exit codes: 0 nothing found, 1 found,
    2 bad input.
    """
    from simdist.cli._fuzz import fuzz_file
    from simdist.searches import Tries

    tries = Tries(
        runs=200 if runs is None and minutes is None else runs,
        seed=seed,
        budget=budget,
        families=families or None,
        spare=spare,
        shrink=not no_shrink,
    )
    code = fuzz_file(
        file,
        overrides,
        tries,
        minutes=minutes,
        database=database,
        json_path=json_path,
        junit=junit,
        workers=workers,
        write=write,
    )
    context.exit(code)


@click.command()
@click.argument("token")
@click.option("--file", metavar="FILE", help="The scenario, if it is elsewhere by now.")
@click.pass_context
def replay(context: click.Context, token: str, file: str | None) -> None:
    """Repeat the failing run that TOKEN stands for; `simdist fuzz` prints tokens.

    Exit codes: 0 it does not fail any more, 1 it fails, 2 bad input.
    """
    from simdist.cli._fuzz import replay_token

    context.exit(replay_token(token, file))
