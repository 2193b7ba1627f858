"""The loaders of all ranks together return in an epoch what one loader would: each sample once, in a new order.

A *pass* is one iteration over a loader, from `iter` to the request after the last batch. Only passes of training count,
in which the rank's optimizer stepped: for evaluation, all ranks may read the same samples in the same order.

Ranks that read the same samples in the same order are one *reader*, like the ranks of a tensor-parallel group. Readers
are meant to share the data set if together they draw about as many samples as it has, or if they train a model in DDP
and each draws all of it with torch's own samplers. A `DistributedSampler` may repeat samples, so that all ranks have
the same number, and samples may be dropped at the end.

Samples from a `Subset` count as samples of the whole data set: if each rank splits the data set for itself, some
samples are read twice.

Augmentation changes samples at each read. Then the contents of the data sets show whether ranks read the same
(`_held_data.py`). A data set may also ignore the index, and draw a sample: if ranks are seeded alike, they read equal
batches under different indices, and the first batches of a pass show it. Workers of one loader may draw the same random
numbers, too (`_worker_draws.py`).

Doubt: loaders are distinguished by the data set and the line that iterates; two loaders that share both count as one.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler, Subset, WeightedRandomSampler

from simdist.judges._bits import bits_inside, tensors_inside
from simdist.judges._events import BatchDrawn, BatchRead, LoaderBegan, LoaderEnded, ModelWrapped, OptimizerStepped
from simdist.judges._judge import Hearing, Judge, Moment
from simdist.judges.samples._held_data import hold_the_same
from simdist.judges.samples._iterable_samples import IterableSamples
from simdist.judges.samples._trained import Trained
from simdist.judges.samples._worker_draws import WorkerDraws
from simdist.process import SimProcess
from simdist.values import number_text, rank_text

__all__ = ["Samples"]

_T = TypeVar("_T")

_FEW = 4  # fewer samples than this may have the same order by chance
_USUAL = ("RandomSampler", "SequentialSampler")  # other samplers may repeat a sample on purpose, with augmentation
_MOST_PASSES = 64  # passes that some ranks have still to make; a rank so far behind has no such loader


class Samples(Judge):
    """In an epoch of training no sample is read twice or never, and with shuffling the next epoch has another order.

    Ranks do not draw equal samples instead of those that they are meant to read, and workers of a loader draw different
    random numbers.
    """

    name: ClassVar[str] = "samples"

    def begin(self, hearing: Hearing) -> None:
        """Listen to the batches of loaders."""
        trained = Trained(hearing)
        watch = _Watch(hearing, trained.by, WorkerDraws(hearing))
        without_indices = IterableSamples(hearing, trained.by)
        hearing.listen(LoaderBegan, without_indices.on_begin)
        hearing.listen(BatchRead, without_indices.on_read)
        hearing.listen(LoaderEnded, without_indices.on_end)
        hearing.listen(OptimizerStepped, without_indices.on_step)
        hearing.listen(LoaderBegan, watch.on_begin)
        hearing.listen(BatchDrawn, watch.on_batch)
        hearing.listen(BatchRead, watch.on_read)
        hearing.listen(LoaderEnded, watch.on_end)
        hearing.listen(OptimizerStepped, watch.on_step)
        hearing.listen(ModelWrapped, trained.on_model)


@dataclass(slots=True)
class _Pass:
    """One iteration of one rank over a loader."""

    moment: Moment
    line: int  # number of the loader on its rank
    number: int  # number of the pass over this loader
    size: int  # of the data set
    batch: int  # samples in a batch
    shuffled: bool
    replaces: bool  # the sampler draws with replacement, or only a part of the data set
    sampler: str
    shares: int  # of a DistributedSampler
    parts: Sequence[int]  # indices of the samples in the whole data set, in order
    firsts: list[tuple[int | None, ...]] = field(default_factory=list)  # the bits of the tensors in the first batches
    shapes: list[tuple[torch.Size, ...]] = field(default_factory=list)  # of these tensors
    indices: list[int] = field(default_factory=list)
    seed: int | None = None  # of the loader's workers
    trained: bool = False
    wrapped: bool = False  # it trained a model in DDP over all ranks

    def is_whole(self, other: _Pass) -> bool:
        """True if the other pass, by any rank, has read this one's whole data set, up to the last full batch."""
        return other.parts == self.parts and self.size - len(set(other.indices)) in (0, self.size % self.batch)


