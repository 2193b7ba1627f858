"""The work of an operation that ends on a stream, and its future.

Waiting for such a work makes the current stream wait for it; the host goes on. So its future is done at once, like
a CUDA future, and reads of its value and its callbacks are ordered on streams as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch

from simdist.c10d.calls._callbacks import passed_on
from simdist.c10d.calls._futures import Future, SimFuture
from simdist.c10d.calls._work import SimWork, WorkWaited
from simdist.device import Mark, Streams, memory_of, select_stream
from simdist.inside.torch import backward_engine, backward_node, backward_task
from simdist.kernel import Task
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.engine._strategies import StreamFailure

__all__ = ["StreamFuture", "StreamWork"]

_NO_TIMEOUT = timedelta(0)


class StreamWork(SimWork):
    """One call of one rank: `end` is the moment on its stream at which all of it is over."""

    joins = False

    index: int  # of the device
    end: Mark
    streams: Streams
    issued_ns: int
    timeout_ns: int
    ended_ns = 0  # once it is done
    aborted = False  # it is over because its connection was aborted
    host_limit_ns = 0  # the limit of every wait on the host, if the host waits at all
    blocks = False  # the host waits for it too: a barrier
    in_one = False  # its future has all outputs in one tensor
    waited = False

    def begin(self, index: int, streams: Streams, end: Mark, issued_ns: int, timeout_ns: int) -> None:
        """Set its fields when it is issued; it is over at `end`."""
        self.index, self.streams, self.end = index, streams, end
        self.issued_ns, self.timeout_ns = issued_ns, timeout_ns
        if end.at_ns is None:  # hot
            end.callbacks.append(self._ended)
        else:
            self._ended()

    def _ended(self) -> None:
        simulation = self.process.simulation
        if self.end.at_ns is not None and self.end.at_ns > simulation.now_ns:
            simulation.call_at(self.end.at_ns, self._ended)
            return
        self.ended_ns = simulation.now_ns
        self.member.pending.pop(self, None)
        self.finish()
        if self.waited and self.process.simulation.bus.heard:
            self._report()

    def _report(self) -> None:
        bus = self.process.simulation.bus
        if bus.hears(WorkWaited):
            bus.report(WorkWaited(self))

    def left(self) -> list[torch.Tensor]:
        """Its outputs, as they lie in memory."""
        return [memory_of(tensor.data) for tensor in self.outputs]

    def waits_for(self) -> Iterator[Task]:
        """The tasks of the ranks that have not done their part."""
        cause = self.end.cause
        if cause is not None and self.end.at_ns is None:
            yield from cause.waits_for()

    # -- torch's interface ---------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Let the current stream wait for it; the host only waits for a barrier, or if there is a timeout.

        Raises:
            DistBackendError: `timeout` passed first, in the backend's words.
        """
        process = self.process
        if process.torch_state.unwaited:
            process.torch_state.unwaited.pop(self, None)
        if process.torch_state.profile is not None:
            process.torch_state.profile.note_wait(self)
        process.simulation.check()
        self.synchronize()
        limit_ns = round(timeout.total_seconds() * 1e9) or self.host_limit_ns
        if limit_ns > 0:
            self._wait_on_host(limit_ns)
        elif self.blocks and not self._has_failed():
            self.streams.synchronize(self.index, self.streams.current(self.index))
        self.waited = True
        if self.done:
            self._report()
        if self.streams.error is not None:
            raise self.streams.error
        self.raise_error()
        return True

    def check(self) -> None:
        """Check for errors outside the streams, and set `error` to what is found."""

    def _has_failed(self) -> bool:
        self.check()
        return self.error is not None

    def raise_error(self) -> None:
        """Raise its error, if it has one."""
        if self.error is not None:
            raise self.error

    def _wait_on_host(self, limit_ns: int) -> None:
        simulation = self.process.simulation
        failure = cast("StreamFailure", self.member.communicator.backend.failure)
        deadline_ns = max(simulation.now_ns, self.issued_ns + limit_ns) + failure.late_ns
        while not self.done and not self._has_failed():
            if not simulation.park(self, deadline_ns) and not self.done:
                raise failure.wait_timed_out(self, limit_ns)
            self.process.drain()

    def synchronize(self) -> None:
        """Let the current stream wait for it."""
        self.streams.wait(self.index, self.streams.current(self.index), self.end)

    def block_current_stream(self) -> None:
        """Like `synchronize`."""
        self.synchronize()

    def get_future(self) -> StreamFuture:
        """Its future, which is done; its values are there when the streams have reached its end."""
        self.process.torch_state.unwaited.pop(self, None)
        if self.future is None:
            self.waited = True
            self.future = StreamFuture(self.process, self.index, self.streams, self.end)
            self.future.in_one = self.in_one
            self.future.set_result(self.outputs)
        assert isinstance(self.future, StreamFuture)
        self.future.join_after_backward()
        return self.future

    def finish(self) -> None:
        """End it: wake the tasks that wait, and call the callbacks."""
        self.done = True
        process = self.process
        for task in process.tasks:
            if task.waiting is self:
                process.simulation.wake(task)
        for callback in self.after or ():
            callback()


class StreamFuture(SimFuture):
    """A future of a device: done, while its operation may still run on a stream."""

    in_one = False  # it shows its tensors as one, with one more dimension

    def __init__(self, process: SimProcess, index: int, streams: Streams, mark: Mark) -> None:
        super().__init__(process)
        self._index, self._streams, self._mark = index, streams, mark

    def wait(self) -> object:
        """Return its value; the current stream waits for it."""
        self._join()
        return self._shown(Future.wait(self))

    def value(self) -> object:
        """Like `wait`."""
        self._join()
        return self._shown(super().value())

    def _shown(self, value: Any) -> object:
        return [torch.stack(value)] if self.in_one else value

    def then(self, callback: Callable[[SimFuture], object]) -> StreamFuture:
        """Call `callback` now, on a stream that waits for this one; returns a future of its result."""
        index, streams = self._index, self._streams
        before, side = streams.current(index), streams.side(index)
        child = StreamFuture(self._of_rank(), index, streams, self._mark)
        select_stream(index, side)
        try:
            streams.wait(index, side, self._mark)
            value = callback(self)
        except BaseException as error:
            child.set_exception(passed_on(error, at_once=True))
        else:
            child._mark = streams.mark(index, side)
            child.set_result(value)
            child.join_after_backward()
        finally:
            select_stream(index, before)
        return child

    def join_after_backward(self) -> None:
        """In backward, let the current stream wait for it before the engine's last callbacks: DDP works there.

        There C++ waits for futures by a method that is not virtual. It makes a stream wait only for futures with
        devices, and these have none.
        """
        graph = backward_task()
        if graph == -1:
            return
        if backward_node() is None:  # in one of those callbacks
            self._join()
            return
        known = self._streams.of_backward
        if known is None or known[0] != graph:
            known = self._streams.of_backward = graph, []
            backward_engine.queue_callback(functools.partial(_join_all, self._streams, known[1]))
        known[1].append(self._join)

    def _join(self) -> None:
        self._seen()
        self._streams.wait(self._index, self._streams.current(self._index), self._mark)


def _join_all(streams: Streams, joins: list[Callable[[], None]]) -> None:
    streams.of_backward = None
    for join in joins:
        join()
