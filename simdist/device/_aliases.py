"""Tensors that say `cuda:N` over host memory, and CPU tensors over the same memory.

Both share the memory and keep it alive (`simdist.inside` makes them, by a DLPack capsule).

The Python object of a storage lives as long as the C++ storage, attributes included: its attribute `block` is the
`Block` that accounts its memory. A tensor would be the wrong place, because attributes of tensors are pickled and
copied.

Kernels in C++ make such tensors themselves, and keep the data of a `Block` in the C++ storage; `use` lets the functions
here call those kernels. Such a storage gets a `Block` when it is first asked for; the block takes over its account.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch

from simdist.device._memory import Account, Block, Device, account_class
from simdist.device._torch_core import core
from simdist.errors import UnsupportedError
from simdist.inside.torch import (
    CPU,
    exchange_memory,
    find_operator,
    negated_view,
    on_cpu,
    on_device,
    redispatching,
    to_capsule,
)

__all__ = ["Compiled", "NotYet", "account_holding", "block_of", "block_of_storage", "exchange", "host"]
__all__ += ["in_its_storage", "lowered", "memory", "part_of", "raised", "refuse", "use"]

Tensor = torch.Tensor
_as_strided = redispatching(find_operator("aten::as_strided"))


class _Figures(Protocol):
    """The figures of an account, as kernels in C++ keep them."""

    index: int


class Compiled(Protocol):
    """The module with kernels in C++ (`kernels/native/kernels.cpp`)."""

    Figures: type  # the base class of accounts
    connect: Callable[..., None]
    enable: Callable[[list[tuple[str, list[torch.dtype], bool, bool]]], None]
    disable: Callable[[], None]
    observe: Callable[[bool], None]
    adopt: Callable[[torch.UntypedStorage], tuple[_Figures, int, Tensor] | None]
    adopted: Callable[[torch.UntypedStorage, Block], None]
    part: Callable[[torch.UntypedStorage, torch.UntypedStorage, Block], torch.UntypedStorage]
    account_holding: Callable[[Tensor], object]
    host: Callable[[Tensor], Tensor]
    memory: Callable[[Tensor], Tensor]
    raised: Callable[[Tensor, Account], Tensor]


class NotYet(Exception):  # no error: the values come later
    """Memory of a device has no values yet to read or change; `wait` parks until it has."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self.wait = wait


_compiled: Compiled | None = None  # the module with kernels in C++, in worlds that have them
_known: Compiled | None = None  # the same in all later worlds, for tensors that have outlived theirs


def use(compiled: Compiled | None) -> None:
    """From now on the module with kernels in C++ makes tensors; if None, Python does."""
    global _compiled, _known
    _compiled = compiled
    _known = compiled or _known


def block_of(tensor: Tensor) -> Block | None:
    """Return the block of a tensor's storage; None where torch made the storage itself."""
    storage = tensor.untyped_storage()
    block: Block | None = getattr(storage, "block", None)
    return block_of_storage(storage) if block is None else block


def block_of_storage(storage: torch.UntypedStorage) -> Block | None:
    """Return the block of a storage; None where torch made it itself."""
    block: Block | None = getattr(storage, "block", None)
    if block is None and _known is not None:
        known = _known.adopt(storage)
        if known is not None:
            account, size, made = known
            if not isinstance(account, Account):  # its world is over
                account = account_class()(Device(1 << 62), account.index, 0)
            block = Block(account, size)
            block.host = made
            storage.block = block  # type: ignore[attr-defined]  # ours
            _known.adopted(storage, block)
    return block


