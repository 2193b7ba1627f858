"""Streams and events: work that is enqueued on a stream ends in virtual time, and only a caller that asks waits for it.

An operation computes at once, or as soon as its data is there (`_deferred`); its *time* does not pass for the rank that
enqueues it. Each stream of a process has the moment at which its last work ends: a virtual time, or a `Mark` while that
depends on other ranks. Waiting for an event or for another stream moves the moment on, without parking; `synchronize`,
and every call that brings values to the host, parks until it.

Operations that state a duration take time (`torch.cuda._sleep`), and collectives that are ordered on streams do, by
`Streams.mark` and `Streams.end_with`. Where there is a model of computing, each kernel is given to `Streams.enqueue`.

The classes are torch's own, `torch.cuda.Stream` and `Event`, on other bases: the module is executed again with the
bases that a CUDA build would have.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import torch

from simdist.device._marks import Mark, after, latest
from simdist.device._torch_core import core
from simdist.errors import UnsupportedError
from simdist.inside.torch import backward_engine, backward_node, backward_task, begin_cuda, core_names
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.device._races import Races
    from simdist.device.kernels._deferred import Deferred

__all__ = ["CYCLES_PER_SECOND", "EventBase", "StreamBase", "Streams", "of_this_process", "torch_streams"]

_CUDA = 1
_RAISES = 2  # a mode: 1 warns
_WAITS = "called a synchronizing CUDA operation"  # c10/cuda/CUDAFunctions.cpp, 2.13
_GREATEST_PRIORITY = -3  # of those that a device has, torch has pools for four
CYCLES_PER_SECOND = 1_755_000_000  # of the clock that `_sleep` counts


class Streams:
    """The streams of one process, each with when it will be done.

    The end of a stream's work is a time in `_ready_ns`; or it depends on others, and `_tails` has its mark until it is
    known.
    """

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.current: Callable[[int], int] = core().stream
        """The number of the calling thread's current stream of a device."""
        self._ready_ns: dict[tuple[int, int], int] = {}  # by device and number
        self._tails: dict[tuple[int, int], Mark] = {}  # likewise
        self._made: dict[int, int] = {}  # how many apart from the default one, by device
        self._sides: dict[int, int] = {}
        self.races: Races | None = None  # in a strict world
        self.sync_debug_mode = 0  # of `torch.cuda.set_sync_debug_mode`
        self.error: BaseException | None = None  # raised by every wait for a stream from now on
        self.failure: Callable[[], BaseException] | None = None  # makes what every call raises, once devices are broken
        self.shortages = 0  # allocations that fail before one succeeds again
        self.of_backward: tuple[int, list[Callable[[], None]]] | None = (
            None  # number of a backward pass, what it ends with
        )
        self._backwards: dict[int, dict[tuple[int, int], None]] = {}  # by running pass: the streams that it ran on
        self._node: tuple[object, dict[int, int]] | None = None  # one that selects streams, and those it began on
        self.kept: dict[Deferred, None] = {}  # kernels that wait for their data, see `_deferred`

    @property
    def process(self) -> SimProcess:
        """The process that owns the streams."""
        return self._process

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self._process.simulation.now_ns

    def fail(self, failure: Callable[[], BaseException], devices: Iterable[int]) -> None:
        """Break the devices: every call that looks, and every wait, raises what `failure` makes from now on."""
        self.failure, self.error = failure, failure()
        for index in devices:  # a wait on a stream without work would not look
            self._ready_ns.setdefault((index, 0), self.now_ns)
        self._process.wake()

    def new(self, index: int) -> int:
        """Return the number of a new stream of a device."""
        number = self._made[index] = self._made.get(index, 0) + 1
        return number

    def side(self, index: int) -> int:
        """Return the number of the stream of a device on which callbacks of futures run."""
        known = self._sides.get(index)
        if known is None:
            known = self._sides[index] = self.new(index)
        return known

    def mark(self, index: int, number: int) -> Mark:
        """Return when a stream will be done with its present work; now, if it is."""
        tail = self._tails.get((index, number))
        if tail is None:
            tail = Mark(max(self._process.simulation.now_ns, self._ready_ns.get((index, number), 0)))
        if self.races is not None:
            tail = after(tail, 0)  # a mark of its own: the stream may get more work that takes no time
            tail.clock = self.races.known_to((index, number))
        return tail

    def enqueue(self, index: int, number: int, duration_ns: int) -> None:
        """Give a stream work of this duration."""
        self.end_with(index, number, after(self.mark(index, number), duration_ns))

    def wait(self, index: int, number: int, until: Mark) -> None:
        """Let the next work of a stream begin at `until` at the earliest."""
        now_ns = self._process.simulation.now_ns
        if self.races is not None:
            self.races.order((index, number), until.clock)
        if until.at_ns is not None and until.at_ns <= now_ns:
            return
        self.end_with(index, number, latest([self.mark(index, number), until]))

    def end_with(self, index: int, number: int, mark: Mark) -> None:
        """Give a stream work that begins after all its present work, and ends at `mark`."""
        key = index, number
        if mark.at_ns is not None:
            self._tails.pop(key, None)
            self._ready_ns[key] = mark.at_ns
            return
        self._tails[key] = mark

        def settled() -> None:
            if self._tails.get(key) is mark:
                del self._tails[key]
                self._ready_ns[key] = mark.at_ns or 0

        mark.callbacks.append(settled)

    def run_backward_on(self, index: int, number: int) -> None:
        """Note a kernel of a stream: if a backward pass gives it, its caller's stream waits for this one at the end.

        Torch does so in C++ (its notes on CUDA, "Stream semantics of backward passes"), before it calls the callbacks
        that were queued for the end.
        """
        graph, node = backward_task(), backward_node()
        if graph == -1 or node is None:
            self._node = None  # a pass that raised has left its node, and with it what that keeps
            return
        if self._node is not None and self._node[0] is node:
            number = self._node[1].get(index, number)
        known = self._backwards.get(graph)
        if known is None:
            known = self._backwards[graph] = {}
            backward_engine.queue_callback(functools.partial(self._end_backward, graph))
        known[index, number] = None

    def select(self, index: int, number: int) -> None:
        """Make a stream the current one for a program; backward's caller does not wait for one that a hook selects."""
        node = backward_node()
        if node is not None:
            if self._node is None or self._node[0] is not node:
                self._node = node, {}
            self._node[1].setdefault(index, self.current(index))
        else:
            self._node = None
        core().select_stream(index, number)

    def _end_backward(self, graph: int) -> None:
        self._node = None
        for index, number in self._backwards.pop(graph):
            if number != self.current(index):
                self.wait(index, self.current(index), self.mark(index, number))

    def is_ready(self, index: int, number: int) -> bool:
        """True if a stream is done with all its work."""
        key = index, number
        return key not in self._tails and self._ready_ns.get(key, 0) <= self._process.simulation.now_ns

    def busy_devices(self) -> set[int]:
        """The devices of which a stream has work."""
        return {index for index, number in {**self._ready_ns, **self._tails} if not self.is_ready(index, number)}

    def synchronize(self, index: int, number: int) -> None:
        """Park until a stream is done with its present work."""
        self.wait_for(self.mark(index, number))

    def synchronize_device(self, index: int) -> None:
        """Park until all streams of a device are done with their present work."""
        if self.races is not None:
            self.races.order_host_after_all(index)
        if self._ready_ns or self._tails:
            marks = []
            for device, number in {**self._ready_ns, **self._tails}:
                if device == index:
                    marks.append(self.mark(device, number))
            self.wait_for(marks[0] if len(marks) == 1 else latest(marks))

    def synchronize_current(self, index: int) -> None:
        """Park until the current stream of a device is done, because a value is wanted on the host. Hot."""
        if self._ready_ns or self._tails or self.races is not None:
            self.synchronize(index, self.current(index))

    def report_wait(self) -> None:
        """Warn that the host waits, or raise, as `torch.cuda.set_sync_debug_mode` demands.

        Raises:
            RuntimeError: the mode is "error".
        """
        if self.sync_debug_mode == _RAISES:
            raise RuntimeError(_WAITS)
        if self.sync_debug_mode:
            warnings.warn(_WAITS, UserWarning, stacklevel=3)

    def wait_for(self, mark: Mark, *, heeds_errors: bool = True) -> None:
        """Park until a moment has come.

        Raises:
            BaseException: the error of broken devices, if `heeds_errors`; or one that concerns the program meanwhile.
        """
        process = self._process
        if self.races is not None:
            self.races.order_host(mark.clock)
        if mark.at_ns is None:
            mark.callbacks.append(process.wake)
            while mark.at_ns is None and not (heeds_errors and self.error is not None):
                process.simulation.park(mark)
                if process.inbox or process.pending:  # hot
                    process.drain()
        if mark.at_ns is not None and mark.at_ns > process.simulation.now_ns:
            self.sleep_until(mark.at_ns)
        if heeds_errors and self.error is not None:
            raise self.error

    def settle(self) -> None:
        """Park until all devices are done with their present work. This orders nothing; errors stay where they are."""
        races, self.races = self.races, None
        try:
            for index, number in {**self._ready_ns, **self._tails}:
                self.wait_for(self.mark(index, number))
        except Exception:  # the program gets it by a query
            pass
        finally:
            self.races = races

    def sleep_until(self, time_ns: int) -> None:
        """Park until a time; does nothing if it has passed."""
        simulation = self._process.simulation
        if time_ns > simulation.now_ns:
            simulation.sleep(time_ns - simulation.now_ns)


