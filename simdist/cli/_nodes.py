"""The options that name the machines of runs.

Those of a real run have torchrun's own names; those of many simulated runs give the number of processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from simdist.values import Unfit, Whole, shown

if TYPE_CHECKING:
    from simdist.cli._real import RealOptions

__all__ = ["Count", "Ranks", "given_node_options", "node_options", "options_given", "real_options", "report_options"]
__all__ += ["scenario_options", "worker_options"]


if TYPE_CHECKING:
    _WholeType = click.ParamType[int]
    _RanksType = click.ParamType[tuple[int, ...]]
else:  # older ones take no parameter
    _WholeType = _RanksType = click.ParamType


class Count(_WholeType):
    """A whole number in a range."""

    name = "integer"

    def __init__(self, least: int = 0, most: int = 2**31 - 1) -> None:
        self._spec = Whole(least=least, most=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number.

        Raises:
            BadParameter: it is no number, or outside the range.
        """
        try:
            if isinstance(value, str):
                value = int(value) if len(value) <= 40 else value  # Python converts no number with more digits
            number: int = self._spec.check(value)
        except Unfit as unfit:
            self.fail(str(unfit), param, ctx)
        except ValueError:
            self.fail(f"expected a whole number, found {shown(value)}", param, ctx)
        return number


class Ranks(_RanksType):
    """Ranks, separated by commas: "0,2"."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the ranks.

        Raises:
            BadParameter: one is no whole number.
        """
        return tuple(Count().convert(each.strip(), param, ctx) for each in str(value).split(","))


_NAMES = (
    "nnodes",
    "node_rank",
    "rdzv_endpoint",
    "rdzv_backend",
    "rdzv_id",
    "local_addr",
    "time_scale",
    "real_timeout",
)


def node_options(command: Any) -> Any:
    """Decorate a command with the options of nodes."""
    options = [
        click.option(
            "--nnodes",
            type=Count(least=-(2**31)),
            default=1,
            show_default=True,
            help="Machines that take part; run this on each.",
        ),
        click.option(
            "--node-rank",
            type=Count(least=-(2**31)),
            default=0,
            show_default=True,
            help="Which of them this is; 0 writes the report.",
        ),
        click.option("--rdzv-endpoint", default="", metavar="HOST:PORT", help="Where they meet, on node 0."),
        click.option("--rdzv-backend", default="c10d", show_default=True, help="Torchrun's rendezvous backend."),
        click.option("--rdzv-id", default="", help="The job's name, the same on every node."),
        click.option("--local-addr", default="", help="This machine's address as the others see it."),
        click.option("--time-scale", type=float, help="Real seconds per virtual second; default: the scenario's."),
        click.option("--real-timeout", default=120.0, show_default=True, help="Seconds until a rank counts as hung."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def given_node_options(context: click.Context) -> list[str]:
    """Return the options of nodes on the command line."""
    return options_given(context, _NAMES)


def options_given(context: click.Context, names: Sequence[str]) -> list[str]:
    """Return those options of the values `names` that are on the command line."""
    given = [n for n in names if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
    return [f"--{name.removesuffix('_path').replace('_', '-')}" for name in given]


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands with many runs; `workers` is a count, an address or None."""

    @functools.wraps(command)
    def with_workers(*args: Any, workers: int | None, scheduler: str | None, **options: Any) -> Any:
        if scheduler is not None:
            if workers is not None:
                raise click.UsageError("--workers: the workers of the --scheduler do the runs; leave out one of them")
            from simdist.programs import workers_problems

            if problems := list(workers_problems(scheduler)):
                raise click.UsageError(problems[0].replace("workers:", "--scheduler:", 1))
        return command(*args, workers=workers if scheduler is None else scheduler, **options)

    for option in (
        click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, such as tcp://10.0.0.1:8786."),
        click.option("--workers", type=Count(least=1), help="Processes; default: one for each core."),
    ):
        with_workers = option(with_workers)
    return with_workers


def scenario_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the scenario's file, and the options that override its contents."""
    for option in (
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
        ),
        click.option("--seed", type=Count(most=2**64 - 1), help="Instead of the seed in the file."),
        click.argument("file"),
    ):
        command = option(command)
    return command


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for reports."""
    for option in (
        click.option("--junit", metavar="OUT", help="Write the findings as JUnit XML, a test case each."),
        click.option("--json", "json_path", metavar="OUT", help="Write the report as JSON."),
    ):
        command = option(command)
    return command


def real_options(backend: str, node: dict[str, Any], wait: str) -> RealOptions:
    """Return the options of a real run as one object."""
    from simdist.cli._real import RealOptions
    from simdist.hardware import Nodes

    count = node["nnodes"]
    nodes = Nodes(
        count=count,
        rank=node["node_rank"],
        endpoint=node["rdzv_endpoint"],
        backend=node["rdzv_backend"],
        run_id=node["rdzv_id"],
        local_addr=node["local_addr"] or ("127.0.0.1" if count == 1 else ""),
    )
    return RealOptions(
        backend=backend, time_scale=node["time_scale"], limit_s=node["real_timeout"], nodes=nodes, wait=wait
    )
