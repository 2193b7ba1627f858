"""The parameters of each rank at each place of an optimizer, and the ranks that are meant to be equal there.

A *place* identifies a parameter of an optimizer: by its name in a DDP model, else by its position in the optimizer's
lists. The parameters at one place on several ranks are *copies*. Four facts define the ranks that must be equal:

- DDP: all ranks of its group.
- A DTensor's placements: the ranks of its mesh that differ only in dimensions in which it is replicated.
- The reduction of its first gradient: the ranks that take part in it.
- Only the bits: the ranks with the same shape, type and bits before the first step. A tensor with equal elements (a
  bias of zeros) is no evidence; it only counts if all other parameters of the ranks are equal too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from simdist.inside.torch import TensorRef
from simdist.judges._bits import bits_of, is_constant, local_part, place_in_memory
from simdist.judges._contents import Bits, Content, copied_content, summed_content
from simdist.judges._judge import Moment

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.optim import Optimizer

    from simdist.c10d.engine import Communicator
    from simdist.judges._contents import States

__all__ = ["Copy", "Filled", "Key", "Optimized", "Row", "Table", "copy_of", "gradient_versions", "mesh_peers"]
__all__ += ["mesh_shards", "note_first_gradients", "usual_and_blamed"]

Key = tuple[object, ...]


@dataclass(slots=True)
class Copy:
    """The parameter of one rank at one place."""

    key: Key
    name: str
    tensor: TensorRef
    shape: tuple[int, ...]
    dtype: str
    first: int | None  # its bits before the first step
    constant: bool
    ranks: tuple[int, ...] = ()  # ranks with replicas by DDP or a DTensor; empty: unknown
    shards: tuple[int, ...] = ()  # ranks that hold a sharded DTensor together
    strict: bool = False  # must be equal from the first step on, without exception
    synced: bool = False  # a collective filled it before the first step
    reduced: Communicator | None = None  # the group whose ranks reduced its first gradient
    reporting: bool = False  # its first gradient was not constant; constants may be equal by chance


@dataclass(slots=True)
class Filled:
    """The tensors that collectives filled on a rank before its first step."""

    places: set[StorageWeakRef] = field(default_factory=set)
    # Sums since the last backward pass, with sizes.
    sums: list[tuple[StorageWeakRef | None, int, Communicator]] = field(default_factory=list)

    def reducers(self, elements: int) -> tuple[dict[StorageWeakRef, Communicator], Communicator | None]:
        """Return the group that reduced each storage, and the group that reduced exactly `elements` elements in all."""
        total: dict[Communicator, int] = {}
        for _, count, group in self.sums:
            total[group] = total.get(group, 0) + count
        whole = next((group for group, count in total.items() if count == elements), None)
        return {place: group for place, _, group in self.sums if place is not None}, whole


@dataclass(slots=True)
class Row:
    """The content of one rank after one step."""

    moment: Moment
    content: Content
    operations: int  # collectives and messages that the rank had called
    before: Row | None = None  # of the step before; kept until this row is compared

    @property
    def bits(self) -> list[Bits]:
        """The bits of each copy."""
        return self.content.bits

    def is_like(self, other: Row) -> bool:
        """True if both have equal content."""
        return self.content is other.content or self.bits == other.bits


@dataclass(slots=True)
class Optimized:
    """One optimizer of one rank. `last` is the latest row; `places` has the index in `copies` of each key."""

    optimizer: Callable[[], Optimizer | None]
    moment: Moment
    copies: list[Copy]
    places: dict[Key, int]
    last: Row | None = None
    steps: int = 0
    versions: list[int] = field(default_factory=list)  # of gradients when the step began
    joins: bool = False  # in DDP's `join`, where ranks may take fewer steps

    def note_gradients(self) -> None:
        """Note the gradients' versions when a step begins, if gradients will be compared."""
        for copy in self.copies:  # hot: most often the first is
            if copy.strict:
                self.versions = gradient_versions(self.copies)
                return

    def used_up(self) -> Set[int]:
        """Return the places of the gradients that have been changed since the step began."""
        versions = gradient_versions(self.copies) if self.versions else []
        if versions == self.versions:  # hot
            return frozenset()
        return {place for place, (old, new) in enumerate(zip(self.versions, versions, strict=False)) if old != new}

    def copy(self, key: Key) -> Copy | None:
        """Return the rank's copy at a place, or None."""
        place = self.places.get(key)
        return None if place is None else self.copies[place]


