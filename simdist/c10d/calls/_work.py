"""Work and futures that know the kernel.

A `SimWork` is what an operation returns at once; waiting for it parks the rank. It carries no C++ future until the
program asks for one. A C++ future must be completed on its rank's own thread, since its callbacks run there. So a
completion is delivered to the process, and carried out when the rank next holds the baton.

C++ that waits for a pending future blocks the thread while it holds the baton, so the whole simulation would hang. DDP
does so at the end of backward. Therefore, when a program asks for a future inside an autograd graph task, a callback is
queued on the engine that parks until all futures of the rank are done; it runs before DDP's own. In the engine's final
callbacks, where DDP with `static_graph=True` works in its first iteration, a queued callback comes too late: there
`get_future` itself parks. The engine has no current node then. Inside a reentrant backward it has that of the outer
one; there `waits_in_cxx`, which counts calls of DDP, shows it. (Seen with torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import torch

from simdist.c10d.calls._callbacks import log_error, passed_on
from simdist.c10d.calls._kept_works import keep
from simdist.c10d.calls._polling import Polling
from simdist.errors import SimdistError
from simdist.inside import torch as inside
from simdist.kernel import Task, Wait
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member
    from simdist.c10d.calls._payload import Outputs

__all__ = ["Blockers", "CollectiveRead", "Future", "PassingWork", "SimFuture", "SimWork", "WorkIssued", "WorkWaited"]
__all__ += ["safe_for_backward", "wait_for_future"]

Work = inside.Work
Future: Any = torch.futures.Future
_NO_TIMEOUT = timedelta(0)

_torch: Any = torch  # has names that the stubs leave out
_current_graph_task_id = _torch._C._current_graph_task_id
_current_autograd_node = _torch._C._current_autograd_node
_execution_engine = _torch.autograd.Variable._execution_engine


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
                _pending(self.process)[future] = None
        _make_safe_for_backward(self.process, future)
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


class SimFuture(Future):  # type: ignore[misc]  # Any: torch's takes a type
    """A `torch.futures.Future` of one rank whose waits park."""

    __slots__ = ("_children", "_error", "_hurried", "_polling", "_process", "_settled", "_source")

    def __init__(self, process: SimProcess, source: Wait | None = None) -> None:
        super().__init__()
        self._process = process
        self._source = source  # the work or the future that completes it, if it is known
        self._children: list[Callable[[SimFuture], object]] = []
        self._settled = False
        self._polling: Polling | None = None  # set once the program has polled it before it was done
        self._error: BaseException | None = None
        self._hurried = False  # settled for C++ alone, which would have waited for it: the program has not

    def describe(self) -> str:
        """Its name in the deadlock report."""
        if self._source is None:
            return "wait for a future"
        said = self._source.describe()
        return said if isinstance(self._source, SimFuture) else f"wait for a future of {said}"

    def waits_for(self) -> Iterable[Task]:
        """The tasks that hold up what completes it; none if that is unknown, since any task may."""
        return () if self._source is None else self._source.waits_for()

    def done(self) -> bool:
        """True if it has a value or an exception. Polling it before that lets the other ranks run."""
        if not self._settled:
            if self._polling is None:
                self._polling = Polling()
            self._polling.ask(self._process.simulation)
            self._process.drain()
        return self._settled

    def wait(self) -> object:
        """Park until it is done; returns its value, or raises its exception."""
        self._settle()
        self._hurried = False
        self._seen()
        return super().wait()

    def value(self) -> object:
        """Return its value, or raise the exception with which it failed."""
        self._process.drain()
        self._seen()
        return super().value()

    def then(self, callback: Callable[[SimFuture], object]) -> SimFuture:
        """Return a future of the result of `callback`, which is called with this future when it is done.

        If it raises, the future fails with a RuntimeError that has its error as text, as torch's (see `_callbacks.py`).
        """
        child = SimFuture(self._process, self)
        at_once = self._settled and not self._hurried
        _pending(self._process)[child] = None

        def run(parent: SimFuture) -> None:
            try:
                value = callback(parent)
            except BaseException as error:
                child.set_exception(passed_on(error, at_once=at_once))
            else:
                child.set_result(value)

        self._when_done(run)
        return child

    def add_done_callback(self, callback: Callable[[SimFuture], object]) -> None:
        """Call `callback` with this future when it is done. If it raises, that is logged, as torch does."""
        process, at_once = self._process, self._settled and not self._hurried

        def run(future: SimFuture) -> None:
            try:
                callback(future)
            except BaseException as error:
                log_error(process, error, at_once=at_once)

        self._when_done(run)

    def set_result(self, result: object) -> None:
        """Complete it; on its rank's thread only."""
        super().set_result(result)
        self._run_callbacks()

    def set_exception(self, error: BaseException) -> None:
        """Fail it; on its rank's thread only."""
        self._error = error
        if not self._children:
            self._process.torch_state.failed.append(error)  # until the program reads it; see `_wait_for_futures`

        # Through C++: a value that raises when it is read, as in `torch.futures.Future.set_exception`, but for
        # every exception type.
        def raise_error(_: object) -> None:
            raise error

        super()._set_unwrap_func(raise_error)
        super().set_result(error)
        self._run_callbacks()

    def _when_done(self, callback: Callable[[SimFuture], object]) -> None:
        if self._settled:
            callback(self)
        else:
            self._children.append(callback)

    def _run_callbacks(self) -> None:
        self._settled = True
        self._source = None  # that work has a reference to this future
        process = self._process
        _pending(process).pop(self, None)
        if self._children:
            children, self._children = self._children, []
            for callback in children:
                callback(self)
        for task in process.tasks:
            if task.waiting is self:  # another thread of the rank
                process.simulation.wake(task)

    def _seen(self) -> None:
        state = self._process.torch_state
        if self._error is not None and state is not None:
            state.failed = [error for error in state.failed if error is not self._error]

    def _settle(self) -> None:
        process = self._process
        process.drain()
        while not self._settled:
            process.simulation.check()
            process.simulation.park(self)
            process.drain()


