"""The public surface does not drift, and imports point one way."""

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
    "native": {"_native", "errors", "torch"},
    "records": {"values"},
    "result": {"errors", "frames", "values"},
    "kernel": {"inside", "errors", "frames", "records", "networkx", "numpy", "simpy"},
    "cluster": {"errors", "values", "kernel", "networkx"},
    "storage": {"_lazy"},
    "_chance": set(),
    "process": {"inside", "_chance", "errors", "frames", "records", "kernel", "cluster", "numpy"},
    "files": {"inside", "errors", "records", "kernel", "cluster", "storage", "process", "torch"},
    "_content": {"inside", "torch"},
    "device": {"_lazy", "inside", "native", "numpy", "errors", "frames", "kernel", "cluster", "process", "torch"},
    "c10d": {
        "_lazy",
        "inside",
        "_content",
        "errors",
        "frames",
        "records",
        "kernel",
        "cluster",
        "process",
        "device",
        "native",
        "numpy",
        "torch",
    },
    "faults": {
        "_lazy",
        "errors",
        "values",
        "records",
        "result",
        "kernel",
        "cluster",
        "process",
        "files",
        "c10d",
        "torch",
    },
    "trace": {"_lazy", "errors", "values", "records", "result", "c10d", "matplotlib", "networkx"},
    "judges": {
        "inside",
        "errors",
        "values",
        "frames",
        "result",
        "kernel",
        "process",
        "device",
        "c10d",
        "numpy",
        "torch",
    },
    "_settings": {"errors", "values", "kernel", "cluster", "storage", "faults", "judges"},
    "_replay": {"values", "cluster", "faults"},
    "_observer": {"result", "kernel"},
    "_harmless_writes": set(),
    "_shared_insides": {"inside"},
    "_shared_writes": {"_harmless_writes", "_shared_insides", "kernel", "_observer", "torch"},
    "_tell": {"records", "process", "torch"},
    "_assertions": {"frames", "process", "result"},
    "_layouts": {"torch"},
    "_no_devices": {"values"},
    "docs": set(),
    "_torchrun": {"process"},
    "_agent": {"errors", "records", "kernel", "cluster", "process"},
    "_world": {
        "inside",
        "values",
        "errors",
        "frames",
        "records",
        "result",
        "kernel",
        "cluster",
        "process",
        "storage",
        "files",
        "device",
        "c10d",
        "faults",
        "trace",
        "judges",
        "_agent",
        "_assertions",
        "_no_devices",
        "_observer",
        "_settings",
        "_torchrun",
        "torch",
    },
    "_spawn": {"result", "_world", "torch"},
    "api": {
        "errors",
        "records",
        "result",
        "cluster",
        "storage",
        "process",
        "faults",
        "judges",
        "_replay",
        "_settings",
        "_world",
        "_spawn",
    },
    "_agree": {"_layouts", "api", "errors", "result", "torch"},
    "_resume": {"api", "errors", "result", "judges"},
    "determinism": {
        "_content",
        "errors",
        "frames",
        "records",
        "_settings",
        "values",
        "result",
        "kernel",
        "process",
        "c10d",
        "trace",
        "_observer",
        "api",
        "numpy",
        "torch",
    },
    "scenario": {
        "_content",
        "errors",
        "values",
        "_settings",
        "result",
        "cluster",
        "faults",
        "trace",
        "api",
        "determinism",
        "pydantic",
        "torch",
        "judges",
    },
    "launch": {
        "inside",
        "errors",
        "values",
        "_settings",
        "result",
        "cluster",
        "process",
        "faults",
        "_world",
        "scenario",
        "torch",
        "judges",
    },
    "programs": {
        "_replay",
        "_settings",
        "api",
        "errors",
        "faults",
        "process",
        "result",
        "scenario",
        "storage",
        "trace",
        "values",
        "numpy",
        "torch",
    },
    "sweeps": {
        "errors",
        "frames",
        "values",
        "result",
        "kernel",
        "storage",
        "process",
        "files",
        "c10d",
        "faults",
        "_observer",
        "programs",
        "scenario",
        "trace",
    },
    "searches": {
        "kernel",
        "_content",
        "_settings",
        "errors",
        "values",
        "result",
        "faults",
        "judges",
        "programs",
        "scenario",
        "sweeps",
        "trace",
    },
    "strategies": {"cluster", "errors", "faults", "result", "searches", "values"},
    "hardware": {
        "_lazy",
        "inside",
        "_chance",
        "_content",
        "errors",
        "frames",
        "values",
        "records",
        "result",
        "c10d",
        "faults",
        "trace",
        "scenario",
        "numpy",
        "torch",
    },
    "testing": {
        "_lazy",
        "inside",
        "errors",
        "frames",
        "values",
        "_settings",
        "result",
        "kernel",
        "cluster",
        "process",
        "programs",
        "c10d",
        "faults",
        "_observer",
        "_world",
        "api",
        "determinism",
        "scenario",
        "searches",
        "sweeps",
        "trace",
        "numpy",
        "pytest",
        "torch",
        "judges",
    },
    "cli": {
        "inside",
        "native",
        "errors",
        "values",
        "result",
        "scenario",
        "launch",
        "programs",
        "searches",
        "sweeps",
        "kernel",
        "process",
        "trace",
        "hardware",
        "determinism",
        "_shared_writes",
        "_observer",
        "device",
        "docs",
        "click",
        "rich",
        "torch",
        "judges",
    },
    "__init__": {
        *(
            "errors",
            "result",
            "cluster",
            "storage",
            "faults",
            "api",
            "determinism",
            "searches",
            "sweeps",
            "_shared_writes",
            "_tell",
            "_agree",
            "_resume",
            "_assertions",
            "_layouts",
        ),
    },
    "__main__": {"cli"},
}
LIBRARIES = {"click", "matplotlib", "networkx", "numpy", "pydantic", "pytest", "rich", "simpy", "sklearn", "torch"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    return ".".join((path if path.is_dir() else path.with_suffix("")).relative_to(ROOT.parent).parts)


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, whether at once or later; of simdist two levels, of others one."""
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
    homes = getattr(module, "_HOMES", None)  # of names that are loaded on first use
    if homes is not None:
        typed = next(node for node in tree.body if isinstance(node, ast.If))
        listed = [alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        imported = imported - {"TYPE_CHECKING"} | set(listed)
        assert set(homes) >= set(listed)

    assert set(module.__all__) == imported
    assert list(module.__all__) == sorted(module.__all__, key=by_kind)
    assert source(package / "__init__.py").definitions == set()


def by_kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: the order that ruff keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_file_is_a_part_of_a_package_with_a_docstring() -> None:
    assert [name_of(path) for path in FILES if not source(path).documented] == []


def test_everything_that_users_import_is_there() -> None:
    assert dir(simdist) == sorted(simdist.__all__)
    assert [name for name in simdist.__all__ if getattr(simdist, name, None) is None] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'simdist' has no attribute 'runn'$"):
        simdist.runn  # noqa: B018


def test_the_kinds_of_faults_are_told_by_their_package() -> None:
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
