"""The public names do not change unnoticed, and imports point one way."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import simdist
from tests.sources import source

ROOT = Path(simdist.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = [path for path in FILES if path.name not in ("__init__.py", "__main__.py")]
PACKAGES = sorted(path.parent for path in ROOT.glob("*/__init__.py"))

# What each part may import, at any time: other parts of simdist, and these libraries. Lowest first.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "values": set(),
    "frames": set(),
    "_lazy": set(),
    "inside": {"errors", "numpy", "torch"},
    "native": {"_native", "errors", "inside", "torch"},
    "records": {"values"},
    "kernel": {"errors", "frames", "inside", "networkx", "numpy", "records", "simpy"},
    "cluster": {"errors", "kernel", "networkx", "values"},
    "storage": {"_lazy"},
    "process": {"cluster", "errors", "frames", "inside", "kernel", "numpy", "records", "values"},
    "files": {"cluster", "errors", "inside", "kernel", "process", "records", "storage", "torch"},
    "_content": {"inside", "torch"},
    "device": {"_lazy", "cluster", "errors", "frames", "inside", "kernel", "native", "numpy", "process", "torch"},
    "c10d": {
        "_content",
        "_lazy",
        "cluster",
        "device",
        "errors",
        "frames",
        "inside",
        "kernel",
        "native",
        "numpy",
        "process",
        "records",
        "torch",
    },
    "result": {"c10d", "errors", "frames", "process", "values"},
    "faults": {
        "_lazy",
        "c10d",
        "cluster",
        "device",
        "errors",
        "files",
        "kernel",
        "process",
        "records",
        "result",
        "torch",
        "values",
    },
    "trace": {"_lazy", "c10d", "errors", "matplotlib", "networkx", "records", "result", "values"},
    "judges": {
        "c10d",
        "device",
        "errors",
        "frames",
        "inside",
        "kernel",
        "native",
        "numpy",
        "process",
        "result",
        "torch",
        "trace",
        "values",
    },
    "settings": {"_lazy", "cluster", "errors", "faults", "judges", "kernel", "storage", "values"},
    "docs": set(),
    "world": {
        "_lazy",
        "c10d",
        "cluster",
        "device",
        "errors",
        "faults",
        "files",
        "frames",
        "inside",
        "judges",
        "kernel",
        "native",
        "numpy",
        "process",
        "records",
        "result",
        "settings",
        "storage",
        "torch",
        "trace",
        "values",
    },
    "shared": {"inside", "kernel", "process", "torch", "world"},
    "api": {"cluster", "errors", "faults", "judges", "process", "records", "result", "settings", "storage", "world"},
    "comparisons": {"api", "errors", "judges", "result", "settings", "torch", "values"},
    "determinism": {
        "_content",
        "api",
        "c10d",
        "errors",
        "frames",
        "kernel",
        "numpy",
        "process",
        "records",
        "result",
        "settings",
        "torch",
        "trace",
        "values",
        "world",
    },
    "scenario": {
        "_content",
        "api",
        "cluster",
        "determinism",
        "errors",
        "faults",
        "judges",
        "pydantic",
        "result",
        "settings",
        "torch",
        "trace",
        "values",
    },
    "launch": {
        "cluster",
        "errors",
        "faults",
        "inside",
        "judges",
        "process",
        "result",
        "scenario",
        "settings",
        "torch",
        "values",
        "world",
    },
    "programs": {
        "api",
        "errors",
        "faults",
        "frames",
        "numpy",
        "process",
        "result",
        "scenario",
        "settings",
        "storage",
        "torch",
        "trace",
        "values",
    },
    "sweeps": {
        "c10d",
        "errors",
        "faults",
        "files",
        "frames",
        "kernel",
        "process",
        "programs",
        "result",
        "scenario",
        "settings",
        "storage",
        "trace",
        "values",
        "world",
    },
    "searches": {
        "_content",
        "errors",
        "faults",
        "frames",
        "judges",
        "kernel",
        "process",
        "programs",
        "records",
        "result",
        "scenario",
        "settings",
        "sweeps",
        "trace",
        "values",
        "world",
    },
    "strategies": {"cluster", "errors", "faults", "result", "searches", "values"},
    "hardware": {
        "_content",
        "_lazy",
        "c10d",
        "errors",
        "faults",
        "frames",
        "inside",
        "numpy",
        "records",
        "result",
        "scenario",
        "torch",
        "trace",
        "values",
    },
    "testing": {
        "_lazy",
        "api",
        "c10d",
        "cluster",
        "determinism",
        "errors",
        "faults",
        "frames",
        "inside",
        "judges",
        "kernel",
        "numpy",
        "process",
        "programs",
        "pytest",
        "result",
        "scenario",
        "searches",
        "settings",
        "sweeps",
        "torch",
        "trace",
        "values",
        "world",
    },
    "cli": {
        "click",
        "determinism",
        "device",
        "docs",
        "errors",
        "hardware",
        "inside",
        "judges",
        "kernel",
        "launch",
        "native",
        "process",
        "programs",
        "result",
        "rich",
        "scenario",
        "searches",
        "shared",
        "storage",
        "sweeps",
        "torch",
        "trace",
        "values",
        "world",
    },
    "__init__": {
        "api",
        "cluster",
        "comparisons",
        "determinism",
        "errors",
        "faults",
        "result",
        "searches",
        "shared",
        "storage",
        "sweeps",
        "world",
    },
    "__main__": {"cli", "inside"},
}
LIBRARIES = {"click", "matplotlib", "networkx", "numpy", "pydantic", "pytest", "rich", "simpy", "sklearn", "torch"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    return ".".join((path if path.is_dir() else path.with_suffix("")).relative_to(ROOT.parent).parts)


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, at once or later; two levels of simdist's names, one of others."""
    for each in source(path).imports:
        first, *rest = (each.full if each.module == "simdist" else each.module).split(".")
        yield ".".join(["simdist", *rest[:1]]) if first == "simdist" else first


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def test_modules_list_the_functions_and_classes_that_they_define() -> None:
    wrong = {}
    for path in MODULES:
        module = importlib.import_module(dotted(path))
        listed = list(module.__all__)
        missing = source(path).definitions - set(listed)
        unknown = [name for name in listed if not hasattr(module, name)]
        twice = [name for name in set(listed) if listed.count(name) > 1]
        if missing or unknown or twice:
            wrong[name_of(path)] = sorted(missing), unknown, twice

    assert wrong == {}


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_lists_what_it_re_exports_and_defines_nothing_itself(package: Path) -> None:
    tree = ast.parse((package / "__init__.py").read_text())
    # A package that loads its names when they are first used imports them for type checkers only.
    lazily = [node for branch in tree.body if isinstance(branch, ast.If) for node in branch.body]
    imported = {
        alias.asname or alias.name
        for node in [*tree.body, *lazily]
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing", "simdist._lazy")
        for alias in node.names
    }
    module = importlib.import_module(dotted(package))
    homes = getattr(module, "_HOMES", None)  # the homes of names that are loaded on first use
    if homes is not None:
        typed = next(node for node in tree.body if isinstance(node, ast.If))
        listed = [alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        imported = imported - {"TYPE_CHECKING"} | set(listed)
        assert set(homes) >= set(listed)

    assert set(module.__all__) == imported
    assert list(module.__all__) == sorted(module.__all__, key=by_kind)
    assert source(package / "__init__.py").definitions == set()


def by_kind(name: str) -> tuple[int, str]:
    """Sort constants first, then classes, then functions: ruff's order."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_file_is_a_part_of_a_package_with_a_docstring() -> None:
    assert [name_of(path) for path in FILES if not source(path).documented] == []


def test_everything_that_users_import_is_there() -> None:
    assert dir(simdist) == sorted(simdist.__all__)
    assert [name for name in simdist.__all__ if getattr(simdist, name, None) is None] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'simdist' has no attribute 'runn'$"):
        simdist.runn  # noqa: B018


def test_the_kinds_of_faults_are_reported_by_their_package() -> None:
    faults = importlib.import_module("simdist.faults")

    assert simdist.faults is faults
    assert {"Crash", "Hang", "Hold", "LinkDelay", "Partition", "SlowRank"} <= set(faults.__all__)


def test_imports_point_towards_the_kernel() -> None:
    exported = {f"simdist.{name}" for name in simdist.__all__ if name not in LAYERS} | {"simdist"}
    wrong = {}
    for path in FILES:
        part = part_of(path)
        allowed = {f"simdist.{name}" for name in (*LAYERS[part], part)} | LAYERS[part] | exported
        beyond = {name for name in imports_of(path) if name.split(".")[0] in LIBRARIES | {"simdist"}} - allowed
        if beyond or source(path).relative:
            wrong[name_of(path)] = sorted(beyond) or "a relative import"

    assert wrong == {}


def test_no_layer_is_above_one_that_imports_it() -> None:
    order = list(LAYERS)
    for index, part in enumerate(order):
        below = set(order[:index])

        assert {name for name in LAYERS[part] if name in LAYERS} <= below, part


def test_the_layers_are_all_there_is() -> None:
    assert set(LAYERS) == {part_of(path) for path in FILES}