def part_of(storage: torch.UntypedStorage, part: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a storage over a part of another's memory as one with its block: what claims one claims the other."""
    block = block_of_storage(storage)
    if block is None:
        return part
    if _compiled is not None:
        part = _compiled.part(storage, part, block)
    storage.is_divided = True  # type: ignore[attr-defined]  # ours
    part.block = block  # type: ignore[attr-defined]  # ours; the part keeps the other storage, and so its block
    part.is_part = True  # type: ignore[attr-defined]  # it has a size of its own, and can't be resized
    return part


def exchange(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Give a storage the memory of another one, with its block: all tensors of it see that; the other gets its own."""
    first: Any = storage
    second: Any = other
    blocks = block_of_storage(first), block_of_storage(second)
    exchange_memory(first, second)
    first.block, second.block = reversed(blocks)
    if getattr(first, "is_divided", False):  # its parts are over the memory that it had, and keep only itself
        first.earlier = (*getattr(first, "earlier", ()), second)


def account_holding(tensor: Tensor) -> Account | None:
    """Return the account that holds the memory of a tensor; None where torch made the memory itself."""
    block = getattr(tensor.untyped_storage(), "block", None)
    if block is not None:
        return block.account  # type: ignore[no-any-return]  # an attribute that we gave it
    known = None if _known is None else _known.account_holding(tensor)
    return known if isinstance(known, Account) else None


def host(tensor: Tensor) -> Tensor:
    """Return a CPU tensor over the memory of a device's tensor, after its values are there."""
    try:
        return lowered(tensor)
    except NotYet as later:
        later.wait()
    try:
        return lowered(tensor)
    except NotYet:  # nothing waits here in its process
        return memory(tensor)


def lowered(tensor: Tensor) -> Tensor:
    """As `host`, without waiting.

    Raises:
        NotYet: an operation has still to fill the memory.
    """
    if _compiled is not None and not (tensor.is_conj() or tensor.is_neg()):
        return _compiled.host(tensor)
    block = getattr(tensor.untyped_storage(), "block", None)
    if block is not None:
        known = block.host
        # Hot: most tensors are as the kernel left them, and comparing costs less than making another.
        if (
            known.shape == tensor.shape
            and known.dtype is tensor.dtype
            and known.stride() == tensor.stride()
            and known.data_ptr() == tensor.data_ptr()
            and not tensor.is_conj()
            and not tensor.is_neg()
        ):
            return known  # type: ignore[no-any-return]  # C code without types
    if tensor.is_conj():
        return lowered(tensor.conj()).conj()
    if tensor.is_neg():
        return negated_view(lowered(negated_view(tensor)))
    return on_cpu(tensor)


def in_its_storage(tensor: Tensor) -> Tensor:
    """As `lowered`, but in the one storage of all tensors there: torch compares storages to find out what overlaps.

    Not for tensors to which the kernel may give other memory.

    Raises:
        NotYet: an operation has still to fill the memory.
    """
    made = lowered(tensor)
    block = getattr(tensor.untyped_storage(), "block", None)
    if _compiled is not None or block is None or made is block.host or not made.numel() or made.is_neg():
        return made
    known = block.host
    if type(known) is not Tensor or known.dtype is not made.dtype or made.is_conj() or block.size_said is not None:
        return made
    place = known.storage_offset() + (made.data_ptr() - known.data_ptr()) // made.element_size()
    return _as_strided(CPU, known, made.shape, made.stride(), place)  # type: ignore[no-any-return]  # C code without types


def memory(tensor: Tensor) -> Tensor:
    """As `host`, of a tensor in its present layout; always made anew."""
    if _compiled is not None:
        return _compiled.memory(tensor)
    return on_cpu(tensor)


def raised(tensor: Tensor, account: Account) -> Tensor:
    """Turn a CPU tensor into one of a device, and account it there.

    Raises:
        OutOfMemoryError: the device has not so much.
        UnsupportedError: it is a sparse or quantized tensor.
    """
    if _compiled is not None and isinstance(account, _compiled.Figures):
        return _compiled.raised(tensor, account)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    try:
        block = account.take(tensor.untyped_storage().nbytes())
        capsule = to_capsule(tensor)
    except (RuntimeError, BufferError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError) or (tensor.layout is torch.strided and not tensor.is_quantized):
            raise
        refuse(tensor, error)
    block.host = tensor
    try:
        result = on_device(capsule, account.index)
    except (
        AssertionError,
        RuntimeError,
        UnsupportedError,
    ):  # torch begins CUDA here, where a tensor has outlived its world
        capsule = to_capsule(tensor)
        with core().begun():
            result = on_device(capsule, account.index)
    result.untyped_storage().block = block  # type: ignore[attr-defined]  # ours
    return result


def refuse(tensor: Tensor, cause: BaseException | None = None) -> NoReturn:
    """Refuses a tensor of a kind that devices do not have.

    Raises:
        UnsupportedError: always.
    """
    kind = str(tensor.layout if tensor.layout is not torch.strided else tensor.dtype).removeprefix("torch.")
    raise UnsupportedError(f"a virtual device has no {kind} tensors; keep them on the CPU") from cause