class _AllFutures:
    """A wait for every future of a rank."""

    def __init__(self, futures: dict[SimFuture, None]) -> None:
        self._futures = futures

    def describe(self) -> str:
        """The first future that is not done, and how many more."""
        more = f", and {len(self._futures) - 1} more" if len(self._futures) > 1 else ""
        return next(iter(self._futures)).describe() + more if self._futures else "wait for futures"

    def waits_for(self) -> Iterable[Task]:
        """The tasks that hold up any of them."""
        return dict.fromkeys(task for future in self._futures for task in future.waits_for())


def _pending(process: SimProcess) -> dict[SimFuture, None]:
    if process.torch_state is None:
        raise SimdistError("this future belongs to a rank that has ended")
    futures: dict[SimFuture, None] = process.torch_state.futures
    return futures


def _wait_for_futures(process: SimProcess) -> None:
    """Park until every future of the rank is done, including those that their callbacks create.

    Raises the first failed future's error, unless Python code has seen it: C++ would take the exception object for a
    value, and crash.
    """
    process.drain()
    futures = _pending(process)
    while futures:
        process.simulation.park(_AllFutures(futures))
        process.drain()
    failed = process.torch_state.failed
    if failed:
        error, process.torch_state.failed = failed[0], []
        raise error


def wait_for_future(process: SimProcess, future: Any) -> None:
    """Park until a future is done that is not a `SimFuture`; a thread of the rank or another future completes it."""
    if not isinstance(future, Future):
        _wait_for_futures(process)  # a C++ future: in most cases it follows ours
        if _torch._C.Future.done(future):
            return
    made = SimFuture(process)
    _torch._C.Future.add_done_callback(future, lambda _: made.set_result(None))
    made._settle()


def safe_for_backward(process: SimProcess, future: object) -> object:
    """Return a future on which C++ may wait at the end of backward, in place of the one from a program's hook."""
    if not isinstance(future, Future):
        return future  # torch refuses it
    if not isinstance(future, SimFuture):
        if _torch._C.Future.done(future):
            return future
        future = _following(process, future)
    _make_safe_for_backward(process, future)
    return future


def _following(process: SimProcess, future: torch.futures.Future[object]) -> SimFuture:
    """Return a future of ours that follows a future which a thread of the program completes."""
    made = SimFuture(process)
    _pending(process)[made] = None

    def follow(done: torch.futures.Future[object]) -> None:
        try:
            value = done.value()
        except BaseException as error:
            made.set_exception(error)
        else:
            made.set_result(value)

    future.add_done_callback(follow)
    return made


def _make_safe_for_backward(process: SimProcess, future: SimFuture) -> None:
    graph = _current_graph_task_id()
    if graph == -1:
        return
    if process.torch_state.waits_in_cxx or _current_autograd_node() is None:
        future._hurried = not future._settled
        future._settle()  # in the engine's final callbacks: too late for a callback of ours
    if future._error is not None:
        future._seen()
        raise future._error
    if not future._settled and process.torch_state.graph_task != graph:
        process.torch_state.graph_task = graph
        _execution_engine.queue_callback(lambda: _wait_for_futures(process))
