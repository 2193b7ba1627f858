"""Works that know the kernel.

A `SimWork` is what an operation returns at once; waiting for it parks the rank. It carries no C++ future until the
program asks for one (`_futures.py`). A completion is delivered to the process, and carried out when the rank next holds
the baton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, Self, cast

import torch

from simdist.c10d.calls._futures import SimFuture, make_safe_for_backward, pending_futures
from simdist.c10d.calls._kept_works import keep
from simdist.c10d.calls._polling import Polling
from simdist.inside import torch as inside
from simdist.kernel import Task
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member
    from simdist.c10d.calls._payload import Outputs

__all__ = ["Blockers", "CollectiveRead", "PassingWork", "SimWork", "WorkIssued", "WorkWaited"]

Work = inside.Work
_NO_TIMEOUT = timedelta(0)


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class WorkIssued:
    """Reported: an operation was issued and has a work; includes parts of larger operations.

    `name` is its name in torch's profiler. `asynchronous` is False for a collective that waits for itself. `root` is
    the group rank of a rooted operation, else -1. `reads` are the rank's tensors in the CPU's memory that it reads.
    `reduction` is the name of the reduce operation ("sum"), "" where nothing is reduced.
    """

    work: SimWork
    name: str
    shapes: Sequence[Sequence[int]]
    asynchronous: bool
    root: int = -1
    reads: Sequence[torch.Tensor] = ()
    reduction: str = ""


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class WorkWaited:
    """Reported: a rank has waited for a work, which is over, or its future completes."""

    work: SimWork


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class CollectiveRead:
    """Reported: the tensors of a collective, of all its ranks that have arrived, are about to be read."""

    works: Sequence[SimWork]


class Blockers(Protocol):
    """Knows what a work waits for."""

    def blockers_of(self, rank: int) -> Iterable[int]:
        """The group ranks that hold up `rank`, for the wait-for graph."""
        ...


class SimWork(Work):
    """One operation of one rank.

    `outputs` are the tensors that it fills. Settled by `finish` or `fail`, each once.
    """

    # Slots, all set by `make`: with a `__dict__` in a C++ class, Python looks up attributes the slow way.
    __slots__ = (
        "after",
        "before",
        "blockers",
        "done",
        "error",
        "future",
        "member",
        "name",
        "noted",
        "opaque",
        "outputs",
        "partial",
        "parts",
        "polling",
        "process",
        "sequence",
        "site",
        "source",
    )

    joins = True  # several are waited for one by one; False on a stream, where the last of them ends last

    member: Member
    process: SimProcess
    name: str
    sequence: int
    outputs: Outputs
    done: bool
    error: BaseException | None
    future: SimFuture | None
    before: list[Callable[[], object]] | None  # called when it has succeeded, and before it is done
    after: list[Callable[[], None]] | None  # called when it is settled
    source: int  # of a receive: the sender's rank in the group
    polling: Polling | None  # set once the program has polled it before it was done
    opaque: bool  # Gloo's work of this kind has neither a future nor a result
    blockers: Blockers | None  # knows which ranks could end it; for reports
    parts: list[SimWork] | None  # those of a coalesced operation
    partial: bool  # a part of its tensors may be unchanged, although it did not fail
    site: str  # strict: " at FILE:LINE in FUNCTION" of the call, if it is waited for later
    noted: bool  # the log has its tensors' content

    @classmethod
    def make(cls, member: Member, name: str, sequence: int, outputs: Outputs) -> Self:
        """Return a new work. Not `__init__`: a Python one would add half to the cost of the C++ one."""
        work = cls._made(member, name, sequence, outputs)
        keep(work)
        return work

    @classmethod
    def _made(cls, member: Member, name: str, sequence: int, outputs: Outputs) -> Self:
        work = cls()
        work.member = member
        work.process = member.process
        work.name = name
        work.sequence = sequence
        work.outputs = outputs
        work.done = work.opaque = work.partial = work.noted = False
        work.error = work.future = work.before = work.after = work.polling = work.blockers = work.parts = None
        work.source = -1
        work.site = ""
        return work

    # -- for the communicator ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End it: set it done, and wake or notify its waiters."""
        if self.before is not None:
            before, self.before = self.before, None  # an action may refer to the work: the cycle would keep its tensors
            if self.error is None:
                try:
                    for action in before:
                        action()
                except (RuntimeError, NotImplementedError, TypeError) as error:  # torch refuses to write a tensor
                    self.error = error
        self.done = True
        process = self.process
        if self.future is not None:
            process.deliver(self._complete_future)
        else:
            for task in process.tasks:
                if task.waiting is self:
                    process.simulation.wake(task)
        if self.after is not None:
            after, self.after = self.after, None  # likewise
            for callback in after:
                callback()

    def fail(self, error: BaseException) -> None:
        """End it with `error`, which its waiters get."""
        self.error = error
        self.finish()

    def left(self) -> Outputs:
        """Its outputs, for code outside the rank."""
        return self.outputs

    # -- for the kernel's reports --------------------------------------------------------------------------------

    def describe(self) -> str:
        """The operation's name in the deadlock report."""
        comm = self.member.communicator
        return f"{self.name} #{self.sequence} in group {comm.name!r}"

    def waits_for(self) -> Iterator[Task]:
        """The tasks of the ranks that have not done their part."""
        if self.blockers is None:
            return
        comm = self.member.communicator
        for rank in self.blockers.blockers_of(self.member.rank):
            other = comm.members[rank]
            if other is not None:
                yield from other.process.tasks

    # -- torch's interface ---------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Park until the operation is done.

        Raises:
            RuntimeError: it failed, with Gloo's text; or `timeout` passed first ("Operation timed out!").
        """
        process = self.process
        simulation = process.simulation
        if process.torch_state.unwaited:
            process.torch_state.unwaited.pop(self, None)
        if timeout is not _NO_TIMEOUT and timeout.total_seconds() > 0:
            late_ns = self.member.communicator.backend.failure.late_ns
            deadline_ns = simulation.now_ns + round(timeout.total_seconds() * 1e9) + late_ns
            while not self.done:
                if not simulation.park(self, deadline_ns) and not self.done:
                    raise RuntimeError("Operation timed out!")
                process.drain()
        while not self.done:
            simulation.park(self)
            if process.inbox:
                process.drain()
        if process.inbox or process.pending:
            process.drain()
        if process.between:
            process.do_between()
        if simulation.bus.heard and simulation.bus.hears(WorkWaited):
            simulation.bus.report(WorkWaited(self))
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """True if it is done or failed. Polling it before that lets the other ranks run."""
        if not self.done:
            self._poll()
        self.process.drain()
        return self.done

    def _poll(self) -> Polling:
        if self.polling is None:
            self.polling = Polling()
        self.polling.ask(self.process.simulation)
        return self.polling

    def is_success(self) -> bool:
        """False after it failed; and from an opaque work."""
        return self.error is None and not self.opaque

    def exception(self) -> BaseException | None:
        """The error with which it failed, or None."""
        return self.error

    def result(self) -> Outputs:
        """The tensors that it filled.

        Raises:
            RuntimeError: the work is not done, or it is opaque: such a work has no result.
        """
        if self.opaque:
            raise RuntimeError("result() not implemented.")
        if not self.is_completed():
            raise RuntimeError(
                "Work needs to be completed before calling result(). Should call wait() before result()."
            )
        return self.outputs

    def synchronize(self) -> None:
        """Do nothing: there is no stream on a CPU."""

    def source_rank(self) -> int:
        """The sender, after a receive."""
        if self.source < 0:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
            )
        return self.source

    _source_rank = source_rank

    def get_future(self) -> SimFuture:
        """The future that holds the outputs.

        Raises:
            RuntimeError: an opaque work has none.
        """
        if self.opaque:
            raise RuntimeError("Work::getFuture not implemented.")
        self.process.torch_state.unwaited.pop(self, None)  # the owner of the future has to wait for it
        future = self.future
        if future is None:
            future = self.future = SimFuture(self.process, self)
            if self.done:
                self._complete_future()
            else:
                pending_futures(self.process)[future] = None
        make_safe_for_backward(self.process, future)
        return future

    def _complete_future(self) -> None:
        future = self.future
        assert future is not None
        bus = self.process.simulation.bus
        if bus.heard and bus.hears(WorkWaited):
            bus.report(WorkWaited(self))
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.outputs)


def _without_cxx(work: type[SimWork]) -> type[SimWork]:
    names = {name: each for name, each in vars(work).items() if name not in work.__slots__}
    names["__class__"] = property(lambda self: work)  # for code that checks for an instance of torch's class
    names["make"] = names["_made"]
    return cast("type[SimWork]", type("PassingWork", (), names))


PassingWork = _without_cxx(SimWork)
"""`SimWork` without a C++ object behind it, which is most of its cost: for a caller that waits at once."""
