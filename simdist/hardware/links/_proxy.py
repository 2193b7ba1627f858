"""A rank's way to the launcher's store, where store faults act: requests are slow, or the store is lost.

A TCP proxy in the rank's supervisor, on the standard library alone. The rank's data passes through a delay line, the
store's data passes at once. When the store is lost, every connection ends and new ones are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

from simdist.faults import LastingFault, StoreFault, draws_for
from simdist.hardware._board import BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal
from simdist.records import fault_reported

__all__ = ["StoreProxy", "has_store_faults"]

_CHUNK = 1 << 16


def has_store_faults(job: Job) -> bool:
    """True if a rank needs a proxy to the store."""
    return any(isinstance(fault, StoreFault) for fault in job.faults)


class StoreProxy:
    """Listens on `listener` from now on, and forwards to the store at `host` and `port`.

    The faults' times count from the beginning of the run, which the board reports. Faults that strike `rank` alone go
    to its journal; rank 0's proxy reports the others.
    """

    def __init__(self, job: Job, rank: int, life: int, listener: socket.socket, host: str, port: int) -> None:
        self.port: int = listener.getsockname()[1]
        self._job = job
        self._rank = rank
        self._life = life
        self._store = (host, port)
        self._listener = listener
        self._origin_ns: int | None = None
        self._faults = {index: f for index, f in enumerate(job.faults) if isinstance(f, StoreFault)}
        self._draws = {
            index: draws_for(fault, job.faults[:index], seed=job.seed, life=0, rank=rank)
            for index, fault in self._faults.items()
        }
        self._lines: set[asyncio.Task[None]] = set()
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="simdist store proxy", daemon=True).start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._on_client, sock=self._listener)
        began = await asyncio.get_running_loop().run_in_executor(None, self._began)
        if began is None:
            return
        self._origin_ns = began
        tellers = [asyncio.create_task(self._report(index, fault)) for index, fault in self._faults.items()]
        losses = [lost_ns for fault in self._faults.values() if (lost_ns := fault.lost_at_ns()) is not None]
        if losses:
            await self._until(min(losses))
            server.close()
            for line in list(self._lines):
                line.cancel()
        await asyncio.gather(*tellers)
        await asyncio.Event().wait()  # as long as the supervisor lives

    def _began(self) -> int | None:
        origin_ns: int | None = self._ask("wait_begun", self._job.limit_s)
        return origin_ns

    def _ask(self, *request: Any) -> Any:
        board = BoardClient(self._job.board, self._job.key)
        try:
            return board.call(*request)
        finally:
            board.close()

    async def _until(self, time_ns: int) -> None:
        assert self._origin_ns is not None
        await asyncio.sleep(self._job.scaled_s(time_ns) - (time.time_ns() - self._origin_ns) / 1e9)

    async def _report(self, index: int, fault: StoreFault) -> None:
        if self._rank != (0 if fault.target is None else fault.target):
            return
        if fault.keeps_store and not self._life:
            return  # the first life finds nothing old
        lost_ns = fault.lost_at_ns()
        await self._until(lost_ns if lost_ns is not None else fault.start_ns if isinstance(fault, LastingFault) else 0)
        assert self._origin_ns is not None
        journal = Journal(Path(self._job.out), -1 if fault.target is None else fault.target, 0)
        now_ns = time.time_ns() - self._origin_ns
        journal.record_at(now_ns, fault_reported, fault.kind, fault.begins(), 0)
        journal.note("strike", index, 0, "", time_ns=now_ns)
        if fault.name:
            self._ask("struck", fault.name, now_ns)

    # -- connections ---------------------------------------------------------------------------------------------

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            store_reader, store_writer = await asyncio.open_connection(*self._store)
        except OSError:
            writer.close()
            return
        requests = asyncio.create_task(self._requests(reader, store_writer))
        answers = asyncio.create_task(_answers(store_reader, writer))
        self._lines |= {requests, answers}
        # When one direction ends, so does the other: neither side half-closes.
        await asyncio.wait({requests, answers}, return_when=asyncio.FIRST_COMPLETED)
        for line in (requests, answers):
            line.cancel()
            self._lines.discard(line)
        for each in (writer, store_writer):
            each.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The delay line: data leaves in the order of its arrival, each part after its own delay."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def leave() -> None:
            while True:
                due_s, data = await line.get()
                await asyncio.sleep(due_s - time.monotonic())
                writer.write(data)
                await writer.drain()

        leaving = asyncio.create_task(leave())
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(_CHUNK):
                    line.put_nowait((time.monotonic() + self._delay_s(), data))
        finally:
            leaving.cancel()

    def _delay_s(self) -> float:
        if self._origin_ns is None:
            return 0.0
        now_ns = round((time.time_ns() - self._origin_ns) / self._job.time_scale)
        delay_ns = sum(fault.request_delay_ns(self._rank, now_ns) for fault in self._faults.values())
        delay_ns += sum(
            fault.drawn_delay_ns(self._rank, now_ns, self._draws[index]) for index, fault in self._faults.items()
        )
        return self._job.scaled_s(delay_ns)


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
