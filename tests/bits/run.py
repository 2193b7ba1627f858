"""A list of collectives for simulated and real ranks: their results must be the same as real Gloo's in every bit.

`bits_cases` is the list for a world size, `run_bits` runs it on a rank and returns a digest for each case, and
`name_difference` says where two ranks' results differ first. `tools/conformance.py --bits` runs all of it;
`tests/parity` runs a selection.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from tests.bits.bench import Bench, BitsCase, Tensor
from tests.bits.moves import move_cases
from tests.bits.objects import group_cases, object_cases
from tests.bits.reductions import reduction_cases
from tests.bits.several import coalesced_cases, sparse_cases
from tests.bits.shapes import shaped_cases

__all__ = ["BITS_FAMILIES", "bits_cases", "digest", "name_difference", "run_bits"]

_MAKERS: tuple[Callable[[int], Iterator[BitsCase]], ...] = (
    reduction_cases,
    shaped_cases,
    coalesced_cases,
    sparse_cases,
    move_cases,
    object_cases,
    group_cases,
)
BITS_FAMILIES = (
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
    "reduce_scatter",
    "shapes",
    "coalesced",
    "sparse",
    "moves",
    "objects",
    "groups",
)


def bits_cases(world_size: int, families: Collection[str] | None = None) -> list[BitsCase]:
    """Return the cases for a world of this size, of all families or some; every rank runs them in this order."""
    return [case for case in _all_cases(world_size) if families is None or case.family in families]


@cache
def _all_cases(world_size: int) -> tuple[BitsCase, ...]:
    # In small worlds some sizes and groups are the same.
    every = itertools.chain.from_iterable(make(world_size) for make in _MAKERS)
    return tuple({case.title: case for case in every}.values())


def run_bits(
    world_size: int,
    titles: Collection[str] | None = None,
    *,
    words: Callable[[str], str] = str,
    whole: bool = False,
) -> list[Any]:
    """Run a rank: join a Gloo world, run all cases or those with these titles, and return one result for each.

    A result is a digest, or the type and text of a refusal, after `words` was applied to the text. With `whole` it is
    the rank's tensors, for `name_difference`.
    """
    dist.init_process_group("gloo")
    bench = Bench(dist.get_rank(), dist.get_world_size())
    chosen = [case for case in bits_cases(world_size) if titles is None or case.title in titles]
    results = [_result(case, bench, words, whole=whole) for case in chosen]
    dist.barrier()
    return results


def _result(case: BitsCase, bench: Bench, words: Callable[[str], str], *, whole: bool) -> Any:
    try:
        result = case.compute(bench)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {words(str(error))}"
    if whole or isinstance(result, str):
        return result if isinstance(result, str) else [_flat(tensor) for tensor in result]
    return digest(*result, moved=case.moved)


def digest(*tensors: Tensor, moved: bool = False) -> str:
    """Return a hash over the bytes of tensors, in the order of their logical contents.

    All NaNs count as equal, unless they were only `moved`: the sign and payload of a NaN that results from two NaNs, or
    from inf - inf, depend on the instructions in a build of Gloo. The places of NaNs do count.
    """
    whole = hashlib.sha256()
    for tensor in tensors:
        flat = _flat(tensor)
        if flat.is_floating_point() and not moved:
            flat = torch.where(flat.isnan(), torch.nan, flat)
        whole.update(b"%d " % flat.numel())
        whole.update(flat.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]


def _flat(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        tensor = torch.cat([part.reshape(-1).double() for part in (tensor.indices(), tensor.values())])
    whole = tensor.detach().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # one element may have any stride, even after `reshape`
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def name_difference(ours: Any, theirs: Any, *, moved: bool = False) -> str:
    """Return in words where two results of `run_bits(..., whole=True)` differ first; empty if they do not."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return "" if ours == theirs else f"simulated {_short(ours)}, real {_short(theirs)}"
    if [(part.numel(), part.dtype) for part in ours] != [(part.numel(), part.dtype) for part in theirs]:
        return f"simulated {_short(ours)}, real {_short(theirs)}"
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if digest(mine, moved=moved) == digest(other, moved=moved):
            continue
        size = mine.element_size()
        differ = (mine.view(torch.uint8).view(-1, size) != other.view(torch.uint8).view(-1, size)).any(1)
        if mine.is_floating_point() and not moved:
            differ &= ~(mine.isnan() & other.isnan())
        where = int(differ.nonzero()[0])
        return (
            f"tensor {index}, element {where} ({int(differ.sum())} of {mine.numel()} differ): "
            f"simulated {_element(mine, where)}, real {_element(other, where)}"
        )
    return ""


def _short(result: Any) -> str:
    return result[:300] if isinstance(result, str) else str([(part.dtype, part.numel()) for part in result])


def _element(tensor: Tensor, where: int) -> str:
    raw = tensor[where : where + 1].view(torch.uint8).tolist()
    return f"{tensor[where].item()!r} (bytes {bytes(raw).hex()})"
