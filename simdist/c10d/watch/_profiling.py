"""torch's profilers on a rank.

Kineto is one per process, and crashes when several threads start it at once. Torch's older profiler records per
thread, so on a rank `torch.autograd.profiler.profile` runs on the older one, and so does `torch.profiler.profile`,
which is built on it. The group's operations are added as Gloo's own events: one `gloo:<operation>` per call,
asynchronous, with input shapes. Groups over NCCL have theirs. Next to each of these, and for each wait, there is a
`record_param_comms` that shows in a trace what was called in which group. Traces have Kineto's format (torch 2.13), so
that tools which read its files can read these.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd import profiler, profiler_legacy, profiler_util

from simdist.c10d.calls._work import WorkIssued
from simdist.errors import UnsupportedError
from simdist.inside.torch import profiler_settings
from simdist.process import Patches, SimProcess, current_process

if TYPE_CHECKING:
    from simdist.c10d.calls._work import SimWork

__all__ = ["ProfiledCalls", "install"]

_autograd: Any = torch.autograd  # torch's stubs leave these out, or leave them untyped
_legacy: Any = profiler_legacy
_util: Any = profiler_util

_USER_SCOPE = 7  # at::RecordScope::USER_SCOPE: the scope of `record_function`, and of Gloo's events

# (name, shapes, called at, work)
ProfiledCall = tuple[str, list[list[int]], int, "SimWork"]
_PARAMETERS, _WAIT = "record_param_comms", "wait"
_FUNCTION_SCOPE = 0  # at::RecordScope::FUNCTION
# ProcessGroupNCCL's names in traces, where they differ from the names of its works.
_NAMES = {"all_reduce": "allreduce", "all_reduce_barrier": "barrier"}
_TYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


class ProfiledCalls:
    """The operations that a rank calls from now on, until `end`."""

    def __init__(self, process: SimProcess) -> None:
        self.calls: list[ProfiledCall] = []
        self.metadata: dict[str, object] = {}  # added to the trace
        self.parameters: list[tuple[int, list[list[int]], dict[str, object]]] = []  # of NCCL: when, shapes, values
        self.end = process.simulation.bus.listen(WorkIssued, self._on_issue)
        self._process = process

    def _on_issue(self, event: WorkIssued) -> None:
        work = event.work
        if work.process is self._process:
            shapes = [list(shape) for shape in event.shapes]
            now_ns = work.process.simulation.now_ns
            self.calls.append((event.name, shapes, now_ns, work))
            if work.member.communicator.backend.name == "nccl":
                self.parameters.append((now_ns, shapes, _parameters(event.name, work)))

    def note_wait(self, work: SimWork) -> None:
        """Note that the program waits for a work over NCCL."""
        self.parameters.append((self._process.simulation.now_ns, [], _parameters(_WAIT, work)))


def _parameters(name: str, work: SimWork) -> dict[str, object]:
    """The parameters of a call in a trace (`saveNcclMeta`)."""
    kind = name.partition(" ")[0]  # a message's peers follow the name
    communicator: Any = work.member.communicator
    known = vars(work)
    ranks = list(communicator.ranks)
    steps = {after - before for before, after in itertools.pairwise(ranks)}
    waits = kind == _WAIT
    dtype = work.outputs[0].dtype if work.outputs and not waits else torch.uint8
    return {
        "Collective name": _NAMES.get(kind, kind),
        "dtype": _TYPES.get(dtype, str(dtype).removeprefix("torch.").capitalize()),
        "In msg nelems": 0 if waits else known["numel_in"],
        "Out msg nelems": 0 if waits else known["numel_out"],
        "Group size": len(ranks),
        "Global rank start": ranks[0],
        "Global rank stride": (steps.pop() if len(steps) == 1 else -1) if steps else 0,
        "Process Group Name": communicator.name,
        "Process Group Description": getattr(known["group"], "group_desc", ""),
        "Process Group Ranks": str(ranks),
        "Rank": work.member.rank,
        "Seq": work.sequence,
    }


def install(patches: Patches) -> None:
    """Replace the functions that start, stop and read Kineto in torch's profiler class."""
    patches.wrap(profiler.profile, "_prepare_trace", _prepare)
    patches.wrap(profiler.profile, "_start_trace", _start)
    patches.wrap(profiler.profile, "__exit__", _exit)
    patches.wrap(_autograd, "_add_metadata_json", _add_metadata)


def _prepare(original: Callable[[profiler.profile], None]) -> Callable[[profiler.profile], None]:
    def prepare(self: profiler.profile) -> None:
        if current_process() is None:
            original(self)
        else:
            self.entered = True

    return prepare


