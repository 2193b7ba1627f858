"""The groups that a rank knows: `torch.distributed.distributed_c10d._world`, one for each rank.

Torch keeps them in one object of the process. While a world runs, this object is replaced by one whose attributes
depend on the thread: on a rank's thread they are the rank's, on any other those of torch's own object. So a thread of
the host program never sees a rank's groups, and a rank never sees the host's. All threads of a rank see the same
attributes: a change by one is made on each.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from simdist.c10d.surface._identity import GroupBackend
from simdist.inside.python import Redirection, code_with
from simdist.inside.torch import c10d_module, counts_ranks, newer_group_tables
from simdist.process import Patches, current_process

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from simdist.inside.torch import Store

__all__ = ["RankWorld", "WorldPerThread", "install"]


class _GroupMap(dict["ProcessGroup", "tuple[str, Store]"]):
    """The groups of a rank; a removed group is left, as a real group is destroyed with its last reference."""

    def __delitem__(self, group: ProcessGroup) -> None:
        super().__delitem__(group)
        _leave(group)

    def clear(self) -> None:
        """Remove and leave all groups."""
        groups = list(self)
        super().clear()
        for group in groups:
            _leave(group)


def _leave(group: ProcessGroup) -> None:
    if isinstance(group, GroupBackend):
        group.leave()


class _RanksOfGroups(dict["ProcessGroup", dict[int, int]]):
    """The ranks of each group. Torch leaves out those of the default group on a rank (see `install`); a look-up fills
    them in. A large world would spend most of its start and memory on them."""


def _complete(name: str) -> Callable[..., object]:
    method = getattr(dict, name)

    @functools.wraps(method)
    def look(self: _RanksOfGroups, *args: Any) -> object:
        for group, ranks in dict.items(self):
            if not ranks:
                ranks.update((rank, rank) for rank in range(group.size()))
        return method(self, *args)

    return look


for _name in (
    *("__getitem__", "get", "items", "values", "pop", "popitem", "setdefault", "copy"),
    *("__eq__", "__ne__", "__or__", "__ror__", "__repr__"),
):
    setattr(_RanksOfGroups, _name, _complete(_name))


def _range(*bounds: int) -> range:
    # A program may have put another object in place of `_world`, as torch's threaded group for tests does.
    left_out = sys._getframe(1).f_code is counts_ranks() and type(c10d_module._world) is WorldPerThread
    return range(0) if left_out and current_process() is not None else range(*bounds)


def _get_default_group() -> object:
    # Like torch's own, which looks the group up twice, four functions deep. Global names are those of torch's module.
    group = _world.default_pg  # type: ignore[name-defined]  # noqa: F821
    return torchs_own() if group is None else group  # type: ignore[name-defined]  # noqa: F821


def _code_of_ours(function: FunctionType) -> CodeType:
    # Pretend to be in torch's file: compilers trace functions of this file.
    place = function.__code__
    ours: Any = _get_default_group
    code = code_with(ours, {"torchs_own": FunctionType(place, function.__globals__)})
    return code.replace(co_filename=place.co_filename, co_firstlineno=place.co_firstlineno)


@functools.cache
def _default_group() -> list[Redirection]:
    """Return the redirection of torch's function; none if the function does more than in the known versions."""
    function: Any = c10d_module._get_default_group
    if not isinstance(function, FunctionType) or not set(function.__code__.co_names) <= _ASKS:
        return []
    return [Redirection.to_code(function, _code_of_ours)]


_ASKS = {"is_initialized", "ValueError", "TYPE_CHECKING", "not_none", "GroupMember", "WORLD"}


def install(patches: Patches) -> None:
    """Let torch find the default group faster, and leave the table of its ranks empty on a rank."""
    patches.switch_on(_default_group())
    if counts_ranks() is not None:
        patches.replace(c10d_module, "range", _range)


class RankWorld:
    """A rank's initial attributes of torch's `_World`; from then on the maps are the rank's own."""

    def __init__(self) -> None:
        self.default_pg: ProcessGroup | None = None
        self.pg_map: dict[ProcessGroup, tuple[str, Store]] = _GroupMap()
        self.pg_names: dict[ProcessGroup, str] = {}
        self.pg_group_ranks: dict[ProcessGroup, dict[int, int]] = _RanksOfGroups()
        self.pg_backend_config: dict[ProcessGroup, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[ProcessGroup]] = {}
        self.pg_to_tag: dict[ProcessGroup, str] = {}
        self.pg_coalesce_state: dict[ProcessGroup, list[object]] = {}
        self.comms: list[object] = []
        for name in newer_group_tables(vars(self)):
            setattr(self, name, {})
        self.seen_by: list[dict[str, Any]] = []  # the attributes on each of the rank's threads

    @property
    def global_rank(self) -> int | None:
        """The process's rank for C++ (`_set_global_rank`): its rank in the default group, if there is one."""
        group: ProcessGroup | None = (self.seen_by[0] if self.seen_by else vars(self)).get("default_pg")
        return None if group is None or group is c10d_module.GroupMember.NON_GROUP_MEMBER else group.rank()

    def forget(self) -> None:
        """Break reference cycles at the end: the threads' attributes include the list of all threads' attributes."""
        self.seen_by.clear()

    def begin_as(self, parent: RankWorld) -> None:
        """Copy the parent's current state, in a forked child."""
        for name, value in (parent.seen_by[0] if parent.seen_by else vars(parent)).items():
            if name != "seen_by":
                setattr(self, name, value.copy() if isinstance(value, dict | list) else value)


class _OfHost:
    """An attribute that a host thread reads from torch's own object; a rank's thread has its own attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: WorldPerThread, owner: type) -> object:
        return getattr(vars(instance)[_HOST], self._name)


_HOST = " host"  # cannot be the name of an attribute


class WorldPerThread(threading.local):
    """Stands in for torch's `_world`. Hot: reading an attribute on a rank's thread runs no Python code.

    Example:
        >>> c10d._world = WorldPerThread(c10d._world)
    """

    def __init__(self, host: object) -> None:  # called on each thread that uses the object, with the same argument
        process = current_process()
        if process is None:
            vars(self)[_HOST] = host
            return
        world: RankWorld = process.torch_state.world
        vars(self).update(world.seen_by[0] if world.seen_by else vars(world))
        world.seen_by.append(vars(self))

    def __setattr__(self, name: str, value: object) -> None:
        own = vars(self)
        if _HOST in own:
            setattr(own[_HOST], name, value)
        else:
            for attributes in own["seen_by"]:
                attributes[name] = value

    @property
    def pg_config_info(self) -> list[dict[str, object]]:
        """One entry for each group, as in torch."""
        own = vars(self)
        if _HOST in own:
            found: list[dict[str, object]] = own[_HOST].pg_config_info
            return found
        size = c10d_module._get_group_size(None)
        return [
            {
                "pg_name": own["pg_names"][group],
                "pg_desc": group.group_desc,
                "backend_config": own["pg_backend_config"][group],
                "ranks": list(own["pg_group_ranks"][group]) if group.size() != size else [],
                "group_size": group.size(),
                "group_count": own["group_count"],
            }
            for group in own["pg_map"]
        ]


for _name in vars(RankWorld()):
    setattr(WorldPerThread, _name, _OfHost(_name))
