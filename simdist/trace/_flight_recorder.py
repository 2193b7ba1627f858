"""A run as torch's Flight Recorder dumps: one file per rank, for torch's own analyser.

    simdist run hang.toml --flight-recorder dumps && torchfrtrace dumps

The format is that of torch 2.13 (see `simdist.records`), entry by entry as its Gloo writes it: sizes, types, names.
Real Gloo leaves out data that the analyser needs; these are written as NCCL has them: the ranks of a group, whether an
operation completed, and messages. The analyser expects every rank of a group in everything that happens in it, so the
messages from one rank to another become a group of those two.

A dump holds a rank's last life; its clock is virtual.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simdist.c10d.calls import MESSAGES, TABLE
from simdist.records import ELEMENT_BYTES, SCALAR_TYPES, flight_dump, flight_entry, flight_group, flight_status
from simdist.result import Span
from simdist.trace._messages import Groups
from simdist.trace._trace import Trace

__all__ = ["Frames", "flight_recorder_dumps", "write_flight_recorder"]

Frames = Mapping[tuple[int, int, str, str, str], Sequence[tuple[str, int, str]]]
"""(time_ns, rank, group, op, seq) of a call -> its stack, innermost first: file, line, function."""

_PREFIX = "nccl_trace_rank_"  # the name under which torch itself writes them, whatever the backend
# Operations that are other operations' calls on other tensors: the analyser only knows them by these names.
_NAMES = {row.name: row.aliases[0] for row in TABLE if not row.methods}

Sizes = list[list[int]]


def write_flight_recorder(trace: Trace, folder: Path, frames: Frames | None = None) -> list[Path]:
    """Write the dump of each rank into `folder`, which is made if it is missing; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for rank, dump in flight_recorder_dumps(trace, frames).items():
        file = folder / f"{_PREFIX}{rank}"
        # The protocol that torch's own writer uses.
        file.write_bytes(pickle.dumps(dump, protocol=2))
        files.append(file)
    return files


def flight_recorder_dumps(trace: Trace, frames: Frames | None = None) -> dict[int, dict[str, Any]]:
    """Return for each rank the content of its Flight Recorder at the end of the run."""
    restarts = [mark.time_ns for mark in trace.of_kind("restart")]
    begin_ns = restarts[-1] if restarts else trace.start_ns
    dumps = {rank: _Dump(rank, trace.groups, begin_ns, frames or {}) for rank in trace.ranks}
    for span in trace.spans:
        if span.is_operation and span.start_ns >= begin_ns:
            dumps[span.rank].add(span)
    # A group of two must be in both dumps, even if one of them never sent.
    for dump in list(dumps.values()):
        for name, ranks in dump.channels.items():
            for rank in ranks:
                dumps[rank].know(name, "p2p", ranks)
    return {rank: dump.content() for rank, dump in dumps.items()}


