"""Groups made from other groups: `split_group` and `merge_remote_group` of torch's C++ ProcessGroup (2.13).

As in torch, each backend of a group makes a part of the new group, in the order of their devices; a group may have
several backends or one. The methods of backends are `split_part` and `merge_part`.

Circle of imports: a group makes other groups by this module, which needs the class of groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.surface._several_backends import SeveralBackends
from simdist.c10d.surface._store import SimPrefixStore, SimStore
from simdist.errors import UnsupportedError
from simdist.inside.torch import group_world

if TYPE_CHECKING:
    from simdist.c10d.surface._identity import DeviceLike, GroupBackend

__all__ = ["merge_remote_group", "parts_of", "split_group"]

_BY_CHANCE = (
    "{} of a group whose devices all have Gloo is not simulated: torch connects it once for each device under the same "
    "keys of the store, so that by chance it hangs, times out, or works. Make the group for the CPU only, with "
    "backend='cpu:gloo'"
)


def parts_of(group: GroupBackend) -> dict[str, GroupBackend]:
    """Return the backends of a group by their type of device, without the wrappers that check calls for debugging."""
    parts: Mapping[str, Any] = getattr(group, "parts", None) or {_own_device(group): group}
    return {device: getattr(part, "wrapped_pg", part) for device, part in parts.items()}


def _own_device(group: Any) -> str:
    group = getattr(group, "wrapped_pg", group)
    return "cuda" if group.name() == "nccl" else "cpu"


def _require_one_meeting(group: GroupBackend, call: str) -> None:
    """Refuse a group that torch would connect twice under the same keys."""
    config = group_world().pg_backend_config.get(group)
    if config is None:  # the program has made the group itself
        names = [part.name() for part in parts_of(group).values()]
    else:
        names = [each.partition(":")[2] for each in str(config).split(",")]
    if group.size() > 1 and names.count("gloo") > 1:
        raise UnsupportedError(_BY_CHANCE.format(call))


def split_group(
    group: GroupBackend,
    ranks: Sequence[int],
    timeout: timedelta | None,
    options: Any,
    name: str | None,
    description: str | None,
    device_types: Sequence[DeviceLike] | None,
) -> GroupBackend | None:
    """Return a group of some ranks of a group. All ranks of the old group call this; those left out get None.

    Raises:
        RuntimeError: the ranks or devices are invalid; with torch's text.
        UnsupportedError: real ranks would meet only by chance.
    """
    if not len(ranks):
        raise RuntimeError("Split ranks cannot be empty. Please provide a non-empty list of ranks to split the group.")
    if len(ranks) > group.size():
        raise RuntimeError("the split group's size should be no larger than the world_size set by init_process_group")
    if len(set(ranks)) != len(ranks):
        raise RuntimeError(
            "Split ranks should not have duplicates. Please provide a list of unique ranks to split the group."
        )
    parts = _wanted(group, device_types)
    _require_one_meeting(group, "split_group")
    ordered = sorted(int(rank) for rank in ranks)
    if name is None:
        name = f"{group.group_name}:split:[{', '.join(map(str, ordered))}]"
    if description is None:
        description = f"{group.group_desc}:split:{group.count_children()}"
    store = SimPrefixStore(f"{name}/", group.get_group_store())
    made = {}
    for device, part in parts.items():
        child = part.split_part(store, ordered, _renamed(part, options, name, timeout), name)
        if child is not None:
            made[device] = child
    return _one_of(group, made, name, description)


def _renamed(part: GroupBackend, options: Any, name: str, timeout: timedelta | None) -> Any:
    """Return a part's options: the given ones, or the old backend's own, which then also change for that backend."""
    options = part.options if options is None else options
    options.group_name = name
    if timeout is not None:
        options._timeout = timeout
    return options


def _wanted(group: GroupBackend, device_types: Sequence[DeviceLike] | None) -> dict[str, GroupBackend]:
    parts = parts_of(group)
    if not device_types:
        return parts
    kinds = [torch.device(each).type for each in device_types]
    for kind in kinds:
        if kind not in [each.type for each in group._device_types]:
            raise RuntimeError(
                f"Requested device type for splitGroup is not present in the parent process group: {kind}"
            )
    main = _own_device(getattr(group, "main_part", group))
    if main not in kinds:
        raise RuntimeError(
            "splitGroup deviceTypes filter must include the parent process group's default backend device type."
        )
    return {device: part for device, part in parts.items() if device in kinds}


def merge_remote_group(
    group: GroupBackend, store: SimStore, size: int, timeout: timedelta, name: str | None, description: str | None
) -> GroupBackend | None:
    """Return one group of the ranks of several groups; all of them call this, with a common store.

    They are numbered in the order of their arrival at the store.

    Raises:
        RuntimeError: more than `size` ranks arrive.
        UnsupportedError: real ranks would meet only by chance.
    """
    if size > 1:
        _require_one_meeting(group, "merge_remote_group")
    rank = int(store.add("mergeGroupRank", 1)) - 1
    name = f"{group.group_name}:merge" if name is None else name
    description = f"{group.group_desc}:merge" if description is None else description
    made = {
        device: part.merge_part(store, rank, size, _renamed(part, None, name, timeout), name)
        for device, part in parts_of(group).items()
    }
    return _one_of(group, made, name, description)


def _one_of(group: Any, made: dict[str, GroupBackend], name: str, description: str) -> GroupBackend | None:
    if not made:
        return None
    found = next(iter(made.values())) if len(made) == 1 else SeveralBackends(made, None)
    found._set_group_name(name)
    found._set_group_desc(description)
    return found
