"""The process between torchrun's agent and a rank: it sees how the rank really ends, and wakes a stopped rank.

The agent runs it, once per rank, as `python -m simdist.hardware.rank._supervisor JOB AGENT`, with the agent's process
id. It does not import torch.

If the scenario has restarts, it ends as soon as its rank does, and the agent does what torchrun does. Without restarts,
every rank should reach its own end, as in the simulation, but an agent stops the survivors of the first failure: so the
supervisor stays until all ranks of the world have ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from simdist.hardware._board import BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal
from simdist.hardware._lifeline import die_with
from simdist.hardware.links._namespaces import DEVICE, address_of, call_inside
from simdist.hardware.links._proxy import StoreProxy, has_store_faults

__all__ = ["main"]

_GRACE_S = 5.0  # from SIGTERM to SIGKILL
_PEERS_S = 1.0  # for ranks that fail together with this one, before the agent stops them
_EXIT_S = 15.0  # from the end of its program to the end of its process


class _Rank:
    """The rank's process."""

    def __init__(self, job: Job, job_path: str) -> None:
        self.rank = int(os.environ["RANK"])
        self.life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        out = Path(job.out)
        self.hung = False
        self.stopped_for_good = threading.Event()
        self.said_code: int | None = None  # the exit code that it announced
        self.said_at = 0.0
        name = f"rank{self.rank}-life{self.life}"
        orders, write_end = os.pipe()
        with (out / f"{name}.out").open("wb") as stdout, (out / f"{name}.err").open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "simdist.hardware.rank._worker", job_path, str(write_end), str(os.getpid())],
                stdout=stdout,
                stderr=stderr,
                pass_fds=(write_end,),
                env={**os.environ, **_network(job, self.rank)},
            )
        os.close(write_end)
        threading.Thread(target=self._wake, args=(orders,), daemon=True).start()

    def _wake(self, orders: int) -> None:
        """Wake the rank at the end of each pause that it announces; and note the exit code that it announces."""
        with os.fdopen(orders) as lines:
            for line in lines:
                if line.strip() == "never":
                    self.stopped_for_good.set()
                elif line.startswith("exit"):
                    self.said_at, self.said_code = time.monotonic(), int(line.split()[1])
                else:
                    time.sleep(float(line))
                    self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self) -> None:
        """Send SIGTERM, as the agent does; SIGKILL if the rank does not react, or can't because it is stopped."""
        self._send(signal.SIGTERM)
        try:
            self.process.wait(0.0 if self.stopped_for_good.is_set() else _GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self._send(signal.SIGKILL)
        self.process.wait()


def _network(job: Job, rank: int) -> dict[str, str]:
    """Return the rank's environment for the network: the address of the store, or of its proxy; the device."""
    said = {}
    if job.networks:
        said = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), DEVICE)
        if not job.shares_store:
            return {**said, "MASTER_ADDR": address_of(0)}
    elif not has_store_faults(job):
        return {}

    def listen() -> socket.socket:
        return socket.create_server(("127.0.0.1", 0))

    listener = call_inside(job.networks[rank], listen) if job.networks else listen()
    life, server = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["MASTER_ADDR"]
    proxy = StoreProxy(job, rank, life, listener, server, int(os.environ["MASTER_PORT"]))
    return {**said, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(proxy.port)}


def main(job_path: str, agent: int) -> int:
    """Run one rank to its end, and report how it ended."""
    die_with(agent, signal.SIGKILL)
    job = Job.load(job_path)
    board = BoardClient(job.board, job.key)
    rank = _Rank(job, job_path)
    stopped_by_agent = False

    def on_sigterm(number: int, frame: object) -> None:
        nonlocal stopped_by_agent
        stopped_by_agent = True  # the loop acts on it: a handler may not wait for what the loop waits for

    signal.signal(signal.SIGTERM, on_sigterm)
    deadline = time.monotonic() + job.limit_s
    while rank.process.poll() is None:
        if stopped_by_agent:
            rank.end()
        elif os.getppid() != agent:  # where the kernel does not kill it with the agent
            rank.kill()
            return 1
        elif rank.stopped_for_good.is_set() and job.max_restarts == 0:
            # Nothing will wake it: its run is over when it is over for all ranks that can still end.
            board.call("end", rank.life, rank.rank)
            board.call("wait_ended", rank.life, 0, max(0.1, deadline - time.monotonic()))
            rank.hung = True
            rank.kill()
        elif rank.said_code is not None and time.monotonic() > rank.said_at + _EXIT_S:
            # Its program is over, but the interpreter does not end: when a DDP model outlives its group, Gloo's threads
            # are joined while the GIL is held (torch 2.13).
            rank.kill()
            rank.process.returncode = rank.said_code
        elif time.monotonic() > deadline:
            rank.hung = True
            rank.kill()
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(0.05)
    code = rank.process.returncode
    journal = Journal(Path(job.out), rank.rank, rank.life)
    # The time is the system clock's: the reader knows when the run began.
    journal.note("ended", None if rank.hung else code, stopped_by_agent, time_ns=time.time_ns())
    board.call("end", rank.life, rank.rank)
    if job.max_restarts == 0 and not stopped_by_agent:
        board.call("wait_ended", rank.life, 0, max(0.1, deadline + 2 * _GRACE_S - time.monotonic()))
    elif code != 0 and not stopped_by_agent:
        # The other ranks that fail with it fail at once: before the agent looks, as in a simulation.
        board.call("wait_ended", rank.life, 0, _PEERS_S)
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
