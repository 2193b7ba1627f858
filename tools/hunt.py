"""Hunt for wrong numbers in torch's DTensor: every operator of torch's database, in layouts that shards do not fit.

    python tools/hunt.py                      # all operators; a line per layout in which one gives another result
    python tools/hunt.py mse_loss conv1d      # operators with one of these words in their name
    python tools/hunt.py --samples 12         # more of the arguments that torch tests an operator with
    python tools/hunt.py mse_loss --real      # what was found, again on real processes over Gloo

Results and gradients on DTensors are compared with those of plain tensors. A line says how many calls differ, and how
the first one does. "part ways" means that ranks call different collectives, or that some raise and others wait: on
real processes a hang or an error. Exit code 1 if something was found, 2 if no operator has such a name.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist

import simdist
from tests.real_gloo import run_real
from tools._hunt_operators import Difference, Layout, differences_of, layouts, operators

_REAL_LIMIT_S = 60


@dataclass(frozen=True)
class Finding:
    """The result of one operator in one layout. `part_ways` is the first line of a report, or empty."""

    operator: str
    layout: Layout
    differences: Sequence[Difference] = ()
    part_ways: str = ""
    real: str = field(default="", compare=False)

    def line(self) -> str:
        """Return one line of the list."""
        if self.part_ways:
            how = f"ranks part ways: {self.part_ways}"
        else:
            first = self.differences[0]
            how = f"{len(self.differences)} x, {first.what} of {first.shapes} [{first.arguments}]: {first.how}"
        return f"{self.operator}, {self.layout.name}: {how}{self.real and f'; {self.real}'}"


def hunt(names: Sequence[str], ranks: int, samples: int) -> Iterator[Finding]:
    """Try operators in all layouts on simulated ranks: in one world, or if that fails in a world for each layout."""
    for name in names:
        result = simdist.run(_program, world_size=ranks, args=(name, layouts(), samples), strict=True)
        for place, layout in enumerate(layouts()):
            if result.ok:
                parts, outcome = [rank.value[place] for rank in result.ranks], None
            else:
                outcome = simdist.run(_program, world_size=ranks, args=(name, [layout], samples), strict=True)
                parts = [rank.value[0] for rank in outcome.ranks if rank.value]
            if outcome and not outcome.ok:
                yield Finding(name, layout, part_ways=str(outcome).splitlines()[0])
            elif differences := list(dict.fromkeys(itertools.chain.from_iterable(parts))):
                yield Finding(name, layout, differences)


def on_real_processes(finding: Finding, ranks: int, samples: int) -> str:
    """Run the same operator in the same layout on processes over Gloo; returns in words if they show the same."""
    outcomes = run_real(_program, ranks, args=(finding.operator, [finding.layout], samples), timeout_s=_REAL_LIMIT_S)
    bad = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome.status != "returned"]
    if bad:
        rank, outcome = min(bad, key=lambda pair: pair[1].seconds)
        words = [outcome.status, *filter(None, [outcome.exception_type, outcome.message.strip().partition("\n")[0]])]
        return f"real processes: rank {rank} {' '.join(words)}"
    differences = list(dict.fromkeys(itertools.chain.from_iterable(outcome.value[0] for outcome in outcomes)))
    same = sorted(differences) == sorted(finding.differences)
    return "the same on real processes" if same else f"real processes: {len(differences)} differences"


def _program(name: str, layouts: Sequence[Layout], samples: int) -> list[list[Difference]]:
    dist.init_process_group("gloo")
    differences = [differences_of(name, layout, samples) for layout in layouts]
    dist.destroy_process_group()
    return differences


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="operators with one of these in their name; all without any")
    parser.add_argument("--ranks", type=int, default=4, help="an even number (default 4)")
    parser.add_argument("--samples", type=int, default=3, help="of each operator's arguments (default 3)")
    parser.add_argument("--real", action="store_true", help="try what was found on real processes")
    options = parser.parse_args(arguments)
    if options.ranks < 2 or options.ranks % 2 or options.samples < 1:
        parser.error("--ranks takes an even number from 2 on, --samples a number from 1 on")
    names = [name for name in operators() if not options.words or any(word in name for word in options.words)]
    if not names:
        parser.error(f"torch's database has no operator with {' or '.join(options.words)} in its name")
    found = 0
    for finding in hunt(names, options.ranks, options.samples):
        found += 1
        real = on_real_processes(finding, options.ranks, options.samples) if options.real else ""
        print(
            Finding(finding.operator, finding.layout, finding.differences, finding.part_ways, real).line(), flush=True
        )
    print(f"{len(names)} operators in {len(layouts())} layouts: {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
