"""Runs a job up to its journals: the board, torchrun's agent under a keeper, and the time limit."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
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
from simdist.hardware.links._wire import wired
from simdist.values import awkward_character, brief, guess_or_list

__all__ = ["Nodes", "launch"]

_BACKENDS = ("c10d", "etcd", "etcd-v2", "static")
_ELSEWHERE_S = 60.0  # for other nodes to hand in the files of their ranks
_STARTING_S = 60.0  # for the agent itself, in addition to the ranks' own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of a replay: torchrun's own arguments, one machine by default.

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
        """Return what does not fit together, one line each."""
        lines = []
        if self.count < 1:
            lines.append(f"--nnodes: {brief(self.count)} is no number of nodes")
        elif not 0 <= self.rank < self.count:
            lines.append(f"--node-rank: {brief(self.rank)} is outside 0-{self.count - 1}")
        elif world_size % self.count:
            lines.append(f"--nnodes: {world_size} ranks do not divide among {self.count} nodes")
        host, colon, port = self.endpoint.rpartition(":")
        if self.count > 1 and not self.endpoint:
            lines.append("--rdzv-endpoint: missing; several nodes need host:port to meet at")
        elif self.endpoint and not (host and colon and _is_port(port) and _is_host(host.strip("[]"))):
            lines.append(f"--rdzv-endpoint: {brief(self.endpoint)} is no host:port")
        if self.count > 1 and not self.run_id:
            lines.append("--rdzv-id: missing; nodes of one job recognise each other by it")
        elif awkward_character(self.run_id):
            lines.append(f"--rdzv-id: {brief(self.run_id)} has control characters")
        if self.backend not in _BACKENDS:
            lines.append(f"--rdzv-backend: unknown {brief(self.backend)}{guess_or_list(self.backend, _BACKENDS)}")
        if self.local_addr and not _is_host(self.local_addr):
            lines.append(f"--local-addr: {brief(self.local_addr)} is no address, and no name of a machine")
        elif self.local_addr and self.count == 1 and not _is_here(self.local_addr):  # else others may see another one
            lines.append(f"--local-addr: {brief(self.local_addr)} is no address of this machine")
        return lines


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) < 65535


def _is_host(text: str) -> bool:
    """True if the text can be a host's name, or an address."""
    return re.fullmatch(r"[0-9A-Za-z_.:%-]{1,253}", text) is not None and not _is_half_an_address(text)


def _is_half_an_address(text: str) -> bool:
    """True for numbers with dots that are no IPv4 address: old C functions read some of these as one."""
    if re.fullmatch(r"[0-9.]+", text) is None:
        return False
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return True
    return False


def _is_here(name: str) -> bool:
    """True if the name, or the address, belongs to this machine: a socket can be bound to it."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(name).is_loopback:
            return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def launch(job: Job, nodes: Nodes, keeper: Keeper) -> Job | None:
    """Run the job's ranks of this node to their end. Then `job.out` has their journals, on node 0 those of all nodes.

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
        return "127.0.0.1:0"  # any free port: no other node has to know it
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
    try:
        with log.open("wb") as stream:
            agent = keeper.start(words, stdout=stream.fileno(), stderr=stream.fileno())
        keeper.wait(agent, _STARTING_S + job.limit_s * (job.max_restarts + 1))
    finally:  # also after an interrupt: the board, which is closed next, must not wait for its clients
        keeper.end()
    if not read_lives(out):
        tail = "\n".join(f"  {line}" for line in log.read_text("utf-8", "replace").rstrip().splitlines()[-12:])
        raise SimdistError(f"the launcher started no rank:\n{tail}")