@dataclass(slots=True)
class Table:
    """The optimizers with one index on all ranks, and the rows of steps that some ranks have still to take."""

    of_leaves: bool = False  # for parameters of first losses instead of optimizers: rows are of backward passes
    ranks: dict[int, Optimized] = field(default_factory=dict)
    rows: dict[int, dict[int, Row]] = field(default_factory=dict)
    kept: set[tuple[int, ...]] = field(default_factory=set)  # ranks with copies that were equal after a changing step
    reunited: set[tuple[int, ...]] = field(default_factory=set)  # ranks whose copies differed and were equal later
    latest: int = -1  # the latest step that a rank has taken
    _content: Content | None = None  # content of the first rank that took the latest step
    _known: tuple[int, list[tuple[Key, list[int]]]] = (0, [])  # cached `sets`, with the number of ranks
    _shared: tuple[object, dict[int, set[int]]] = (None, {})  # cached `shared_places` by rank, with their sets

    def sets(self) -> list[tuple[Key, list[int]]]:
        """Return for each place the ranks that are meant to be equal there, in sets of at least two."""
        count, found = self._known
        if count != len(self.ranks):
            keys = dict.fromkeys(key for rank in sorted(self.ranks) for key in self.ranks[rank].places)
            found = [(key, ranks) for key in keys for ranks in self._sets_at(key)]
            self._known = len(self.ranks), found
        return found

    def shards(self) -> Iterator[tuple[Key, list[int]]]:
        """Yield for each place the ranks with parts of one sharded tensor there, without empty parts."""
        for key in dict.fromkeys(key for rank in sorted(self.ranks) for key in self.ranks[rank].places):
            together: dict[tuple[object, ...], list[int]] = {}
            for rank in sorted(self.ranks):
                copy = self.ranks[rank].copy(key)
                tensor = None if copy is None or not copy.shards or 0 in copy.shape else copy.tensor()
                if copy is not None and tensor is not None and rank in copy.shards:
                    together.setdefault((copy.shards, tensor.shape), []).append(rank)
            yield from ((key, ranks) for ranks in together.values() if len(ranks) > 1)

    def shared_places(self, rank: int) -> Set[int]:
        """Return the places of a rank's copies that must be equal on other ranks."""
        sets = self._known[1] if self._known[0] == len(self.ranks) else self.sets()  # hot
        if self._shared[0] is not sets:
            self._shared = sets, {}
        known = self._shared[1]
        if rank not in known:
            places = self.ranks[rank].places
            known[rank] = {places[key] for key, ranks in sets if rank in ranks}
        return known[rank]

    def content_after(self, number: int, parameters: Sequence[Tensor | None], states: States) -> Content:
        """Return a rank's content after a step; if it is equal, the object of the first rank that took the step."""
        first = self._content
        if number > self.latest:
            if first is not None and self.latest in self.rows:
                first.settle()  # some ranks have not taken that step yet
            self.latest = number
            first = self._content = copied_content(parameters, states)
            if first is not None:
                return first
        elif number == self.latest and first is not None and first.is_of(parameters, states):
            return first
        return summed_content(parameters, states)

    def bits(self, rank: int, row: Row, key: Key) -> Bits:
        """Return the bits of one place in a row."""
        return row.bits[self.ranks[rank].places[key]]

    def note_kept(self, key: Key, ranks: list[int], rows: Mapping[int, Row]) -> None:
        """Remember ranks whose copies are equal, and have changed since the first step."""
        if tuple(ranks) not in self.kept:
            bits = {self.bits(rank, rows[rank], key)[0] for rank in ranks}
            copies = [copy for rank in ranks if (copy := self.ranks[rank].copy(key)) is not None]
            firsts = {copy.first for copy in copies if copy.reporting}
            if len(bits) == len(firsts) == 1 and bits != firsts and None not in bits:
                self.kept.add(tuple(ranks))

    def are_replicas(self, key: Key, ranks: Sequence[int]) -> bool:
        """True if something shows that the ranks were meant to be equal there: some of their copies stayed equal in a
        step, or collectives filled some before the first step, or reduced the gradient of this one."""
        if any(set(ranks) <= set(kept) for kept in self.kept):
            return True
        here = [self.ranks[rank].copy(key) for rank in ranks]
        if all(copy is not None and copy.reduced is not None for copy in here):
            return True
        for key in self.ranks[ranks[0]].places:
            copies = [copy for rank in ranks if (copy := self.ranks[rank].copy(key)) is not None]
            if len(copies) == len(ranks) and all(copy.synced for copy in copies):
                return True
        return False

    def _sets_at(self, key: Key) -> Iterator[list[int]]:
        there = {rank: self.ranks[rank].copy(key) for rank in sorted(self.ranks)}
        known = {rank: copy for rank, copy in there.items() if copy is not None}
        for ranks in sorted({copy.ranks for copy in known.values() if copy.ranks}):
            found = [rank for rank in ranks if rank in known and known[rank].ranks == ranks]
            if len(found) > 1:
                yield found
        together: dict[tuple[object, ...], list[int]] = {}
        alike: dict[tuple[object, ...], list[int]] = {}
        for rank, copy in known.items():
            if not copy.ranks and copy.first is not None:
                alike.setdefault((copy.shape, copy.dtype, copy.first), []).append(rank)
                if copy.reduced is not None:
                    together.setdefault((copy.shape, copy.dtype, copy.reduced), []).append(rank)
        reduced = [ranks for ranks in together.values() if len(ranks) > 1]
        yield from reduced
        for ranks_alike in alike.values():
            if len(ranks_alike) < 2 or any(set(ranks_alike) <= set(ranks) for ranks in reduced):
                continue
            if not known[ranks_alike[0]].constant:
                yield ranks_alike
            else:
                yield from self._whole_replicas(ranks_alike)

    def _whole_replicas(self, ranks: Sequence[int]) -> Iterator[list[int]]:
        """Yield sets of the ranks with all parameters equal, at least one of which is not constant."""
        sets: dict[tuple[object, ...], list[int]] = {}
        for rank in ranks:
            copies = self.ranks[rank].copies
            if any(not copy.constant for copy in copies):
                whole = tuple((copy.key, copy.shape, copy.dtype, copy.first) for copy in copies)
                sets.setdefault(whole, []).append(rank)
        yield from (found for found in sets.values() if len(found) > 1)


