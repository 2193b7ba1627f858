"""Errors that arise outside of a rank's calls: lost peers, and waits that time out."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist

from simdist.c10d.backends.nccl._errors import async_error, nccl_error
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl.watch._debug_lines import variable
from simdist.c10d.backends.nccl.watch._transport import cut_off, cut_short, peer_left
from simdist.inside.torch import NCCL, NcclPlace, Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._work import NcclWork
    from simdist.c10d.engine._stream_parts import Part
    from simdist.c10d.engine._streamed import Connection

__all__ = ["NcclFailure"]


def _may_share(connection: Connection) -> bool:
    members = [connection.communicator.members[rank] for rank in connection.ranks]
    return all(
        variable(member.process, "NCCL_MULTI_RANK_GPU_ENABLE") not in ("", "0")
        for member in members
        if member is not None
    )


class NcclFailure:
    """NCCL's errors. NCCL does not report a peer that has left; the watchdog ends a rank that waits for the peer."""

    has_timeouts = True
    late_ns = 1_000_000
    closing_ns = 0

    def refused_connection(self, connection: Connection) -> Callable[[int], BaseException] | None:
        """Return the error of each rank of a communicator that can't be made; None if it can be made."""
        members = {rank: connection.communicator.members[rank] for rank in connection.ranks}
        hosts = {rank: member.process.host for rank, member in members.items() if member is not None}
        devices = {rank: end[3] for rank, end in connection.ends.items()}
        shared: dict[int, int] = {}  # each rank whose device another rank uses, and the first of these ranks
        for rank in connection.ranks:
            other = next(
                (r for r in connection.ranks if r != rank and hosts[r] is hosts[rank] and devices[r] is devices[rank]),
                None,
            )
            if other is not None:
                shared[rank] = other
        if not shared or (NCCL.can_share_devices and _may_share(connection)):
            return None
        first = next(iter(shared))

        def error(rank: int) -> BaseException:
            reported = rank if rank in shared else first
            bus = 0x1000 * (connection.ends[reported][0] + 1)
            return nccl_error(
                "ncclInvalidUsage",
                NCCL.same_device.format(one=reported, other=shared[reported], bus=bus),
                NcclPlace.SAME_DEVICE,
            )

        return error

    def first_is_missing(self, connection: Connection, rank: int, why: int | str) -> BaseException:
        """Return the error if the ncclUniqueId was not in the store in time, or the store failed."""
        names = list(connection.makers.values())
        asked = ", ".join(f"/default_pg/{connection.communicator.name}//cuda//{name}" for name in names)
        error = why if isinstance(why, str) else f"wait timeout after {why // 1_000_000}ms, keys: {asked}"
        likely = ". This may indicate a possible application crash on rank 0 or a network set up issue."
        if names != [connection.key]:
            listed = json.dumps(names, separators=(",", ":"))
            return dist.DistBackendError(
                f"[{rank}] is setting up NCCL communicators and retrieving ncclUniqueId from roots via TCPStore by key "
                f"'{listed}', but got error: {error}{likely}"
            )
        return dist.DistBackendError(
            f"[{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
            f"by key '{names[0]}', but store->get('{names[0]}') got error: {error}{likely}"
        )

    def others_are_missing(self, connection: Connection) -> BaseException:
        """Return the error if a communicator made in non-blocking mode was not complete in time."""
        return dist.DistBackendError(f"NCCL timeout in: {Place.CALL_TIMED_OUT.path_for_cuda}")

    def wait_timed_out(self, work: NcclWork, limit_ns: int) -> BaseException:
        """Log and return the error of a host wait that timed out; the rank gives the communicator up."""
        process = work.process
        elapsed_ms = (process.simulation.now_ns - work.issued_ns) // 1_000_000
        text = work.timeout_text(elapsed_ms)
        log(process, "E", text, Place.WORK_TIMED_OUT)
        log(
            process,
            "E",
            f"{work.group.nccl.work_prefix(work.group)}Work {work} timed out in blocking wait.",
            Place.WORK_BLOCKED_TOO_LONG,
        )
        work.set_error("TIMEOUT", text)
        work.give_up()
        assert work.error is not None
        return work.error

    def peer_left(self, connection: Connection, rank: int, parts: Sequence[Part]) -> None:
        """Report that a rank has left to the ranks that wait for it, if their network notices."""
        peer_left(connection, rank, parts, functools.partial(async_error, "ncclRemoteError"))

    def cut_off(self, connection: Connection, parts: Sequence[Part]) -> None:
        """Report a cut link to a rank that is connected by InfiniBand, when its card gives up."""
        cut_off(connection, parts, functools.partial(async_error, "ncclRemoteError"))

    def cut_short(self, connection: Connection, part: Part, source: int, size: int, room: int) -> None:
        """Report a message that is larger than its receiver's buffer; only sockets notice."""
        cut_short(connection, part, source, (size, room), functools.partial(async_error, "ncclInvalidUsage"))

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        """Not used for operations on streams."""
        return f"{kind} timed out after {timeout_ns // 1_000_000} ms"

    def closed_by_peer(self, peer: int) -> str:
        """Not used for operations on streams."""
        return f"socketProgress: Connection closed by remote peer of rank {peer}"

    def reset_by_peer(self, peer: int) -> str:
        """Not used for operations on streams."""
        return self.closed_by_peer(peer)

    def pair_closed(self) -> str:
        """Not used for operations on streams."""
        return "NCCL communicator was aborted"

    def overrun(self, sent: int, room: int) -> str:
        """Not used for operations on streams."""
        return "message truncated"
