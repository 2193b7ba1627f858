"""Groups that are made of groups: `split_group` (ncclCommSplit), `shrink_group` (ncclCommShrink), merged ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from simdist.c10d.engine import connect
from simdist.c10d.surface._store import SimPrefixStore

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._launching import NcclGroup

__all__ = ["merge", "shrink", "split"]


def split(
    group: NcclGroup, ranks: Sequence[int], timeout: timedelta, options: Any, name: str, description: str
) -> NcclGroup | None:
    """The group of some ranks of a group; every rank of that takes part, and who is not among them gets None."""
    device = group.bound_device_id
    group.count_split(device.index)
    if group.rank() not in ranks:
        return None
    made = _make(group, sorted(ranks), f"split/{name}/", options, timeout)
    made._set_group_name(name)
    made._set_group_desc(description)
    made.bound_device_id = device
    made.eager_connect_single_device(device)
    return made


def shrink(group: NcclGroup, excluded: Sequence[int], options: Any, *, abort: bool) -> NcclGroup:
    """The group without some of its ranks, which take no part.

    Raises:
        RuntimeError: it has no communicator yet, in torch's words.
    """
    index = group.primary_device()
    if index is None:
        device = group.bound_device_id
        key = 0 if device is None else device.index
        raise RuntimeError(f"Primary NCCL communicator for device cuda:{key} (key: {key}) is not initialized")
    if abort:
        group.release()
    ranks = [rank for rank in range(group.size()) if rank not in excluded]
    made = _make(group, ranks, f"shrink/{'.'.join(str(rank) for rank in ranks)}/", options, None)
    made.connect(index)
    return made


def merge(
    group: NcclGroup, store: Any, size: int, timeout: timedelta, name: str | None, description: str | None
) -> NcclGroup:
    """A group with the ranks of others that meet at `store`, numbered in the order in which they come there."""
    rank = int(store.add("mergeGroupRank", 1)) - 1
    options = copy.copy(group.options)
    options.split_from = None
    options._timeout = timeout
    options.group_name = f"{group.group_name}:merge" if name is None else name
    communicator = group._communicator
    process, network, backend = group._member.process, communicator.network, communicator.backend
    member = connect(process, network, store, rank, size, 0, backend, strict=communicator.strict)
    made = type(group)(member, store, size, options)
    made._set_group_name(options.group_name)
    made._set_group_desc(f"{group.group_desc}:merge" if description is None else description)
    return made


def _make(group: NcclGroup, ranks: list[int], prefix: str, options: Any, timeout: timedelta | None) -> NcclGroup:
    options = copy.copy(group.options if options is None else options)
    options.split_from = None
    if timeout is not None:
        options._timeout = timeout
    communicator = group._communicator
    store = SimPrefixStore(prefix, group.get_group_store())
    member = connect(
        group._member.process,
        communicator.network,
        store,
        ranks.index(group.rank()),
        len(ranks),
        0,
        communicator.backend,
        strict=communicator.strict,
        ranks=[communicator.ranks[rank] for rank in ranks],
    )
    made = type(group)(member, store, len(ranks), options)
    made.is_split = True
    return made
