"""A module whose name begins with an underscore is private to its package, which exports the names for others."""

from __future__ import annotations

from pathlib import Path

import simdist
from tests.sources import source

ROOT = Path(simdist.__file__).parents[1]


def _package(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


def _owner_of_private(name: str) -> str | None:
    """Return the package that owns this private module, or a private part of its path; None if no part is private."""
    parts = name.split(".")
    private = [index for index, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
    return ".".join(parts[: private[0]]) if private and parts[0] == "simdist" else None


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


# Packages whose rooms share private names; `test_wings.py` in their tests says which room may import which.
_HOUSES = ("simdist.c10d", "simdist.device", "simdist.faults", "simdist.hardware", "simdist.process")


def trespasses() -> set[str]:
    """Return each import of another package's private module, or of a private name from it."""
    found = set()
    for path in sorted((ROOT / "simdist").rglob("*.py")):
        package = _package(path)
        for name in sorted({name for each in source(path).imports for name in (each.module, each.full)}):
            owner = _owner_of_private(name)
            if owner is None or f"{package}.".startswith(f"{owner}."):
                continue
            if any(owner.startswith(house) and package.startswith(house) for house in _HOUSES):
                continue
            module = name if _is_module(name) else name.rpartition(".")[0]
            found.add(f"{path.relative_to(ROOT).as_posix()}: {module}")
    return found


def test_no_package_imports_a_private_module_of_another() -> None:
    assert trespasses() == set()
