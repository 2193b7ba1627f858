"""The process group that ranks hold: messages and monitored barriers; `_reductions` and `_copies` have collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from simdist.c10d.calls._member import MembersAwaited, MembersMet
from simdist.c10d.surface._copies import Copies
from simdist.c10d.surface._coverage import METHODS, Coverage
from simdist.c10d.surface._memory import require_memory
from simdist.c10d.surface._modes import visible
from simdist.c10d.surface._reductions import Reductions
from simdist.errors import UnsupportedError
from simdist.kernel import EVERYTHING

if TYPE_CHECKING:
    from simdist.c10d.engine import P2PWork
    from simdist.c10d.surface._arguments import Tensors
    from simdist.c10d.surface._identity import GroupBackend, GroupOptions
    from simdist.c10d.surface._store import SimStore

__all__ = ["Maker", "SimProcessGroup"]

Tensor = torch.Tensor


class Maker(Protocol):
    """The maker of a world's groups."""

    def options_of_gloo(self, options: object, call: str) -> GroupOptions:
        """Return options for Gloo: the given ones, or its default options."""

    def make_child(
        self, group: GroupBackend, store: SimStore, rank: int, size: int, options: GroupOptions, ranks: Sequence[int]
    ) -> SimProcessGroup:
        """Return a Gloo group that is made from another group; both share the options."""


class SimProcessGroup(Reductions, Copies):
    """One rank's handle on a group, with all methods. Checks and texts are those of ProcessGroupGloo (2.13)."""

    __slots__ = ("maker",)

    maker: Maker

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> P2PWork:
        """Send to a group rank."""
        return self._post("send", tensors, dst, tag)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> P2PWork:
        """Receive from a group rank."""
        return self._post("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> P2PWork:
        """Receive from the rank that sends first."""
        return self._post("recv", tensors, None, tag)

    def _post(self, kind: str, tensors: Tensors, peer: int | None, tag: int) -> P2PWork:
        tensor = self._arguments.single(kind, tensors)
        self._arguments.require_contiguous(tensor)
        require_memory(tensor)
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")
        communicator, member = self._communicator, self._member
        self._arguments.require_peer(kind, peer, member.rank, self._size)
        strike = member.called(kind, member.posted) if communicator.simulation.bus.active else None
        member.number += 1
        member.messages += 1
        return communicator.mailbox.post(member, kind, peer, tag, tensor, self._timeout_ns, strike=strike)

    # -- groups made from this one -------------------------------------------------------------------------------

    def split_part(self, store: SimStore, ranks: Sequence[int], options: Any, name: str) -> SimProcessGroup | None:
        """Return Gloo's part of a group of some ranks of this group; None on a rank that is not among them."""
        if self.rank() not in ranks:
            return None
        options = self.maker.options_of_gloo(options, "split")
        members = self._communicator.members
        there = [members[rank] for rank in ranks if 0 <= rank < self._size]
        world_ranks = [member.process.rank for member in there if member is not None]
        if len(world_ranks) < len(ranks):
            world_ranks = []  # some have not arrived yet, in a group that connects at its first use
        options.global_ranks_in_group = world_ranks
        return self.maker.make_child(self, store, ranks.index(self.rank()), len(ranks), options, world_ranks)

    def merge_part(self, store: SimStore, rank: int, size: int, options: Any, name: str) -> SimProcessGroup | None:
        """Return Gloo's part of a group of the ranks of several groups."""
        return self.maker.make_child(self, store, rank, size, options, ())

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; the error names the missing ones."""
        self._monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    def _monitored_barrier(self, timeout: timedelta | None, *, wait_all_ranks: bool, prefix: str = "") -> None:
        limit_ns = self._timeout_ns if timeout is None else round(timeout.total_seconds() * 1e9)
        touch = self._communicator.simulation.policy.touch
        if touch is not None:
            touch(EVERYTHING, writes=True)
        strike = self._member.called("monitored_barrier", self._member.barriers)
        self._member.number += 2 * (self._size - 1) if self.rank() == 0 else 2  # its messages, not in `messages`
        bus, number = self._communicator.simulation.bus, self._member.barriers
        if bus.heard and bus.hears(MembersAwaited):
            bus.report(MembersAwaited(self._member.process, self._communicator, number))
        self._backend.pass_monitored_barrier(
            self._member, limit_ns, self._timeout_ns, wait_all_ranks=wait_all_ranks, prefix=prefix, strike=strike
        )
        if bus.heard and bus.hears(MembersMet):
            bus.report(MembersMet(self._member.process, self._communicator, number))


visible(SimProcessGroup)


def _refusing(coverage: Coverage) -> Callable[..., NoReturn]:
    error = {"RuntimeError": RuntimeError, "UnsupportedError": UnsupportedError}[coverage.error]

    def refuse(self: SimProcessGroup, *args: object, **kwargs: object) -> NoReturn:
        raise error(coverage.says.replace("Backend gloo", f"Backend {self.name()}"))

    return refuse


for _old, _coverage in METHODS.items():
    if _coverage.status == "refused":  # else torch's C++ method would run, without a C++ backend
        setattr(SimProcessGroup, _old, _refusing(_coverage))
