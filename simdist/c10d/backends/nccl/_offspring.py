"""Groups made from other groups: `split_group` (ncclCommSplit), `shrink_group` (ncclCommShrink), and merged groups."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from simdist.c10d.backends.nccl._options import NcclOptions
from simdist.c10d.engine import connect
from simdist.c10d.surface._store import SimPrefixStore, SimStore
from simdist.errors import UnsupportedError

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._launching import NcclGroup

__all__ = ["merge", "shrink", "split"]


def split(group: NcclGroup, store: SimStore, ranks: Sequence[int], options: object, name: str) -> NcclGroup | None:
    """Return a group of some ranks of a group. All ranks of the old group call this; those left out get None.

    Raises:
        RuntimeError: the options are not NCCL's; with torch's text.
        UnsupportedError: a rank that is left out has no communicator to split.
    """
    device = torch.device("cuda", group.guessed_device())
    is_connected = str(device.index) in group.connected_devices()
    if group.rank() not in ranks and not is_connected:
        raise UnsupportedError(
            "a rank that has no communicator can't take part in a split that leaves it out, and a real one ends by a "
            "segmentation fault; give init_process_group a device_id, or call a collective first"
        )
    if not isinstance(options, NcclOptions):
        raise RuntimeError("opts not a ProcessGroupNCCL::Options.")
    if is_connected:
        group.count_split(device.index)
    if group.rank() not in ranks:
        return None
    made = _make(group, list(ranks), store, options)
    made.is_split = is_connected  # else it connects like any other group
    made._set_group_name(name)
    made.bound_device_id = group.bound_device_id
    made.eager_connect_single_device(device)
    return made


def shrink(group: NcclGroup, excluded: Sequence[int], options: NcclOptions | None, *, abort: bool) -> NcclGroup:
    """Return the group without the excluded ranks, which do not call this.

    Raises:
        RuntimeError: the group has no communicator yet; with torch's text.
    """
    index = group.primary_device()
    if index is None:
        device = group.bound_device_id
        key = 0 if device is None else device.index
        raise RuntimeError(f"Primary NCCL communicator for device cuda:{key} (key: {key}) is not initialized")
    if abort:
        group.release()
    ranks = [rank for rank in range(group.size()) if rank not in excluded]
    store = SimPrefixStore(f"shrink/{'.'.join(str(rank) for rank in ranks)}/", group.get_group_store())
    made = _make(group, ranks, store, options)
    made.connect(index)
    return made


def merge(group: NcclGroup, store: SimStore, rank: int, size: int, options: NcclOptions, name: str) -> NcclGroup:
    """Return a group of the ranks of several groups that meet at `store`."""
    options = copy.copy(options)
    options.split_from = None
    communicator = group._communicator
    process, network, backend = group._member.process, communicator.network, communicator.backend
    member = connect(process, network, store, rank, size, 0, backend, strict=communicator.strict)
    made = type(group)(member, store, size, options)
    made._set_group_name(name)
    return made


def _make(group: NcclGroup, ranks: list[int], store: SimStore, options: NcclOptions | None) -> NcclGroup:
    options = copy.copy(group.options if options is None else options)
    options.split_from = None
    communicator = group._communicator
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