def _start(original: Callable[[profiler.profile], None]) -> Callable[[profiler.profile], None]:
    def start(self: profiler.profile) -> None:
        process = current_process()
        if process is None:
            original(self)
            return
        self.entered = True
        state = process.torch_state
        if state.profile is not None:
            state.profile.end()
        state.profile = ProfiledCalls(process)
        legacy = _autograd.ProfilerConfig(
            _autograd.ProfilerState.CPU,
            self.record_shapes,
            self.profile_memory,
            self.with_stack,
            self.with_flops,
            self.with_modules,
            profiler_settings(),
        )
        _autograd._enable_profiler_legacy(legacy)

    return start


def _add_metadata(original: Callable[[str, str], None]) -> Callable[[str, str], None]:
    def add(key: str, value: str) -> None:
        process = current_process()
        if process is None:
            original(key, value)
        elif process.torch_state.profile is not None:
            process.torch_state.profile.metadata[key] = json.loads(value)

    return add


def _exit(original: Callable[..., object]) -> Callable[..., object]:
    def leave(self: Any, *exception: object) -> object:
        process = current_process()
        if process is None or not self.enabled:
            return original(self, *exception)
        records = _autograd._disable_profiler_legacy()
        state = process.torch_state
        calls: list[ProfiledCall] = []
        metadata: dict[str, object] = {}
        parameters: list[tuple[int, list[list[int]], dict[str, object]]] = []
        if state.profile is not None:
            state.profile.end()
            calls, metadata, parameters = state.profile.calls, state.profile.metadata, state.profile.parameters
            state.profile = None
        events = _legacy._parse_legacy_records(records)
        now_ns = process.simulation.now_ns
        first = max((event.id for event in events), default=0) + 1
        for number, (name, shapes, called_ns, work) in enumerate(calls, first):
            backend = work.member.communicator.backend.name
            events.append(
                _util.FunctionEvent(
                    id=number,
                    name=f"{backend}:{name}",
                    thread=0,
                    start_us=called_ns / 1e3,
                    end_us=now_ns / 1e3,
                    input_shapes=shapes,
                    scope=_USER_SCOPE,
                    is_async=True,
                    stack=[],  # averages of events need it
                )
            )
        reported: dict[int, dict[str, object]] = {}
        for number, (called_ns, shapes, what) in enumerate(parameters, first + len(calls)):
            reported[number] = what
            events.append(
                _util.FunctionEvent(
                    id=number,
                    name=_PARAMETERS,
                    thread=0,
                    start_us=called_ns / 1e3,
                    end_us=called_ns / 1e3,
                    input_shapes=shapes,
                    scope=_FUNCTION_SCOPE,
                    stack=[],
                )
            )
        self._function_events = _util.EventList(
            events, use_device=None, profile_memory=self.profile_memory, with_flops=self.with_flops
        )
        self._function_events._build_tree()
        self._needs_processing = False
        self.kineto_results = _Results(process, self._function_events, metadata, reported)
        return False

    return leave


class _Results:
    """Answers what torch reads from Kineto's results afterwards."""

    def __init__(
        self, process: SimProcess, events: Any, metadata: dict[str, object], reported: dict[int, dict[str, object]]
    ) -> None:
        self._events = events
        self._reported = reported  # of some events, by number
        self._metadata = metadata
        self._rank, self._pid = process.rank, process.pid
        now_ns = process.simulation.now_ns
        self._base_ns = process.calendar_ns(now_ns) - now_ns

    def events(self) -> list[object]:
        return []

    def save(self, path: str) -> None:
        place = {"pid": self._pid, "tid": self._pid}
        names = {"process_name": {"name": "python"}, "process_labels": {"labels": "CPU"}}
        events = [{"ph": "M", "name": name, "ts": 0.0, **place, "args": args} for name, args in names.items()]
        for number, event in enumerate(self._events):
            args = {"External id": event.id, "Record function id": 0, "Ev Idx": number}
            if event.input_shapes:
                args["Input Dims"] = event.input_shapes
            args |= self._reported.get(event.id, {})
            kind = "user_annotation" if event.scope == _USER_SCOPE else "cpu_op"
            when = {"ts": event.time_range.start, "dur": event.time_range.elapsed_us()}
            events.append({"ph": "X", "cat": kind, "name": event.name, **place, **when, "args": args})
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [],
            **self._metadata,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self._base_ns,
            "traceEvents": events,
            "traceName": path,
        }
        Path(path).write_text(json.dumps(trace, indent=2))

    def experimental_event_tree(self) -> NoReturn:
        raise UnsupportedError(
            f"rank {self._rank}: Kineto's tree of events, which export_memory_timeline and torch's pattern matchers "
            "read, is not simulated; key_averages() has the memory of each operator"
        )

    def trace_start_ns(self) -> int:
        return 0
