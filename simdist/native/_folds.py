"""The extension, if it is there and enabled, and the functions for the folds of backends.

It is loaded once, when collectives are first needed. `module` is None if it is not built, if it was built from another
source than the present one, and with `SIMDIST_NATIVE=0`. Then every fold here does nothing, and returns that.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from simdist.errors import UnsupportedError
from simdist.inside.torch import TENSOR_TABLE
from simdist.native._build import source_number

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["VARIABLE", "copy_each", "partial_ring", "ring", "tree", "why_off"]

Tensor = torch.Tensor

VARIABLE = "SIMDIST_NATIVE"
_BUILD = "pip install builds it"

# In the order of the enumerations in the C++ source.
TYPES = {
    dtype: number
    for number, dtype in enumerate(
        (
            *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
            *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
        )
    )
}
_OPERATIONS = ("sum", "product", "min", "max", "fmin", "fmax", "band", "bor", "bxor")
_CODES = {
    (dtype, name): (number, operation) for dtype, number in TYPES.items() for operation, name in enumerate(_OPERATIONS)
}


def _loaded() -> tuple[ModuleType | None, str]:
    """Return the module, or the reason why there is none."""
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "0", "1"):
        raise UnsupportedError(f"{VARIABLE}: expected 0 (do without the native folds) or 1, got {wish!r}")
    if wish == "0":
        return None, f"{VARIABLE}=0 in the environment turns them off"
    try:
        from simdist import _native
    except ModuleNotFoundError:
        return None, "they are not built"
    except ImportError as error:
        return None, f"they can't be loaded: {error}"
    if source_number() not in (0, _native.SOURCE):
        return None, "they are built of another source"
    return _native, ""


module, _why_off = _loaded()


def why_off() -> str:
    """Return why the native folds are not used; empty if they are used."""
    return _why_off


def ring(
    operation: str,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor] | None = None,
    *,
    step: int,
    chunk: int,
    first: int = 0,
    last: int | None = None,
    owner: int = 0,
    factor: float = 0.0,
    divisor: float = 0.0,
    each: bool = False,
    alike: bool = False,
) -> int:
    """Fold flat tensors of all ranks around a ring, and return the first element that is not done.

    The elements from `first` to `last` are cut into chunks of `chunk` elements; the first chunk belongs to rank
    `owner`. A chunk starts at the rank that is `step` (1 or -1) away from its own rank and goes on by steps, until it
    has reached its own rank; each rank puts its operand first. Totals go into all `targets`, by default the tensors
    themselves; with `each`, the k-th target gets the k-th equal part. A `factor` multiplies each operand, rounded to
    its type; a `divisor` divides the totals. `alike`: the caller knows that all `sources` have one type and size, and
    lie flat in the memory of this process. `operation` is "sum", "product", "band", "bor", "bxor", "min" or "max" (the
    local operand stays unless the other is strictly better), "fmin" or "fmax" (a number wins against a NaN).

    Elements that are not done stay untouched: all of them if the extension is not there or can't do the fold, and those
    from some element on if only torch knows the result of a NaN there. The caller does the rest in Python.
    """
    dtype, length = sources[0].dtype, sources[0].numel()
    codes = _CODES.get((dtype, operation))
    if module is None or codes is None:
        return first
    addresses = _places(sources) if alike else _addresses(sources, dtype, length)
    if addresses is None:
        return first
    into: list[int] | None = addresses
    part = 0
    if targets is not None:
        part = length // len(targets) if each else 0
        into = _addresses(targets, dtype, part or length)
        if into is None:
            return first
    end = length if last is None else last
    done: int = module.ring(*codes, addresses, into, first, end, chunk, owner, step, factor, divisor, part)
    return done


def partial_ring(operation: str, tensors: Sequence[Tensor], root: int, *, chunk: int) -> int:
    """Fold flat tensors down a ring to one root, in place, and return the first element that is not done.

    This is a `ring` with step -1, but each of the other ranks keeps the data that it has sent on: its own operand in
    the chunk that starts with it, a partial result in the other chunks.
    """
    dtype, length = tensors[0].dtype, tensors[0].numel()
    codes = _CODES.get((dtype, operation))
    if module is None or codes is None:
        return 0
    addresses = _addresses(tensors, dtype, length)
    if addresses is None:
        return 0
    done: int = module.partial_ring(*codes, addresses, root, length, chunk)
    return done


def tree(
    operation: str,
    tensors: Sequence[Tensor],
    children: Sequence[Sequence[int]],
    root: int,
    *,
    first: int,
    last: int,
    factor: float = 0.0,
) -> int:
    """Fold flat tensors up a tree to its root, in place on all ranks, and return the first element that is not done.

    A rank combines its own operand with the totals of its children, `children[rank]`, one after the other.
    """
    dtype, length = tensors[0].dtype, tensors[0].numel()
    codes = _CODES.get((dtype, operation))
    if module is None or codes is None:
        return first
    addresses = _addresses(tensors, dtype, length)
    if addresses is None:
        return first
    done: int = module.tree(*codes, addresses, addresses, _program(children, root), first, last, factor)
    return done


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor], *, as_bytes: bool = False) -> bool:
    """Copy flat tensors, in order; False if nothing is done, and the caller has to copy in Python.

    This is the case if sizes differ, if types differ (unless they are copied `as_bytes`), if a tensor does not lie flat
    in the memory of this process, or if a target and its source overlap partly.
    """
    if module is None:
        return False
    sizes = list(map(_size, targets))
    fit = (
        sizes == list(map(_size, sources))
        and all(map(_is_flat, targets))
        and all(map(_is_flat, sources))
        and all(map(_is_here, targets))
        and all(map(_is_here, sources))
        and (as_bytes or list(map(_type, targets)) == list(map(_type, sources)))
    )
    return fit and module.copy(list(map(_address, targets)), list(map(_address, sources)), sizes)


_LOAD, _STEP, _MERGE = range(3)  # added to four times a rank


def _program(children: Sequence[Sequence[int]], root: int) -> list[int]:
    """Return the instructions for a stack of tiles, children before their parents."""
    program: list[int] = []
    open_ranks = [(root, 0)]  # each with the number of its finished children
    while open_ranks:
        rank, done = open_ranks.pop()
        below = children[rank]
        if not below:
            program.append(4 * rank + _LOAD)
        elif done:
            program.append(4 * rank + _STEP if done == 1 else _MERGE)
        if done < len(below):
            open_ranks += [(rank, done + 1), (below[done], 0)]
    return program


def _nowhere(_: object) -> None:
    return None


PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""Types of tensors that the extension reads."""

