"""Memory that an operation on a stream will read or write later, and that the program may touch before.

The bytes of a collective move when all of its ranks are there. Until then the memory that it fills has no values: a
kernel that touches this memory is deferred (`_deferred`), and claims in turn the memory that it will read and write; a
call that brings values to the host waits. Memory that is only read is copied when the program touches it, so the
operation reads the old values.

While a block is claimed, its `host` is an `Outstanding` instead of a CPU tensor. Kernels look at `host` anyway, so
claims cost nothing where there are none. An `Outstanding` does not keep the block: memory that the program gives up is
free at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from simdist.device._aliases import NotYet, block_of, host, memory
from simdist.device._memory import Block
from simdist.device._state import account_of

__all__ = ["Claimant", "Follower", "Outstanding", "abandon_claims", "claim", "follow_writes", "memory_of", "release"]
__all__ += ["values_now"]

Tensor = torch.Tensor

_claimed: dict[Outstanding, None] = {}  # of the running world


class Claimant(Protocol):
    """An operation that has not begun."""

    def wait_until_begun(self) -> None:
        """Park until it has read its inputs and written its outputs; called on threads of its rank and on others."""
        ...

    def copy_inputs(self, block: Block) -> None:
        """Copy the present values of a block that it reads."""
        ...


class Follower(Protocol):
    """Something that waits for claims."""

    def look(self) -> None:
        """Called after the end of the claim that it has followed."""
        ...


class Outstanding:
    """Stands for the CPU tensor of a block that operations have claimed."""

    __slots__ = ("_block", "claims", "followers", "host")

    def __init__(self, block: Block) -> None:
        self._block = weakref.ref(block)
        self.host = block.host
        self.claims: dict[Claimant, bool] = {}  # whether each claimant writes, in the order of the calls
        self.followers: dict[Claimant, list[Follower]] = {}  # they check again when this claimant has released it

    @property
    def shape(self) -> None:
        """None, so that code that compares it makes a tensor of its own.

        Raises:
            NotYet: a claimant is still to write the memory.
        """
        if True in self.claims.values():
            raise NotYet(self.wait)
        self.leave_copies()

    def leave_copies(self) -> None:
        """Let the claimants that read, up to the first that writes, copy the present values, which may change."""
        block = self._block()
        while self.claims:
            claimant, writes = next(iter(self.claims.items()))
            if writes or block is None:  # without a block nothing else can touch the memory
                break
            claimant.copy_inputs(block)
            self.drop(claimant)

    def wait(self) -> None:
        """Park until no claimant will write the memory any more."""
        # In order: a claimant that reads what another has still to write copies nothing before that is there.
        for claimant, writes in list(self.claims.items()):
            if claimant not in self.claims:
                continue  # it has begun meanwhile
            block = self._block()
            if writes or block is None:
                claimant.wait_until_begun()
            else:
                claimant.copy_inputs(block)
                self.drop(claimant)

    def drop(self, claimant: Claimant) -> None:
        """Drop the claim of a claimant that no longer needs the memory."""
        self.claims.pop(claimant, None)
        block = self._block()
        if not self.claims:
            _claimed.pop(self, None)
            if block is not None and block.host is self:
                block.host = self.host


def claim(tensor: Tensor, claimant: Claimant, *, writes: bool) -> Outstanding:
    """Claim a device's tensor for an operation that will read or write it; `release` drops the claim."""
    block = block_of(tensor)
    if block is None:  # torch made the storage itself
        block = account_of(tensor.get_device()).take(0)
        block.host = host(tensor)
        tensor.untyped_storage().block = block  # type: ignore[attr-defined]  # ours
    known = block.host
    if type(known) is not Outstanding:
        known = block.host = Outstanding(block)
        _claimed[known] = None
    known.claims[claimant] = writes or known.claims.get(claimant, False)
    return known


def abandon_claims() -> None:
    """Drop all claims when a world ends: claimants hold tensors that the garbage collector can't find through them."""
    for each in list(_claimed):
        each.claims.clear()
        each.followers.clear()
    _claimed.clear()


def release(claims: list[Outstanding], claimant: Claimant) -> None:
    """Drop the claims of an operation that has begun, or never will."""
    for each in claims:
        each.drop(claimant)
    for each in claims:  # after all claims are gone
        for follower in each.followers.pop(claimant, ()):
            follower.look()
    claims.clear()


def memory_of(tensor: Tensor) -> Tensor:
    """Return a CPU tensor over a device's tensor, claimed or not, for operations that order themselves on streams.

    The result does not keep the device's storage: memory that the program gives up is free, though its bytes are still
    used.
    """
    if not tensor.is_cuda:
        return tensor
    block = block_of(tensor)
    base = None if block is None else block.host
    if type(base) is Outstanding:
        base = base.host
    if not isinstance(base, Tensor) or tensor.is_conj() or tensor.is_neg():
        return memory(tensor) if block is not None and type(block.host) is Outstanding else host(tensor)
    size = tensor.element_size()
    storage = tensor.untyped_storage()
    begin = int(base.storage_offset()) * base.element_size()
    if getattr(storage, "is_part", False):
        begin = storage.data_ptr() - base.untyped_storage().data_ptr()
    if begin % size:
        return memory(tensor)
    made = torch.empty(0, dtype=tensor.dtype)
    place = begin // size + tensor.storage_offset()
    return made.set_(base.untyped_storage(), place, tensor.shape, tensor.stride())


def values_now(tensor: Tensor) -> Tensor | None:
    """Return a CPU tensor over a device's tensor, for observers; None while an operation has still to fill it.

    Unlike the program's own reading this waits for nothing, and leaves claims as they are.
    """
    block = getattr(tensor.untyped_storage(), "block", None)
    if block is not None and type(block.host) is Outstanding and True in block.host.claims.values():
        return None
    return memory(tensor)


def follow_writes(tensor: Tensor, follower: Follower) -> Callable[[], bool]:
    """Let an observer look before any later operation, once those called so far have written a device's tensor.

    Returns a function that says whether they have. `memory_of` shows the values then: later operations may have claimed
    the memory, but do not begin before the observer has looked.
    """
    block = block_of(tensor)
    known = None if block is None else block.host
    if type(known) is Outstanding:
        for claimant, writes in reversed(known.claims.items()):
            if writes:
                known.followers.setdefault(claimant, []).append(follower)
                return lambda: claimant not in known.claims
    return lambda: True
