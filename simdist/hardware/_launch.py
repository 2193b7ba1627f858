"""From a job to its journals: the board, torchrun's agent under a keeper, and the limit on all of it."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from simdist.errors import SimdistError
from simdist.hardware._board import Board, BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import read_lives
from simdist.hardware._keeper import Keeper
from simdist.hardware._wire import wired

__all__ = ["Nodes", "launch"]

_ELSEWHERE_S = 60.0  # for other nodes to hand in what their ranks left
_STARTING_S = 60.0  # for the agent itself, beside the ranks' own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Which machines a replay runs on: torchrun's own arguments, one machine by default.

    `endpoint` is "host:port" of the rendezvous; the board listens one port above it, on node 0. One machine needs none:
    its agent takes a free port of the loopback device.
    """

    count: int = 1
    rank: int = 0
    endpoint: str = ""
    backend: str = "c10d"
    run_id: str = ""
    local_addr: str = "127.0.0.1"

    def problems(self, world_size: int) -> list[str]:
        """What does not fit together, one line each."""
        lines = []
        if self.count < 1:
            lines.append(f"--nnodes: {self.count} is no number of nodes")
        elif not 0 <= self.rank < self.count:
            lines.append(f"--node-rank: {self.rank} is outside 0-{self.count - 1}")
        elif world_size % self.count:
            lines.append(f"--nnodes: {world_size} ranks do not divide among {self.count} nodes")
        host, colon, port = self.endpoint.rpartition(":")
        if self.count > 1 and not self.endpoint:
            lines.append("--rdzv-endpoint: missing; several nodes need host:port to meet at")
        elif self.endpoint and not (host and colon and port.isdecimal() and 0 < int(port) < 65535):
            lines.append(f"--rdzv-endpoint: {self.endpoint!r} is no host:port")
        if self.count > 1 and not self.run_id:
            lines.append("--rdzv-id: missing; nodes of one job recognise each other by it")
        return lines


def launch(job: Job, nodes: Nodes, keeper: Keeper) -> Job | None:
    """Run the job's ranks of this node to their end; their journals lie in `job.out` then, on node 0 those of all.

    Returns the job as its processes saw it, or None on every other node: its part is done.

    Raises:
        SimdistError: the agent could not start, or node 0 was not to be found.
    """
    if nodes.count == 1:
        nodes = replace(nodes, endpoint=nodes.endpoint or _endpoint(nodes), run_id=nodes.run_id or "simdist")
        job = replace(job, key=secrets.token_bytes(16))
        with (
            Board(job.world_size, ("127.0.0.1", 0), job.key) as board,
            wired(replace(job, board=board.address), keeper) as able,
        ):
            _run_agent(able, nodes, keeper)
        return job
    host, _, port = nodes.endpoint.rpartition(":")
    job = replace(job, board=(host, int(port) + 1), key=nodes.run_id.encode())
    if nodes.rank == 0:
        with Board(job.world_size, ("", int(port) + 1), job.key) as board:
            _run_agent(job, nodes, keeper)
            board.give(0, {})
            for files in board.take(nodes.count, _ELSEWHERE_S).values():
                for name, content in files.items():
                    (Path(job.out) / name).write_bytes(content)
        return job
    _wait_for_board(job)
    _run_agent(job, nodes, keeper)
    left = {path.name: path.read_bytes() for path in sorted(Path(job.out).glob("rank*"))}
    client = BoardClient(job.board, job.key)
    client.call("give", nodes.rank, left)
    client.close()
    return None


def _endpoint(nodes: Nodes) -> str:
    if nodes.backend == "c10d":
        return "127.0.0.1:0"  # any free port: nobody else has to know it
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _wait_for_board(job: Job) -> None:
    deadline = time.monotonic() + _ELSEWHERE_S
    while True:
        try:
            BoardClient(job.board, job.key).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SimdistError(f"node 0 does not answer at {job.board[0]}:{job.board[1]}: {error}") from None
            time.sleep(0.2)


def _run_agent(job: Job, nodes: Nodes, keeper: Keeper) -> None:
    out = Path(job.out)
    path = out / "job.pickle"
    job.save(path)
    log = out / f"agent{nodes.rank}.log"
    words = [sys.executable, "-m", "simdist.hardware._agent", str(path), json.dumps(asdict(nodes))]
    with log.open("wb") as stream:
        agent = keeper.start(words, stdout=stream.fileno(), stderr=stream.fileno())
    keeper.wait(agent, _STARTING_S + job.limit_s * (job.max_restarts + 1))
    keeper.end()
    if not read_lives(out):
        tail = "\n".join(f"  {line}" for line in log.read_text("utf-8", "replace").rstrip().splitlines()[-12:])
        raise SimdistError(f"the launcher started no rank:\n{tail}")
