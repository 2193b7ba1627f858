"""The errors of a rank's NCCL after the loss of a peer, which depend on the transport between the two.

Ranks of a host share memory, or copy from device to device, and never check whether the other is alive. Over sockets
the kernel closes the connection, and a rank that waits for data gets an error at once; a host without power closes
nothing. InfiniBand cards repeat what is not acknowledged, and give up after a while, also over a cut link.

A cluster does not say which cards its hosts have: they use sockets, unless NCCL_NET says IB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simdist.c10d.backends.nccl.watch._debug_lines import show_warning, variable
from simdist.errors import UnsupportedError
from simdist.inside.torch import NcclPlace
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._options import NcclConfig
    from simdist.c10d.backends.nccl._work import NcclWork
    from simdist.c10d.engine._stream_parts import Part
    from simdist.c10d.engine._streamed import Connection, StreamCommunicator

__all__ = ["cut_off", "cut_short", "peer_left", "problem_of_networks"]

_ACKNOWLEDGED_NS = 4096  # InfiniBand's unit: that times two to the power of a timeout
_RETRY_EXCEEDED = "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129    hca mlx5_0"


def _number(process: SimProcess, name: str, default: int) -> int:
    text = variable(process, name, str(default))
    return int(text) if text.lstrip("-").isdigit() else default


def _shares_nothing(process: SimProcess) -> bool:
    return all(_number(process, f"NCCL_{name}_DISABLE", 0) for name in ("P2P", "SHM"))


def _network(process: SimProcess, config: NcclConfig) -> str:
    return (variable(process, "NCCL_NET") or config.net_name or "").upper()


def problem_of_networks(process: SimProcess, config: NcclConfig) -> str:
    """Return NCCL's error if no network matches its variables and the group's config, else an empty text.

    Raises:
        UnsupportedError: the requested network belongs to a plugin.
    """
    name = _network(process, config)
    if name not in ("", "IB", "SOCKET"):
        raise UnsupportedError(
            f"the network {name!r} is that of a plugin, which is not simulated; let NCCL_NET and the group's config "
            "say Socket or IB, or nothing"
        )
    missing = name == "IB" and _number(process, "NCCL_IB_DISABLE", 0)
    return "Failed to initialize any NET plugin" if missing else ""


def peer_left(connection: Connection, rank: int, parts: Sequence[Part], error: Callable[[str], str]) -> None:
    """Report a lost end of a connection to the ranks that wait for it, if their network notices the loss.

    `error` makes torch's error text from a warning of NCCL.
    """
    process = _process(connection, rank)
    for part in parts:
        other = part.process
        near = other.host is process.host and not (_shares_nothing(process) and _shares_nothing(other))
        if near or part.work is None or not other.running or not _is_linked(connection, part, rank):
            continue
        if _network(other, part.work.group.options.config) != "IB":
            if process.host.up:
                text = f"socketProgress: Connection closed by remote peer {_address(process)}"
                _report(part, part.work, text, NcclPlace.PEER_CLOSED, error)
        else:
            _give_up_later(part, process, error, lambda: True)


def cut_off(connection: Connection, parts: Sequence[Part], error: Callable[[str], str]) -> None:
    """Report a network that keeps parts from beginning: InfiniBand cards give up, if the cut lasts."""
    communicator = connection.communicator
    for part in parts:
        if part.work is None or _network(part.process, part.work.group.options.config) != "IB":
            continue
        for rank in connection.ranks:
            other = _process(connection, rank)
            if other.host is part.process.host or not _is_linked(connection, part, rank):
                continue
            is_cut = functools.partial(_is_cut, communicator, part, rank)
            if is_cut():
                _give_up_later(part, other, error, is_cut)
                break


def cut_short(
    connection: Connection, part: Part, rank: int, sizes: tuple[int, int], error: Callable[[str], str]
) -> None:
    """Report a message with more bytes than its receiver has room for; only sockets notice that."""
    process, other = _process(connection, rank), part.process
    near = other.host is process.host and not (_shares_nothing(process) and _shares_nothing(other))
    if near or part.work is None or _network(other, part.work.group.options.config) == "IB":
        return
    text = (
        f"NET/Socket : peer {_address(process)} message truncated : receiving {sizes[0]} bytes instead of {sizes[1]}. "
        "If you believe your socket network is in a healthy state, there may be a mismatch in collective sizes or "
        "environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks"
    )
    _report(part, part.work, text, NcclPlace.MESSAGE_CUT, error)


def _is_cut(communicator: StreamCommunicator, part: Part, rank: int) -> bool:
    now_ns = communicator.simulation.now_ns
    return not part.begun and communicator.open_from_ns(part.rank, rank, now_ns) != now_ns


def _give_up_later(part: Part, peer: SimProcess, error: Callable[[str], str], still: Callable[[], bool]) -> None:
    process, work = part.process, part.work
    text = f"NET/IB: Got completion from peer {_address(peer)} with {_RETRY_EXCEEDED}"
    retries_ns = (_number(process, "NCCL_IB_RETRY_CNT", 7) + 1) * _ACKNOWLEDGED_NS
    retries_ns <<= max(0, min(_number(process, "NCCL_IB_TIMEOUT", 20), 31))

    def give_up() -> None:
        if still():
            _report(part, work, text, NcclPlace.PEER_SILENT, error)

    process.simulation.call_at(process.simulation.now_ns + retries_ns, give_up)


def _address(process: SimProcess) -> str:
    return f"{process.host.name}<{40000 + process.rank}>"


def _process(connection: Connection, rank: int) -> SimProcess:
    member = connection.communicator.members[rank]
    assert member is not None
    return member.process


def _is_linked(connection: Connection, part: Part, rank: int) -> bool:
    """True if a part has a link to a rank: it sends to the rank, receives from it, or is its neighbour on the ring."""
    operation, ring = part.operation, connection.ranks
    if part.whole is None:
        return part.peer == rank
    if operation.name == "all_to_all":
        return True
    if operation.name in ("gather", "scatter"):
        return operation.root in (rank, part.rank)
    place = ring.index(rank)
    return part.rank in (ring[place - 1], ring[(place + 1) % len(ring)])


def _report(part: Part, work: NcclWork, warning: str, place: NcclPlace, error: Callable[[str], str]) -> None:
    group = work.group
    if work.done or group.closed or not part.process.running:
        return
    if part.connection not in group.errors:
        show_warning(warning, place, part.process, part.connection.ends[part.rank][0])
        group.report_error(part.connection, error(warning))