class _Rank:
    """The loaders of one rank in one life."""

    def __init__(self) -> None:
        self.lines: list[tuple[Callable[[], object], str]] = []  # data set and line of each loader
        self.counts: list[int] = []  # passes over each loader
        self.open: dict[int, _Pass] = {}  # by the number of the iteration
        self.before: dict[int, _Pass] = {}  # the last pass of training over each loader

    def line_of(self, dataset: object, where: str) -> int:
        """Return the number of a loader."""
        for place, (known, there) in enumerate(self.lines):
            if there == where and known() is dataset:
                return place
        self.lines.append((_reference(dataset), where))
        self.counts.append(0)
        return len(self.lines) - 1


class _Watch:
    """The judge's state for one world."""

    def __init__(
        self, hearing: Hearing, trains_wrapped: Callable[[OptimizerStepped], bool], draws: WorkerDraws
    ) -> None:
        self._hearing = hearing
        self._trains_wrapped = trains_wrapped
        self._draws = draws
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        self._passes: dict[tuple[int, int, int], dict[int, _Pass]] = {}  # by life, loader and number; by rank
        self._done: set[str] = set()

    def on_begin(self, event: LoaderBegan) -> None:
        """Note the begin of a pass."""
        loader, rank = event.loader, self._rank(event.process)
        dataset: Any = loader.dataset
        if isinstance(dataset, IterableDataset):
            return
        sampler = loader.sampler
        if not isinstance(sampler, DistributedSampler | RandomSampler):
            sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", sampler)
        try:
            size = len(dataset)
        except TypeError:
            return
        line = rank.line_of(dataset, event.where)
        rank.open[event.number] = _Pass(
            self._hearing.moment(event.process, event.where),
            line,
            rank.counts[line],
            size,
            int(loader.batch_size or getattr(loader.batch_sampler, "batch_size", 1) or 1),
            shuffled=isinstance(sampler, RandomSampler) or getattr(sampler, "shuffle", False) is True,
            replaces=_replaces(sampler, size),
            sampler=type(sampler).__name__,
            shares=sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1,
            parts=_parts(dataset, size),
        )
        rank.counts[line] += 1

    def on_batch(self, event: BatchDrawn) -> None:
        """Note the samples of a drawn batch."""
        known = self._rank(event.process).open.get(event.number)
        if known is not None:
            if all(type(index) is int and -known.size <= index < known.size for index in event.indices):
                known.indices += [known.parts[index] for index in event.indices]
            else:
                known.replaces = True  # keys of another type, without a known range

    def on_read(self, event: BatchRead) -> None:
        """Keep the bits of the first batches: ranks may have different data sets with the same indices."""
        known = self._rank(event.process).open.get(event.number)
        if known is not None and len(known.firsts) < _FEW:
            known.firsts.append(tuple(bits_inside(event.batch)))
            known.shapes.append(tuple(each.shape for each in tensors_inside(event.batch)))
            known.seed = event.seed

    def on_step(self, event: OptimizerStepped) -> None:
        """Mark the rank's open passes as passes of training, at an optimizer step."""
        rank = self._ranks.get((event.process.life, event.process.rank))
        for each in () if rank is None else rank.open.values():
            each.trained = True
            each.wrapped = each.wrapped or self._trains_wrapped(event)
            if self._draws.alike and each.seed is not None:
                self._draws.look((event.process.life, event.process.rank, each.seed), each.moment)

    def on_end(self, event: LoaderEnded) -> None:
        """Check a finished pass, and compare ranks when all have finished it."""
        process = event.process
        rank = self._rank(process)
        known = rank.open.pop(event.number, None)
        if known is None or not known.trained:
            return
        before = rank.before.get(known.line)
        rank.before[known.line] = known
        if before is not None and "order" not in self._done:
            self._look_at_order(before, known)
        passes = self._passes.setdefault((process.life, known.line, known.number), {})
        passes[process.rank] = known
        if len(passes) == self._hearing.world_size:
            del self._passes[process.life, known.line, known.number]
            if "shares" not in self._done:
                self._look_at_shares(passes, process.life)
        elif len(self._passes) > _MOST_PASSES:
            del self._passes[next(iter(self._passes))]

    def _rank(self, process: SimProcess) -> _Rank:
        who = process.life, process.rank
        rank = self._ranks.get(who)
        if rank is None:
            rank = self._ranks[who] = _Rank()
        return rank

    def _look_at_order(self, before: _Pass, now: _Pass) -> None:
        if not now.shuffled or now.replaces or now.size != before.size or len(now.indices) < _FEW:
            return
        if now.indices == before.indices:
            self._done.add("order")
            hint = "set_epoch was not called" if now.sampler == "DistributedSampler" else "its generator began anew"
            self._hearing.find(
                f"epoch {now.number} has the same order of samples as epoch {before.number}, although shuffle is on",
                now.moment,
                subject=now.sampler,
                against=before.moment.where if before.moment.where != now.moment.where else "",
                notes=[hint],
            )

    def _look_at_shares(self, passes: dict[int, _Pass], life: int) -> None:
        if _draw_the_same(passes):
            self._report_drawn(passes)
            return
        if any(each.replaces or len(set(each.indices)) < len(each.indices) - each.batch for each in passes.values()):
            return
        readers: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(passes):
            readers.setdefault(tuple(passes[rank].indices), []).append(rank)
        one = passes[min(passes)]
        if len({each.size for each in passes.values()}) > 1 or len(passes) < 2:
            return
        if len(readers) < one.shares:  # even if values differ: augmentation changes them
            self._report_unread(readers, passes, one)
            return
        firsts = {rank: each.firsts[0] if each.firsts else None for rank, each in passes.items()}
        differs = any(len({firsts[rank] for rank in ranks}) > 1 for ranks in readers.values())
        usual = all(each.sampler in _USUAL for each in passes.values())
        if all(each.wrapped and one.is_whole(each) for each in passes.values()):
            proven = not differs and len(readers) == 1  # else ranks may have data sets of their own
            if proven or (usual and self._is_one_data_set(passes, life)):
                self._report_whole(passes, one, orders=len(readers), augmented=differs)
            return
        if len(readers) == 1 or differs:
            return  # different data under the same indices: each rank has its own data set
        drawn = sum(map(len, readers))
        slack = len(readers) * one.batch
        if not one.size - slack <= drawn <= one.size + slack or max(map(len, readers)) >= one.size:
            return  # they are not meant to share the data set
        counts = Counter(index for indices in readers for index in indices)
        padding = max(drawn - one.size, -one.size % len(readers))
        if drawn - len(counts) > padding:
            self._report_twice(readers, passes, counts)

    def _report_drawn(self, passes: dict[int, _Pass]) -> None:
        """Report that all ranks of a model in DDP read equal samples, though their indices are different."""
        self._done.add("shares")
        second = passes[sorted(passes)[1]]
        self._hearing.find(
            f"all {len(passes)} ranks read equal batches in epoch {second.number}, though their indices are different",
            second.moment,
            subject=second.sampler,
            notes=[
                "DDP averages equal gradients then; does the data set draw its samples, with one seed on all ranks?"
            ],
        )

    def _report_unread(self, readers: dict[tuple[int, ...], list[int]], passes: dict[int, _Pass], one: _Pass) -> None:
        """Report that fewer shares of the data set are read than there are."""
        self._done.add("shares")
        never = sorted(set(one.parts) - {index for indices in readers for index in indices})
        twice = next((ranks[1] for ranks in readers.values() if len(ranks) > 1), min(passes))
        what = "1 share" if len(readers) == 1 else f"{len(readers)} shares"
        self._hearing.find(
            f"the ranks read {what} of {one.shares} in epoch {one.number}: samples {_some(never)} are never read",
            passes[twice].moment,
            subject=one.sampler,
            notes=["`num_replicas` and `rank` of the samplers do not fit the ranks"],
        )

    def _is_one_data_set(self, passes: dict[int, _Pass], life: int) -> bool:
        """True if the ranks' data sets hold the same samples, which augmentation changes."""
        datasets = [self._ranks[life, rank].lines[each.line][0]() for rank, each in sorted(passes.items())]
        return None not in datasets and hold_the_same(datasets)

    def _report_whole(self, passes: dict[int, _Pass], one: _Pass, *, orders: int, augmented: bool) -> None:
        """Report that all ranks of a model in DDP read the same samples."""
        self._done.add("shares")
        if orders == 1:
            what, effect = "the same samples in the same order", "DDP averages equal gradients then"
            if augmented:
                effect = "DDP averages gradients of equal samples then"
        else:
            what = f"all {one.size} samples of the data set, in {orders} orders,"
            effect = f"an epoch has each sample {orders} times then"
        self._hearing.find(
            f"all {len(passes)} ranks read {what} in epoch {one.number}",
            passes[sorted(passes)[1]].moment,
            subject=one.sampler,
            notes=[f"{effect}; the loader needs a DistributedSampler"],
        )

    def _report_twice(
        self, readers: dict[tuple[int, ...], list[int]], passes: dict[int, _Pass], counts: Counter[int]
    ) -> None:
        self._done.add("shares")
        twice = min(index for index, count in counts.items() if count > 1)
        ranks = [each[0] for indices, each in readers.items() if twice in indices]
        one = passes[ranks[-1]]
        never = sorted({part for each in passes.values() for part in each.parts} - set(counts))
        often = sum(count > 1 for count in counts.values())
        unread = f", and samples {_some(never)} by none" if never else ""
        who = rank_text(ranks) if len(ranks) > 1 else f"{rank_text(ranks)} more than once"
        self._hearing.find(
            f"in epoch {one.number} sample {twice} is read by {who}{unread}",
            one.moment,
            subject=one.sampler,
            notes=[f"{often} of {one.size} samples are read more than once, {len(never)} never"],
        )


