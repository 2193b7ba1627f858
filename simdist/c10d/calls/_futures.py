"""Futures of ranks, whose waits park.

A C++ future must be completed on its rank's own thread, since its callbacks run there.

C++ that waits for a pending future blocks the thread while it holds the baton, so the whole simulation would hang. DDP
does so at the end of backward. Therefore, when a program asks for a future inside an autograd graph task, a callback is
queued on the engine that parks until all futures of the rank are done; it runs before DDP's own. In the engine's final
callbacks, where DDP with `static_graph=True` works in its first iteration, a queued callback comes too late: there
`get_future` itself parks. The engine has no current node then. Inside a reentrant backward it has that of the outer
one; there `waits_in_cxx`, which counts calls of DDP, shows it. (Seen with torch 2.13.)


A failed future is in a cycle with its error, whose traceback has the frames that wait for it. Python does not see the
part of the cycle that is C++, so the futures of a rank are cut loose when its world is over (`forget`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from simdist.c10d.calls._callbacks import log_error, passed_on
from simdist.c10d.calls._polling import Polling
from simdist.errors import SimdistError
from simdist.kernel import Task, Wait
from simdist.process import SimProcess

__all__ = ["Future", "SimFuture", "make_safe_for_backward", "pending_futures", "safe_for_backward", "wait_for_future"]

Future: Any = torch.futures.Future
_ENDED = "this future belongs to a rank that has ended"

_torch: Any = torch  # has names that the stubs leave out
_current_graph_task_id = _torch._C._current_graph_task_id
_current_autograd_node = _torch._C._current_autograd_node
_execution_engine = _torch.autograd.Variable._execution_engine


class _Failure:
    """The value of a failed future in C++, which raises the error when it is read."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def __call__(self, _: object) -> None:
        if self.error is None:
            raise SimdistError(_ENDED)
        raise self.error


class SimFuture(Future):  # type: ignore[misc]  # Any: torch's takes a type
    """A `torch.futures.Future` of one rank whose waits park."""

    __slots__ = ("_children", "_failure", "_hurried", "_polling", "_process", "_settled", "_source")

    def __init__(self, process: SimProcess, source: Wait | None = None) -> None:
        super().__init__()
        self._process: SimProcess | None = process  # None once its world is over
        self._source = source  # the work or the future that completes it, if it is known
        self._children: list[Callable[[SimFuture], object]] = []
        self._settled = False
        self._polling: Polling | None = None  # set once the program has polled it before it was done
        self._failure: _Failure | None = None
        self._hurried = False  # settled for C++ alone, which would have waited for it: the program has not
        process.torch_state.made_futures.add(self)

    def forget(self) -> None:
        """Refer to nothing of its world, which is over. It keeps its value."""
        self._process = self._source = self._polling = None
        self._children.clear()
        if self._failure is not None:
            self._failure.error = None

    @property
    def error(self) -> BaseException | None:
        """The exception with which it has failed."""
        return None if self._failure is None else self._failure.error

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
        process = self._process
        if not self._settled and process is not None:
            if self._polling is None:
                self._polling = Polling()
            self._polling.ask(process.simulation)
            process.drain()
        return self._settled

    def wait(self) -> object:
        """Park until it is done; returns its value, or raises its exception."""
        self._settle()
        self._hurried = False
        self._seen()
        return super().wait()

    def value(self) -> object:
        """Return its value, or raise the exception with which it failed."""
        if self._process is not None:
            self._process.drain()
        self._seen()
        return super().value()

    def then(self, callback: Callable[[SimFuture], object]) -> SimFuture:
        """Return a future of the result of `callback`, which is called with this future when it is done.

        If it raises, the future fails with a RuntimeError that has its error as text, as torch's (see `_callbacks.py`).
        """
        process = self._of_rank()
        child = SimFuture(process, self)
        at_once = self._settled and not self._hurried
        pending_futures(process)[child] = None

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
        process, at_once = self._of_rank(), self._settled and not self._hurried

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
        if not self._children:
            self._of_rank().torch_state.failed.append(error)  # until the program reads it; see `_wait_for_futures`
        # Through C++: a value that raises when it is read, as in `torch.futures.Future.set_exception`, but for
        # every exception type.
        self._failure = _Failure(error)
        super()._set_unwrap_func(self._failure)
        super().set_result(self._failure)
        self._run_callbacks()

    def _when_done(self, callback: Callable[[SimFuture], object]) -> None:
        if self._settled:
            callback(self)
        else:
            self._children.append(callback)

    def _run_callbacks(self) -> None:
        self._settled = True
        self._source = None  # that work has a reference to this future
        process = self._of_rank()
        pending_futures(process).pop(self, None)
        if self._children:
            children, self._children = self._children, []
            for callback in children:
                callback(self)
        for task in process.tasks:
            if task.waiting is self:  # another thread of the rank
                process.simulation.wake(task)

    def _seen(self) -> None:
        error, state = self.error, None if self._process is None else self._process.torch_state
        if error is not None and state is not None:
            state.failed = [each for each in state.failed if each is not error]

    def _of_rank(self) -> SimProcess:
        if self._process is None:
            raise SimdistError(_ENDED)
        return self._process

    def _settle(self) -> None:
        if self._settled and self._process is None:
            return
        process = self._of_rank()
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


def pending_futures(process: SimProcess) -> dict[SimFuture, None]:
    if process.torch_state is None:
        raise SimdistError(_ENDED)
    futures: dict[SimFuture, None] = process.torch_state.futures
    return futures


def _wait_for_futures(process: SimProcess) -> None:
    """Park until every future of the rank is done, including those that their callbacks create.

    Raises the first failed future's error, unless Python code has seen it: C++ would take the exception object for a
    value, and crash.
    """
    process.drain()
    futures = pending_futures(process)
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
    make_safe_for_backward(process, future)
    return future


def _following(process: SimProcess, future: torch.futures.Future[object]) -> SimFuture:
    """Return a future of ours that follows a future which a thread of the program completes."""
    made = SimFuture(process)
    pending_futures(process)[made] = None

    def follow(done: torch.futures.Future[object]) -> None:
        try:
            value = done.value()
        except BaseException as error:
            made.set_exception(error)
        else:
            made.set_result(value)

    future.add_done_callback(follow)
    return made


def make_safe_for_backward(process: SimProcess, future: SimFuture) -> None:
    graph = _current_graph_task_id()
    if graph == -1:
        return
    if process.torch_state.waits_in_cxx or _current_autograd_node() is None:
        future._hurried = not future._settled
        future._settle()  # in the engine's final callbacks: too late for a callback of ours
    error = future.error
    if error is not None:
        future._seen()
        raise error
    if not future._settled and process.torch_state.graph_task != graph:
        process.torch_state.graph_task = graph
        _execution_engine.queue_callback(lambda: _wait_for_futures(process))