def copy_of(
    key: Key, name: str, parameter: Tensor, places: Set[StorageWeakRef], reduced: Communicator | None = None
) -> Copy:
    """Return the current copy at a place; `places` are the storages that collectives have filled."""
    peers = mesh_peers(parameter)
    own = place_in_memory(parameter) if places else None
    return Copy(
        key,
        name,
        TensorRef(parameter),
        tuple(local_part(parameter).shape),
        str(parameter.dtype),
        bits_of(parameter),
        is_constant(parameter),
        peers,
        mesh_shards(parameter),
        strict=bool(peers),
        synced=own is not None and own in places,
        reduced=reduced,
    )


def note_first_gradients(copies: Sequence[Copy]) -> None:
    """Note after the first step which gradients are not constant."""
    for copy in copies:
        gradient = getattr(copy.tensor(), "grad", None)
        copy.reporting = gradient is not None and not is_constant(gradient)


def gradient_versions(copies: Sequence[Copy]) -> list[int]:
    """Return how often each gradient was changed in place; -1 if there is none, or nobody counts."""
    versions = []
    for copy in copies:  # hot
        parameter = copy.tensor()
        gradient = None if parameter is None else parameter.grad
        if gradient is None:
            versions.append(-1)
            continue
        try:
            version = gradient._version
            # Operators of a DTensor count on the DTensor, those of FSDP on its local part.
            versions.append(version if type(gradient) is Tensor else version + local_part(gradient)._version)
        except RuntimeError:  # made in inference mode
            versions.append(-1)
    return versions


def mesh_peers(tensor: object) -> tuple[int, ...]:
    """Return the ranks with the same part of a DTensor as this rank; empty for other tensors, or for a single rank."""
    placements = getattr(tensor, "placements", None)
    mesh = getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None or mesh.get_coordinate() is None:
        return ()
    at = tuple(
        slice(None) if placement.is_replicate() else own
        for placement, own in zip(placements, mesh.get_coordinate(), strict=True)
    )
    ranks = mesh.mesh[at].reshape(-1).tolist()
    return tuple(sorted(ranks)) if len(ranks) > 1 else ()


def mesh_shards(tensor: object) -> tuple[int, ...]:
    """Return the ranks of a DTensor's mesh, if it is sharded there; empty for other tensors."""
    placements = getattr(tensor, "placements", None)
    mesh = getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None or mesh.get_coordinate() is None:
        return ()
    sizes = zip(placements, mesh.shape, strict=True)
    sharded = any(size > 1 and not placement.is_replicate() for placement, size in sizes)
    return tuple(sorted(mesh.mesh.reshape(-1).tolist())) if sharded else ()


def usual_and_blamed(values: Mapping[int, object], idle: Container[int] = ()) -> tuple[list[int], int]:
    """Return the ranks of the majority, and the first other rank; between equally many, active ranks count as right."""
    counts = Counter(values.values())
    most = max(counts.values())
    leading = [value for value in dict.fromkeys(values.values()) if counts[value] == most]
    active = [value for value in leading if not all(rank in idle for rank in values if values[rank] == value)]
    usual_value = (active or leading)[0]
    usual = [rank for rank, value in values.items() if value == usual_value]
    return usual, next(rank for rank, value in values.items() if value != usual_value)
