"""Tables of torch's modules and classes that each rank has for itself: caches of plans, and aliases of group tables.

Torch keeps these in dictionaries of a module or a class, which any code may use. While a world runs, each is replaced
by a dictionary with separate contents for each process: on a rank the rank's, on any other thread torch's own. This
costs nothing at a hand-over, and works for all writers: torch, or a class of the program that uses the name.

In doubt: code that got the dictionary before the world began has the host's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed.distributed_c10d as c10d

from simdist.inside.torch import group_world
from simdist.process import Patches, SimProcess, current_process, when_imported

__all__ = ["OwnTable", "RankTable", "inherit", "install"]

_Table = dict[Any, Any]
_GROUPS = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag")
_METHODS = (
    *("__contains__", "__getitem__", "__setitem__", "__delitem__", "__iter__", "__reversed__", "__len__", "__repr__"),
    *("__eq__", "__ne__", "__or__", "__ror__", "__ior__"),
    *("clear", "copy", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"),
)


class RankTable(_Table):
    """A dictionary with separate contents for each process; `of_host` holds those of all other threads.

    Example:
        >>> groups = RankTable({}, lambda process: c10d._world.pg_map)
    """

    __slots__ = ("find", "of_host")
    __hash__ = None

    def __init__(self, of_host: _Table, find: Callable[[SimProcess], _Table]) -> None:
        super().__init__()
        self.of_host = of_host
        self.find = find

    def now(self) -> _Table:
        """Return the dictionary of the calling thread's process."""
        process = current_process()
        return self.of_host if process is None else self.find(process)

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[_Table]]:
        return dict, (dict(self.now()),)


def _forwarding(name: str) -> Callable[..., object]:
    @functools.wraps(getattr(dict, name))
    def method(self: RankTable, *args: Any, **kwargs: Any) -> object:
        if name == "__ior__":
            self.now().update(*args)
            return self
        return getattr(self.now(), name)(*args, **kwargs)

    return method


for _name in _METHODS:
    setattr(RankTable, _name, _forwarding(_name))


class OwnTable(RankTable):
    """A `RankTable` whose dictionary begins empty in each process, as after an import."""

    __slots__ = ("of",)

    def __init__(self, of_host: _Table) -> None:
        self.of: dict[SimProcess, _Table] = {}
        super().__init__(of_host, lambda process: self.of.setdefault(process, {}))


_made: dict[tuple[object, str], RankTable] = {}


def install(patches: Patches) -> None:
    """Let the module's aliases of group tables lead to the rank's own tables."""
    for name in _GROUPS:
        table = _table(c10d, f"_{name}", functools.partial(RankTable, find=_of_world(name)))
        if table is not None:
            patches.replace(c10d, f"_{name}", table)
    patches.on_undo(_forget)


def _of_world(name: str) -> Callable[[SimProcess], _Table]:
    def find(process: SimProcess) -> _Table:
        table: _Table = getattr(group_world(), name)
        return table

    return find


def _table(owner: object, name: str, make: Callable[[_Table], RankTable]) -> RankTable | None:
    """Return the replacement of a dictionary; None if there is no dictionary, or it is replaced already."""
    there = vars(owner).get(name)
    if type(there) is not dict:
        return None
    made = _made.get((owner, name))
    if made is None or made.of_host is not there:
        made = _made[owner, name] = make(there)
    return made


def inherit(parent: SimProcess, child: SimProcess) -> None:
    """Give a forked child a copy of its parent's current tables."""
    for table in _made.values():
        if isinstance(table, OwnTable) and parent in table.of:
            table.of[child] = dict(table.of[parent])


def _forget() -> None:
    for table in _made.values():
        if isinstance(table, OwnTable):
            table.of.clear()


def _separate(module: str, owners: Mapping[str, Callable[[str], bool]]) -> None:
    """Separate the dictionaries of a module's classes ("" for the module itself) whose names pass the test."""

    def adapt(patches: Patches) -> None:
        namespace = vars(sys.modules[module])
        for kind, is_meant in owners.items():
            owner = namespace.get(kind) if kind else sys.modules[module]
            for name in [] if owner is None else [name for name in vars(owner) if is_meant(name)]:
                table = _table(owner, name, OwnTable)
                if table is not None:
                    patches.replace(owner, name, table)

    when_imported(module, adapt)


def _is_cache(name: str) -> bool:
    return name.startswith("_cached_")


# The plans that a planner has cached for the last saved state, by the name of its class.
_separate("torch.distributed.checkpoint.planner", {"SavePlanner": _is_cache, "LoadPlanner": _is_cache})