def _draw_the_same(passes: dict[int, _Pass]) -> bool:
    """True if all ranks of a model in DDP have equal first batches under other indices, and samples differ."""
    first, *others = passes.values()
    return (
        bool(others)
        and all(each.firsts == first.firsts for each in others)
        and len(set(zip(first.shapes, first.firsts, strict=True))) > len(set(first.shapes))
        and all(bits and None not in bits for bits in first.firsts)
        and all(each.wrapped for each in passes.values())
        and len({tuple(each.indices) for each in passes.values()}) == len(passes)
    )


def _replaces(sampler: object, size: int) -> bool:
    """True for a sampler that may draw a sample twice, or not all of them, on purpose."""
    if isinstance(sampler, WeightedRandomSampler):
        return True
    return isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != size)


def _parts(dataset: object, size: int) -> Sequence[int]:
    """Return the indices of a data set's samples in the whole data set, of which it may be a `Subset`."""
    parts: Sequence[int] = range(size)
    while isinstance(dataset, Subset):
        indices = dataset.indices
        parts = [int(indices[part]) for part in parts]
        dataset = dataset.dataset
    return parts


def _some(indices: Sequence[int]) -> str:
    return number_text(indices[:3]) + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")


def _reference(thing: _T) -> Callable[[], _T | None]:
    """Return a function that returns `thing`: a weak reference, if that is possible."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing
