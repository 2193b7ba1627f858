"""Loaders over an `IterableDataset`, which has no indices: the bits of their tensors distinguish batches.

The ranks of a model in DDP must not all read the same batches, nor must the workers of one loader. If they do, the data
set returns all its samples to each of them. Batches that are all equal show nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from torch.utils.data import IterableDataset

from simdist.judges._bits import bits_inside
from simdist.judges._events import BatchRead, LoaderBegan, LoaderEnded, OptimizerStepped
from simdist.judges._judge import Hearing, Moment

__all__ = ["IterableSamples"]

_MOST_PASSES = 64  # passes that some ranks have still to make; a rank so far behind has no such loader
_Batch: TypeAlias = tuple[int | None, ...]


@dataclass(slots=True)
class _Pass:
    """One iteration of one rank over a loader."""

    moment: Moment
    subject: str  # the class of the data set
    workers: int
    number: int  # counts the passes over loaders at this line
    batches: list[_Batch] = field(default_factory=list)
    trained: bool = False
    wrapped: bool = False  # it trained a model in DDP over all ranks

    @property
    def says_something(self) -> bool:
        """True if the batches can be distinguished."""
        return len(set(self.batches)) > 1 and all(None not in batch and batch for batch in self.batches)


class IterableSamples:
    """The state of the judge of samples for these loaders in one world."""

    def __init__(self, hearing: Hearing, trains_wrapped: Callable[[OptimizerStepped], bool]) -> None:
        self._hearing = hearing
        self._trains_wrapped = trains_wrapped
        self._open: dict[tuple[int, int], dict[int, _Pass]] = {}  # by life and rank; by the number of the iteration
        self._counts: dict[tuple[int, int, str], int] = {}  # passes by life, rank and line
        self._ended: dict[tuple[int, str, int], dict[int, _Pass]] = {}  # by life, line and number; by rank
        self._done: set[str] = set()

    def on_begin(self, event: LoaderBegan) -> None:
        """Note the begin of a pass."""
        dataset, process = event.loader.dataset, event.process
        if not isinstance(dataset, IterableDataset):
            return
        line = process.life, process.rank, event.where
        number = self._counts[line] = self._counts.get(line, -1) + 1
        self._open.setdefault(line[:2], {})[event.number] = _Pass(
            self._hearing.moment(process, event.where), type(dataset).__name__, event.loader.num_workers, number
        )

    def on_read(self, event: BatchRead) -> None:
        """Keep the bits of a batch."""
        known = self._open.get((event.process.life, event.process.rank), {}).get(event.number)
        if known is not None:
            known.batches.append(tuple(bits_inside(event.batch)))

    def on_step(self, event: OptimizerStepped) -> None:
        """Mark the rank's open passes as passes of training."""
        for each in self._open.get((event.process.life, event.process.rank), {}).values():
            each.trained = True
            each.wrapped = each.wrapped or self._trains_wrapped(event)

    def on_end(self, event: LoaderEnded) -> None:
        """Check a finished pass, and compare ranks when all have finished it."""
        process = event.process
        known = self._open.get((process.life, process.rank), {}).pop(event.number, None)
        if known is None or not known.trained or not known.says_something:
            return
        self._look_at_workers(known)
        ended = self._ended.setdefault((process.life, known.moment.where, known.number), {})
        ended[process.rank] = known
        if len(ended) == self._hearing.world_size:
            del self._ended[process.life, known.moment.where, known.number]
            if len(ended) > 1 and all(each.wrapped for each in ended.values()):
                self._look_at_ranks(ended)
        elif len(self._ended) > _MOST_PASSES:
            del self._ended[next(iter(self._ended))]

    def _look_at_workers(self, known: _Pass) -> None:
        workers = known.workers
        if "workers" in self._done or workers < 2 or len(known.batches) % workers:
            return
        shares = [known.batches[worker::workers] for worker in range(workers)]
        if all(share == shares[0] for share in shares):
            self._done.add("workers")
            self._hearing.find(
                f"all {workers} workers of a loader hand out the same batches: each sample is read {workers} times",
                known.moment,
                subject=known.subject,
                notes=["the data set does not look at `get_worker_info()`"],
            )

    def _look_at_ranks(self, ended: dict[int, _Pass]) -> None:
        first, second = (ended[rank] for rank in sorted(ended)[:2])
        if "ranks" in self._done or any(each.batches != first.batches for each in ended.values()):
            return
        self._done.add("ranks")
        self._hearing.find(
            f"all {len(ended)} ranks read the same batches in pass {second.number}",
            second.moment,
            subject=second.subject,
            notes=["DDP averages equal gradients then; the data set must give each rank a share of its own"],
        )
