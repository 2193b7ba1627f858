"""The network between the ranks of a run with link faults: a switch in user space, in which the faults act.

The keeper runs it as `python -m simdist.hardware.links._wire`, with the job on its standard input. It answers with the
paths of the ranks' namespaces, and lives as long as the run. Each rank has a network namespace of its own with one TUN
device, and every packet between two ranks passes through here: the faults begin and end everywhere at one instant, at
the times of the board's clock. (The usual way, `tc netem`, can't hold and release, and many kernels lack it.)
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import pickle
import select
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simdist.errors import SimdistError
from simdist.hardware._board import BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal
from simdist.hardware._keeper import Keeper
from simdist.hardware.links._conditions import Conditions, link_faults
from simdist.hardware.links._namespaces import make_namespace, rank_at
from simdist.records import fault_reported

__all__ = ["main", "wired"]

_READY_S = 30.0
_BATCH = 64  # packets of one rank before the others have their turn


@contextlib.contextmanager
def wired(job: Job, keeper: Keeper) -> Iterator[Job]:
    """Yield the job with a namespace for each rank, if it has link faults; all of them are gone afterwards.

    Raises:
        SimdistError: the namespaces could not be made.
    """
    if not link_faults(job.faults):
        yield job
        return
    log = Path(job.out) / "wire.log"
    their_input, our_output = os.pipe()
    our_input, their_output = os.pipe()
    with os.fdopen(our_output, "wb") as to_wire, os.fdopen(our_input, "rb") as from_wire:
        with log.open("wb") as errors, os.fdopen(their_input), os.fdopen(their_output):
            words = [sys.executable, "-m", "simdist.hardware.links._wire"]
            wire = keeper.start(words, stdin=their_input, stdout=their_output, stderr=errors.fileno())
        with contextlib.suppress(BrokenPipeError):
            to_wire.write(pickle.dumps(job))
            to_wire.flush()
        ready, _, _ = select.select([from_wire], [], [], _READY_S)
        line = from_wire.readline() if ready else b""
        if not line:
            keeper.wait(wire, 1.0)
            tail = log.read_text("utf-8", "replace").rstrip().rpartition("\n")[2]
            raise SimdistError(f"no network for the link faults: {tail or 'it did not answer'}")
        yield replace(job, networks=tuple(json.loads(line)))


class _Switch:
    """Reads packets from the ranks' devices, and writes each to its target's device when it is due."""

    def __init__(self, tuns: list[int], conditions: Conditions) -> None:
        self._tuns = tuns
        self._conditions = conditions
        self._late: list[tuple[float, int, int, bytes]] = []  # due, number, rank, packet
        self._count = 0
        self.origin_ns: int | None = None  # set by another thread when the run begins; there are no faults before

    def run(self) -> None:
        """Switch packets until the process is killed."""
        poll = select.poll()
        ranks = {tun: rank for rank, tun in enumerate(self._tuns)}
        for tun in self._tuns:
            poll.register(tun, select.POLLIN)
        while True:
            wait_s = self._late[0][0] - self._now_s() if self._late else 1.0
            for tun, _ in poll.poll(min(1.0, max(0.0, wait_s)) * 1e3):
                self._take(ranks[tun], tun)
            while self._late and self._late[0][0] <= self._now_s():
                _, _, rank, packet = heapq.heappop(self._late)
                self._give(rank, packet)

    def _now_s(self) -> float:
        return -1.0 if self.origin_ns is None else (time.time_ns() - self.origin_ns) / 1e9

    def _take(self, src: int, tun: int) -> None:
        for _ in range(_BATCH):
            try:
                packet = os.read(tun, 1 << 16)
            except BlockingIOError:
                return
            dst = rank_at(packet[16:20]) if packet[0] >> 4 == 4 else -1
            if not 0 <= dst < len(self._tuns):
                continue
            now_s = self._now_s()
            due_s = self._conditions.due_s(src, dst, now_s, len(packet))
            if due_s is None:
                continue
            if due_s <= now_s:
                self._give(dst, packet)
            else:
                self._count += 1
                heapq.heappush(self._late, (due_s, self._count, dst, packet))

    def _give(self, rank: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # its device takes no more now: TCP sends again
            os.write(self._tuns[rank], packet)


def _follow(job: Job, switch: _Switch, board: BoardClient, conditions: Conditions) -> None:
    """Set the switch's origin when the run has begun, and record the begin and end of each fault."""
    origin_ns = board.call("wait_begun", job.limit_s)
    if origin_ns is None:
        return
    switch.origin_ns = origin_ns
    journal = Journal(Path(job.out), -1, 0)
    journal.origin_ns = origin_ns
    for when_s, fault, text in conditions.events():
        time.sleep(max(0.0, when_s - journal.now_ns() / 1e9))
        journal.record(fault_reported, fault.kind, text, 0)
        if text == fault.begins():
            index = next(index for index, each in enumerate(job.faults) if each is fault)
            journal.note("strike", index, 0, "")
            if fault.name:
                board.call("struck", fault.name, journal.now_ns())


def main() -> None:
    """Make the namespaces, print where they are, and switch packets until the keeper ends the process."""
    job = pickle.load(sys.stdin.buffer)
    assert isinstance(job, Job)
    board = BoardClient(job.board, job.key)  # before this process leaves the host's network
    made = [make_namespace(rank) for rank in range(job.world_size)]
    conditions = Conditions(job.faults, job.time_scale, job.seed)
    switch = _Switch([each.tun for each in made], conditions)
    threading.Thread(target=_follow, args=(job, switch, board, conditions), daemon=True).start()
    sys.stdout.write(json.dumps([f"/proc/{os.getpid()}/fd/{each.handle}" for each in made]) + "\n")
    sys.stdout.flush()
    switch.run()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
