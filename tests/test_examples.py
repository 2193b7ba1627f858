"""Every example in a docstring runs, and prints the output that it shows."""

from __future__ import annotations

import ast
import doctest
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from simdist import native
from simdist.c10d import torch_generator
from simdist.c10d.backends.gloo._schedules import broadcast
from simdist.cluster import Network, build
from simdist.faults import Crash
from simdist.kernel import Simulation
from simdist.process import Patches, PythonReplacements, Runtime, Sharing, Slots
from simdist.world import observed_by
from tests.c10d.strategies import FakeCosts
from tests.c10d.test_toy_backend import HUB
from tests.examples import train

ROOT = Path(simdist.__file__).parents[1]
Names = dict[str, Any]

# The names that each example uses besides those of its own module.
GIVEN: dict[str, Callable[[pytest.FixtureRequest], Names]] = {
    "simdist.c10d._makers": lambda request: {"HUB": HUB},
    "simdist.c10d._install": lambda request: {
        "network": Network(build(2)),
        "simulation": Simulation(),
        "slots": Slots(0, torch_generator(), native),
    },
    "simdist.c10d.engine._flow": lambda request: {"broadcast": broadcast, "costs": FakeCosts()},
    "simdist.c10d.engine._matching": lambda request: {"message": _message(), "other": _message()},
    "simdist.c10d.surface.state._backend_tables": lambda request: {"patches": Patches(), "make_group": None},
    "simdist.c10d.surface.state._rank_world": lambda request: {
        "c10d": SimpleNamespace(_world=dist.distributed_c10d._world)
    },
    "simdist.cluster._host": lambda request: {"network": Network(build(4, hosts=2))},
    "simdist.cluster._network": lambda request: {"build": build},
    "simdist.device._host_copies": lambda request: {"simdist": simdist},
    "simdist.device._install": lambda request: {
        "cluster": build(1, devices_per_host=1),
        "slots": Slots(0, torch_generator(), native),
    },
    "simdist.determinism._sites": lambda request: {"observed_by": observed_by},
    "simdist.determinism._report": lambda request: request.getfixturevalue("warm_processes") and {},
    "simdist.process._randomness": lambda request: {"third": torch_generator(), "memory": native},
    "simdist.process._slots": lambda request: {"third": torch_generator(), "memory": native, "Simulation": Simulation},
    "simdist.process._runtime": lambda request: {
        "simulation": Simulation(),
        "slots": Slots(0, torch_generator(), native),
        "PythonReplacements": PythonReplacements,
    },
    "simdist.process.modules._isolation": lambda request: {
        "runtime": Runtime(Simulation(), Slots(0, torch_generator(), native), seed=0, python=PythonReplacements()),
        "Sharing": Sharing,
    },
    "simdist.testing._plugin._live": lambda request: {"sim": request.getfixturevalue("sim")},
    "simdist.testing._plugin._sim": lambda request: {"sim": request.getfixturevalue("sim")},
}
REAL = ("simdist.hardware.",)  # they start processes, or open sockets


def _message() -> SimpleNamespace:
    return SimpleNamespace(place=-1)


def _documented() -> list[tuple[str, str]]:
    """Return module and name of everything with an example in its docstring."""
    found = []
    for path in sorted((ROOT / "simdist").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        if ">>>" not in text:
            continue
        tree = ast.parse(text)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        found += [(module, getattr(each, "name", "")) for each in nodes if ">>>" in (ast.get_docstring(each) or "")]
    return found


DOCUMENTED = [
    pytest.param(module, name, id=f"{module}:{name}", marks=[pytest.mark.real] if module.startswith(REAL) else [])
    for module, name in _documented()
]


@pytest.mark.parametrize(("module", "name"), DOCUMENTED)
def test_an_example_runs_and_prints_what_it_says(
    module: str, name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    home = importlib.import_module(module)
    documented = getattr(home, name) if name else home
    names: Names = {"Crash": Crash, "dist": dist, "simdist": simdist, "sys": sys, "train": train}
    given = GIVEN[module](request) if module in GIVEN else {}
    example = doctest.DocTestParser().get_doctest(
        str(documented.__doc__), {**names, **vars(home), **given}, f"{module}.{name}", home.__file__, None
    )
    written: list[str] = []

    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=written.append)

    assert results.attempted > 0
    assert results.failed == 0, "".join(written)


def test_examples_are_where_they_are_looked_for() -> None:
    texts = sum(path.read_text().count("\n        >>> ") > 0 for path in (ROOT / "simdist").rglob("*.py"))

    assert texts == len({module for module, _ in _documented()})
