"""The options that say how and on which machines a real run takes place: torchrun's own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from simdist.values import Unfit, Whole, shown

if TYPE_CHECKING:
    from simdist.cli._real import RealOptions

__all__ = ["Count", "given_node_options", "node_options", "real_options"]


if TYPE_CHECKING:
    _WholeType = click.ParamType[int]
else:  # older ones take no parameter
    _WholeType = click.ParamType


class Count(_WholeType):
    """A whole number in a range."""

    name = "integer"

    def __init__(self, least: int = 0, most: int = 2**31 - 1) -> None:
        self._spec = Whole(least=least, most=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number.

        Raises:
            BadParameter: it is none, or outside.
        """
        try:
            if isinstance(value, str):
                value = int(value) if len(value) <= 40 else value  # of more digits Python makes no number
            number: int = self._spec.check(value)
        except Unfit as unfit:
            self.fail(str(unfit), param, ctx)
        except ValueError:
            self.fail(f"expected a whole number, found {shown(value)}", param, ctx)
        return number


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
    """Decorate a command with them."""
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
    """Those of them that stand on the command line."""
    given = [n for n in _NAMES if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
    return [f"--{name.replace('_', '-')}" for name in given]


def real_options(backend: str, node: dict[str, Any], wait: str) -> RealOptions:
    """What they say, in one object."""
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
