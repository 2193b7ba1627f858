"""Memory that an operation on a stream is going to read or write, and that the program touches before it has.

Kernels compute at once, but the bytes of a collective move when all of its ranks are there. Until then the memory that
it fills has no values that a kernel could work on, so the first kernel that touches it waits on the host, where on a
GPU the kernel itself would. Memory that is only read is copied when it is touched: the operation reads what was there.

In doubt: a program that goes on without ever looking at a value, and prints or sends something in between, does so
later here than with a GPU, if its ranks are far apart.

While a block is claimed, an `Outstanding` stands where the block has its CPU tensor. Kernels look at that anyway, so
claims cost nothing where there are none.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from simdist.device._aliases import block_of, host, memory
from simdist.device._state import account_of

__all__ = ["Claimant", "Outstanding", "claim", "memory_of", "release"]

Tensor = torch.Tensor


class Claimant(Protocol):
    """An operation that has not begun."""

    def wait_until_begun(self) -> None:
        """Park until it has read what it reads and written what it writes; called on a thread of its rank, or not."""
        ...

    def copy_inputs(self, block: Any) -> None:
        """Keep what a block that it reads holds now."""
        ...


class Outstanding:
    """Stands for the CPU tensor of a block that operations have claimed."""

    __slots__ = ("block", "claims", "host")

    def __init__(self, block: Any) -> None:
        self.block = block
        self.host = block.host
        self.claims: dict[Claimant, bool] = {}  # in the order of the calls: whether they write

    @property
    def shape(self) -> None:
        """None, so that whoever compares it makes a tensor of its own, once nothing is outstanding any more."""
        # In order: who reads what another is still to write copies nothing before that is there.
        for claimant, writes in list(self.claims.items()):
            if claimant not in self.claims:
                continue  # it has begun meanwhile
            if writes:
                claimant.wait_until_begun()
            else:
                claimant.copy_inputs(self.block)
                self.drop(claimant)

    def drop(self, claimant: Claimant) -> None:
        """The claimant needs the memory no longer."""
        self.claims.pop(claimant, None)
        if not self.claims and self.block.host is self:
            self.block.host = self.host


def claim(tensor: Tensor, claimant: Claimant, *, writes: bool) -> Outstanding:
    """Say that an operation will read a device's tensor, or write it; for `release`."""
    block = block_of(tensor)
    if block is None:  # torch made the storage itself
        block = account_of(tensor.get_device()).take(0)
        block.host = host(tensor)
        tensor.untyped_storage().block = block  # type: ignore[attr-defined]  # ours
    known = block.host
    if type(known) is not Outstanding:
        known = block.host = Outstanding(block)
    known.claims[claimant] = writes or known.claims.get(claimant, False)
    return known


def release(claims: list[Outstanding], claimant: Claimant) -> None:
    """An operation has begun, or never will."""
    for each in claims:
        each.drop(claimant)
    claims.clear()


def memory_of(tensor: Tensor) -> Tensor:
    """A CPU tensor over the memory of one of a device, whoever has claimed it: for what orders itself on streams."""
    block = block_of(tensor)
    return memory(tensor) if block is not None and type(block.host) is Outstanding else host(tensor)