class _Dump:
    """The content of one rank's recorder."""

    def __init__(self, rank: int, groups: Groups, begin_ns: int, frames: Frames) -> None:
        self.channels: dict[str, list[int]] = {}
        self._rank = rank
        self._groups = groups
        self._frames = frames
        self._entries: list[dict[str, Any]] = []
        self._config: dict[str, dict[str, str]] = {}
        self._status: dict[str, dict[str, int]] = {}
        self._counts: dict[str, int] = {}
        for name in groups.names():
            members = groups.members(name, begin_ns) or groups.members(name, 2**63)
            if rank in members:
                self.know(name, groups.descriptions[name], members)

    def know(self, name: str, description: str, ranks: Sequence[int]) -> None:
        """Note that the rank is in this group."""
        self._config.setdefault(name, flight_group(name, description, ranks))

    def add(self, span: Span) -> None:
        """Add an operation that the rank called."""
        name = str(span.issue.data.get("group"))
        if span.name in MESSAGES:
            self._add_message(span, name)
            return
        if span.name == "monitored_barrier":  # Gloo records none, and the analyser does not know it
            return
        members = self._groups.members(name, span.start_ns) or [self._rank]
        self.know(name, self._groups.descriptions.get(name, "undefined"), members)
        data: Mapping[str, Any] = span.issue.data
        sequence = int(data.get("seq", 0)) + 1
        inputs, outputs = _sizes(span, members.index(self._rank), len(members))
        operation = f"gloo:{_NAMES.get(span.name, span.name)}"
        self._entry(span, name, operation, (sequence, 0), inputs, outputs)
        status = self._status.setdefault(str(list(self._config).index(name)), flight_status(0, 0))
        status["last_enqueued_collective"] = max(status["last_enqueued_collective"], sequence)
        if span.end == "complete":
            status["last_completed_collective"] = max(status["last_completed_collective"], sequence)

    def _add_message(self, span: Span, group: str) -> None:
        peer = self._groups.peer(span)
        data: Mapping[str, Any] = span.issue.data
        shape, tag = [list(data.get("shape", ()))], data.get("tag", 0)
        if peer is None:  # from any rank, and no message arrived: only the waiting rank is known
            name, pair, ends = f"{group} any->{self._rank}", [self._rank], "0<-0"
        else:
            sender, receiver = (self._rank, peer) if span.name == "send" else (peer, self._rank)
            name = f"{group} {sender}->{receiver}" + (f" tag {tag}" if tag else "")
            pair = sorted((sender, receiver))
            source, target = pair.index(sender), pair.index(receiver)
            ends = f"{source}->{target}" if span.name == "send" else f"{target}<-{source}"
        self.channels[name] = pair
        self.know(name, "p2p", pair)
        count = self._counts[name] = self._counts.get(name, 0) + 1
        inputs, outputs = (shape, []) if span.name == "send" else ([], shape)
        self._entry(span, name, f"gloo:{span.name} {ends}", (count, count), inputs, outputs, is_message=True)

    def _entry(
        self,
        span: Span,
        group: str,
        operation: str,
        sequence: tuple[int, int],
        inputs: Sizes,
        outputs: Sizes,
        *,
        is_message: bool = False,
    ) -> None:
        data = span.issue.data
        done = span.end == "complete"
        key = (span.start_ns, span.rank, str(data.get("group")), span.name, str(data.get("seq")))
        number = len(self._entries)
        self._entries.append(
            flight_entry(
                record_id=number,
                pg_id=list(self._config).index(group),
                process_group=(group, self._config[group]["desc"]),
                thread=(f"rank {self._rank}", str(self._rank)),
                collective_seq_id=sequence[0],
                p2p_seq_id=sequence[1],
                op_id=number + 1,
                profiling_name=operation,
                time_created_ns=span.start_ns,
                input_sizes=inputs,
                output_sizes=outputs,
                scalar_type=SCALAR_TYPES.get(str(data.get("dtype")), "Undefined"),
                state="completed" if done else "scheduled",
                started_ns=span.begin_ns,
                completed_ns=span.end_ns if done else None,
                retired=span.end != "cut off",
                is_p2p=is_message,
                frames=self._frames.get(key, ()),
            )
        )

    def content(self) -> dict[str, Any]:
        """Return the dump, as torch's analyser expects it."""
        return flight_dump(self._config, self._status, self._entries, library="simdist")


def _sizes(span: Span, rank: int, ranks: int) -> tuple[Sizes, Sizes]:
    """Return the sizes of the inputs and the outputs of a collective, as torch's Gloo records them.

    The event does not have the output sizes of an all_to_all; they are taken to be those of the inputs.
    """
    data: Mapping[str, Any] = span.issue.data
    shape = [int(length) for length in data.get("shape", ())]
    root = data.get("peer", -1)
    if span.name == "barrier":
        return [], []
    if span.name == "all_gather":
        return [shape], [[ranks, *shape]]
    if span.name == "gather":
        return [shape], [[ranks, *shape]] if rank == root else []
    if span.name == "scatter":
        return [[ranks, *shape]] if rank == root else [], [shape]
    if span.name == "reduce_scatter":
        element = ELEMENT_BYTES.get(str(data.get("dtype")), 1)
        if math.prod(shape) * element == int(data.get("nbytes", 0)):  # one tensor, of which each rank gets a part
            return [shape], [[shape[0] // ranks, *shape[1:]]] if shape else [shape]
        return [[ranks, *shape]], [shape]
    return [shape], [shape]
