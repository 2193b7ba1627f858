"""Names of a package that are imported at their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["lazily"]


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__`; `homes` has by name the module with the object, as "calls._work"."""

    def find(name: str) -> object:
        import importlib  # which costs something, too

        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home}"), name)

    return find