def of_this_process() -> Streams:
    """Return the streams of the calling process, for what its program does with streams and events.

    Raises:
        BaseException: its devices are broken.
    """
    from simdist.device._state import present  # which knows every process's

    streams = present().streams
    if streams.failure is not None:
        raise streams.failure()
    return streams


class StreamBase(torch.Stream):
    """The counterpart of `torch._C._CudaStreamBase` of a CUDA build."""

    def __new__(cls, priority: int = 0, **place: int) -> StreamBase:
        """A new stream of the current device, or a handle of the one that is named."""
        if "stream_id" in place:
            index, number = place["device_index"], place["stream_id"]
        else:
            begin_cuda()
            index = core().device().index
            number = of_this_process().new(index)
        made: StreamBase = super().__new__(cls, stream_id=number, device_index=index, device_type=_CUDA)
        if priority > 0:
            raise RuntimeError(f"Expected cuda stream priority to be less than or equal to 0, got {priority}")
        made._priority = max(_GREATEST_PRIORITY, priority)
        made._entered = []
        return made

    def __init__(self, *_: object, **__: object) -> None: ...

    _priority: int
    _entered: list[Any]  # contexts in which it is the current stream

    @property
    def cuda_stream(self) -> int:
        """Its handle; 0 is the default stream's."""
        return self.stream_id

    @property
    def priority(self) -> int:
        """Its priority, lower ones first."""
        return self._priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority for which torch has streams."""
        return 0, _GREATEST_PRIORITY

    def is_capturing(self) -> bool:
        """False: there are no graphs."""
        return False

    def query(self) -> bool:
        """True if the stream is done with all its work."""
        return of_this_process().is_ready(self.device_index, self.stream_id)

    def synchronize(self) -> None:
        """Park until the stream is done with its present work."""
        of_this_process().report_wait()
        of_this_process().synchronize(self.device_index, self.stream_id)

    def __enter__(self) -> Self:
        select: Any = torch.cuda.stream
        self._entered.append(select(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(*error)


class EventBase(torch.Event):
    """The counterpart of `torch._C._CudaEventBase` of a CUDA build."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> EventBase:
        """An event that is not recorded yet."""
        made: EventBase = super().__new__(cls, device="cuda", enable_timing=enable_timing)
        made._timed = enable_timing
        made._mark = None
        made._index = -1
        return made

    def __init__(self, *_: object, **__: object) -> None: ...

    _timed: bool
    _mark: Mark | None  # when what it stands for will be done
    _index: int

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The device of the stream on which it was recorded."""
        return None if self._index < 0 else torch.device("cuda", self._index)

    @property
    def cuda_event(self) -> int:
        """A handle; 0 until it is recorded."""
        return 0 if self._mark is None else 1

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the work that a stream has been given up to now."""
        stream = torch.cuda.current_stream() if stream is None else stream
        if self._index >= 0 and self._index != stream.device_index:
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device {stream.device_index}."
            )
        self._index = stream.device_index
        self._mark = of_this_process().mark(stream.device_index, stream.stream_id)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let a stream wait for the marked work; does not park."""
        stream = torch.cuda.current_stream() if stream is None else stream
        if self._mark is not None:
            of_this_process().wait(stream.device_index, stream.stream_id, self._mark)

    def query(self) -> bool:
        """True if the marked work is done."""
        mark = self._mark
        return mark is None or (mark.at_ns is not None and mark.at_ns <= of_this_process().now_ns)

    def synchronize(self) -> None:
        """Park until the marked work is done."""
        if self._mark is not None:
            of_this_process().wait_for(self._mark)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from the end of this event's work to the end of the other's.

        Raises:
            ValueError: one of them was made without timing, or is not recorded.
            RuntimeError: the work of one of them is not done, or they are of two devices.
        """
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._mark is None or end_event._mark is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._index != end_event._index:
            from simdist.device._state import cuda_error

            raise cuda_error("handle")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return float(end_event._mark.at_ns - self._mark.at_ns) / 1e6

    def ipc_handle(self) -> bytes:
        """Refuses: there is none.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("events of virtual devices can't be sent to other processes")


@functools.cache
def torch_streams() -> ModuleType:
    """Return the module `torch.cuda.streams` on our bases."""
    spec = importlib.util.find_spec("torch.cuda.streams")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    names = core_names
    before = {name: names[name] for name in ("_CudaStreamBase", "_CudaEventBase")}
    names.update(_CudaStreamBase=StreamBase, _CudaEventBase=EventBase)
    try:
        spec.loader.exec_module(module)
    finally:
        names.update(before)
    return module
