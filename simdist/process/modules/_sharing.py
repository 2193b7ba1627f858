"""Which modules each rank imports for itself, and which all ranks share.

Ranks share, in this order: what the user shares; Python's own library, torch, simdist and the test runner; and
everything that is installed, except libraries that keep the state of a rank in their modules (`PER_RANK`, and those
that keep the rank's number or groups) and those that require one of them: they bind its names once, when they are
imported. Each rank imports for itself what the user isolates, those libraries, and all modules of the user,
which are those outside the folders for installed packages.

A decision holds for a whole top-level name: an imported submodule becomes an attribute of its parent, so the two have
to be of one kind. Modules that no rank could import again stay shared as well: those that were made and not loaded, and
compiled ones, for Python refuses to run most of them twice.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from types import ModuleType
from typing import TYPE_CHECKING

from simdist.frames import is_user_file
from simdist.process.modules._rank_readers import installed, keeps_rank, tops_of

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["NEVER_ISOLATED", "PER_RANK", "Sharing"]

# Distributions that keep state of one rank in module globals, class attributes or caches.
PER_RANK = (
    "accelerate",
    "deepspeed",
    "fabric",
    "fairscale",
    "hydra-core",
    "lightning",
    "lightning-fabric",
    "lightning-utilities",
    "loguru",
    "megatron-core",
    "mmengine",
    "monai",  # has ignite as an extra only, and binds it when it is imported
    "omegaconf",
    "prometheus-client",
    "pytorch-ignite",
    "pytorch-lightning",
    "transformers",
)
# Likewise, but what requires them may be shared: it is much, and keeps nothing of a rank.
_ALONE = ("absl-py",)
NEVER_ISOLATED = frozenset(
    (
        "builtins",
        "coverage",
        "hypothesis",
        "numpy",
        "pip",
        "pluggy",
        "pytest",
        "_pytest",
        "setuptools",
        "simdist",
        "torch",
        "xdist",
    )
)
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class Sharing:
    """The decision for every module, by its top-level name."""

    def __init__(self, isolate: Iterable[str] = (), share: Iterable[str] = ()) -> None:
        # Decided here, because the program has two names on a rank, and none yet when it is imported there.
        program = _is_file_of_user(getattr(sys.modules.get("__main__"), "__file__", None))
        self._isolated: dict[str, bool] = dict.fromkeys(("__main__", "__mp_main__"), program)
        self._isolated |= dict.fromkeys(isolate, True) | dict.fromkeys(share, False)

    def isolates(self, name: str) -> bool:
        """True if each rank imports the module for itself."""
        top = _top_of(name)
        found = self._isolated.get(top)
        if found is None:
            self._isolated[top] = False  # for our own finder, which `_decide` asks too
            found = self._isolated[top] = self._decide(top)
        return found

    def shared_among(self, names: Sequence[str]) -> set[str]:
        """Those that all ranks share; every world asks about thousands of names."""
        names = tuple(names)
        shared = frozenset(top for top in _tops_of(names)[1] if not self.isolates(top))
        return set(_names_below(names, shared))

    def _decide(self, top: str) -> bool:
        if top in sys.stdlib_module_names or top in NEVER_ISOLATED or top.startswith("_sysconfigdata"):
            return False
        if top in _tops_per_rank() or keeps_rank(top):
            return True
        spec = _spec_of(top)
        if spec is None or (spec.loader is None and spec.submodule_search_locations is None):
            return False
        if spec.origin is None or spec.origin == "namespace":
            places = list(spec.submodule_search_locations or ())
            return bool(places) and all(is_user_file(f"{place}/x") for place in places)
        return _is_file_of_user(spec.origin)


@functools.cache
def _top_of(name: str) -> str:
    return name.partition(".")[0]


# Nearly every world has the same names as the world before.
@functools.lru_cache(maxsize=1)
def _tops_of(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The top-level name of each, and every one of those once."""
    tops = list(map(_top_of, names))
    return tops, list(dict.fromkeys(tops))


@functools.lru_cache(maxsize=1)
def _names_below(names: tuple[str, ...], tops: frozenset[str]) -> frozenset[str]:
    return frozenset(compress(names, map(tops.__contains__, _tops_of(names)[0])))


def _is_file_of_user(file: object) -> bool:
    return isinstance(file, str) and not file.endswith(_EXTENSIONS) and is_user_file(file)


def _spec_of(top: str) -> ModuleSpec | None:
    module = sys.modules.get(top)
    if module is not None:
        return getattr(module, "__spec__", None) if isinstance(module, ModuleType) else None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(top, None)
        if spec is not None:
            return spec
    return None


@functools.cache
def _tops_per_rank() -> Collection[str]:
    """The top-level names of `PER_RANK` and of all that requires one of them."""
    about = installed()
    chosen = {name for name in PER_RANK if name in about}
    while more := {name for name, (_, needs) in about.items() if name not in chosen and needs & chosen}:
        chosen |= more
    chosen |= about.keys() & set(_ALONE)
    return frozenset(top for name in sorted(chosen) for top in tops_of(about[name][0])) - NEVER_ISOLATED
