"""The times that DDP logs, for modules on virtual devices.

C++ measures by a timer that a CUDA build registers for its devices. Without one it stops, after it has set all other
values (torch 2.13). Here the same five moments are those of the current stream, in virtual time: when DDP begins a pass
in Python, and when works are issued in backward. As with a clock that a rank reads, each moment is later than the one
before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from simdist.c10d.calls._work import WorkIssued
from simdist.device import Mark, Streams, devices_of_this_process
from simdist.inside.torch import backward_task, c10d_bindings, pass_by_subclasses
from simdist.process import Patches, SimProcess, current_process

if TYPE_CHECKING:
    from torch import Tensor

    from simdist.c10d.calls._work import SimWork

__all__ = ["Times", "install"]

_FIRST = 10  # iterations that are always measured
_RATE = 100  # after them, one iteration in this many (`kDDPRuntimeLoggingSampleRate`)
_EVENTS = ("forward_start", "backward_start", "comm_start", "compute_end", "comm_end")
_DURATIONS = {
    "forward_compute_time": ("forward_start", "backward_start"),
    "backward_compute_time": ("backward_start", "compute_end"),
    "backward_comm_time": ("comm_start", "comm_end"),
    "backward_compute_comm_overlap_time": ("comm_start", "compute_end"),
}
_TIMES = {
    "forward_compute_time_start": "forward_start",
    "backward_compute_time_start": "backward_start",
    "backward_comm_time_start": "comm_start",
    "backward_compute_time_end": "compute_end",
    "backward_comm_time_end": "comm_end",
}


def _streams() -> Streams:
    return devices_of_this_process().streams


class Times:
    """The times of one module, on one rank."""

    def __init__(self, process: SimProcess, index: int) -> None:
        self.rate = _RATE
        self.values: dict[str, int] = {}  # the logged values
        self._process = process
        self._index = index
        self._iterations = self._measured = 0
        self._marks: dict[str, tuple[Mark, int]] = {}  # by event, and its time on the host
        self._works: list[SimWork] = []
        self._unlisten: Callable[[], None] | None = None

    @property
    def is_sampled(self) -> bool:
        """True if this iteration is measured."""
        return self._iterations > 0 and (self._iterations <= _FIRST or self._iterations % self.rate == 0)

    def begin_forward(self) -> None:
        """Note that a forward pass begins."""
        self._iterations += 1
        self._stop()
        self._marks.clear()
        if self.is_sampled:
            self._record("forward_start")

    def begin_backward(self) -> None:
        """Note that the next pass is a backward one."""
        if not self.is_sampled:
            return
        self._record("backward_start")
        self._stop()
        self._unlisten = self._process.simulation.bus.listen(WorkIssued, self._on_issue)

    def _on_issue(self, event: WorkIssued) -> None:
        if event.work.process is not self._process or backward_task() == -1:
            return
        if not self._works:
            self._record("comm_start")
        self._record("compute_end")  # of the gradients that it sums: the last one counts
        self._works.append(event.work)

    def _record(self, name: str) -> None:
        streams = _streams()
        mark = streams.mark(self._index, streams.current(self._index))
        self._marks[name] = mark, self._process.calendar_ns(self._process.simulation.now_ns)

    def _stop(self) -> None:
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def forget(self) -> None:
        """Drop what it measures."""
        self._stop()
        self._works.clear()
        self._marks.clear()

    def log(self) -> None:
        """Compute the times of the last iteration; waits for its work on streams, as the timer of CUDA does."""
        self._stop()
        works, self._works = self._works, []
        self.values.update(dict.fromkeys((*_DURATIONS, *_TIMES), 0))
        self._measured += 1
        if works:
            streams = _streams()
            for work in works:
                if hasattr(work, "end"):
                    streams.wait(self._index, streams.current(self._index), work.end)
            self._record("comm_end")
        shown: dict[str, int] = {}
        last = -1
        for name in _EVENTS:
            if name in self._marks:
                mark, host_ns = self._marks[name]
                _streams().wait_for(mark, heeds_errors=False)
                last = shown[name] = max(mark.at_ns or 0, last + 1)
                self._marks[name] = mark, host_ns
        for name, (begin, end) in _DURATIONS.items():
            if begin in shown and end in shown:
                taken = self.values[name] = shown[end] - shown[begin]
                before = self.values.get(f"avg_{name}", 0)
                self.values[f"avg_{name}"] = (taken + before * (self._measured - 1)) // self._measured
        for name, event in _TIMES.items():
            if event in self._marks:
                self.values[name] = self._marks[event][1]


_measured: weakref.WeakSet[Times] = weakref.WeakSet()


def install(patches: Patches) -> None:
    """Measure the times that C++ cannot."""
    patches.wrap(c10d_bindings.Reducer, "prepare_for_forward", _begins(Times.begin_forward))
    patches.wrap(c10d_bindings.Reducer, "prepare_for_backward", _begins(Times.begin_backward))
    patches.wrap(c10d_bindings.Reducer, "_set_ddp_runtime_logging_sample_rate", _sample)
    patches.wrap(c10d_bindings.Logger, "set_runtime_stats_and_log", _without_timer)
    patches.wrap(DistributedDataParallel, "_ddp_init_helper", _watching)
    patches.wrap(DistributedDataParallel, "_get_ddp_logging_data", _logged)
    patches.on_undo(_forget_works)


def _forget_works() -> None:
    """Drop the gradients of backward passes that no forward pass followed: the world has ended."""
    for times in list(_measured):
        times.forget()


def _watching(original: Callable[..., None]) -> Callable[..., None]:
    def init(model: DistributedDataParallel, parameters: Sequence[Tensor], *args: object, **kwargs: object) -> None:
        original(model, parameters, *args, **kwargs)
        process = current_process()
        if process is None or not parameters:
            return
        with pass_by_subclasses():  # a distributed parameter does not report its device
            index = parameters[0].get_device()
        if index < 0:
            return
        state = process.torch_state
        if state.ddp_times is None:
            state.ddp_times = weakref.WeakKeyDictionary()
        times = Times(process, index)
        _measured.add(times)
        state.ddp_times[model.reducer] = state.ddp_times[model.logger] = times

    return init


def _logged(
    original: Callable[[DistributedDataParallel], dict[str, object]],
) -> Callable[[DistributedDataParallel], dict[str, object]]:
    def logging_data(model: DistributedDataParallel) -> dict[str, object]:
        times = _times_of(model.logger)
        return original(model) | ({} if times is None else times.values)

    return logging_data


def _times_of(owner: object) -> Times | None:
    """The times of a reducer or a logger of the calling rank; None if C++ measures them."""
    process = current_process()
    known = None if process is None else process.torch_state.ddp_times
    return None if known is None else known.get(owner)


def _begins(begin: Callable[[Times], None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def prepare(reducer: object, *args: object) -> None:
            original(reducer, *args)
            times = _times_of(reducer)
            if times is not None:
                begin(times)

        return prepare

    return make


def _sample(original: Callable[[object, int], None]) -> Callable[[object, int], None]:
    def set_rate(reducer: object, rate: int) -> None:
        original(reducer, rate)
        times = _times_of(reducer)
        if times is not None:
            times.rate = rate

    return set_rate


def _without_timer(original: Callable[[object], None]) -> Callable[[object], None]:
    def log(logger: object) -> None:
        times = _times_of(logger)
        if times is None:
            original(logger)
        elif times.is_sampled:
            try:
                original(logger)
            except RuntimeError as error:
                if "timer_" not in str(error):
                    raise
                times.log()

    return log