# The addresses of tensors; None if one of them is not plain, dense and on the CPU. Hot: this takes a fifth of the time
# of torch's `data_ptr`.
addresses: Callable[[list[Tensor]], list[int] | None] = (
    _nowhere if module is None or TENSOR_TABLE is None else functools.partial(module.addresses, PLAIN, TENSOR_TABLE)
)


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """Return the addresses of flat tensors."""
    return (type(tensors) is list and addresses(tensors)) or list(map(_address, tensors))


# Hot: with `map`, these take half the time of a loop.
_address: Callable[[Tensor], int] = Tensor.data_ptr
_is_flat: Callable[[Tensor], bool] = Tensor.is_contiguous
_size: Callable[[Tensor], int] = operator.attrgetter("nbytes")
_type: Callable[[Tensor], torch.dtype] = operator.attrgetter("dtype")
_is_here: Callable[[Tensor], bool] = operator.attrgetter("is_cpu")


def _addresses(tensors: Sequence[Tensor], dtype: torch.dtype, length: int) -> list[int] | None:
    """Return the addresses of tensors; None unless all have this type and length, and lie flat in this process."""
    found = [
        tensor.data_ptr()
        for tensor in tensors
        if tensor.dtype is dtype and tensor.numel() == length and tensor.is_contiguous() and tensor.is_cpu
    ]
    return found if len(found) == len(tensors) else None
