"""One list of collectives whose results must be those of real Gloo in every bit, to be run by simulated and real ranks.

`bits_cases` is the list for a world size, `run_bits` runs it on a rank and tells a digest for each case, and
`name_difference` says where two ranks' results part. `tools/conformance.py --bits` runs all of it; `tests/parity` a
selection.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["BITS_FAMILIES", "Bench", "BitsCase", "bits_cases", "digest", "name_difference", "run_bits"]

Tensor = torch.Tensor
Result = Sequence[Tensor] | str  # what a rank holds afterwards

MIB = (1 << 20) // 4  # floats in Gloo's largest segment
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX)  # those that Gloo has functions for
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_PERIOD = 10_007  # large inputs repeat themselves: a prime, so that no chunk boundary falls on a repetition
_LARGE = 64 << 10  # bytes per rank from which a case counts as large
_HUGE_WORLD = 9  # above, no payload of two segments for each rank

_c10d: Any = dist.distributed_c10d


@dataclass(slots=True)
class Bench:
    """A rank at work: where it stands in the world, and the groups that it made for earlier cases."""

    rank: int
    world: int
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def group(self, members: tuple[int, ...]) -> Any:
        """The group of these ranks; every rank of the world asks for it."""
        if members not in self._groups:
            self._groups[members] = dist.new_group(list(members))
        return self._groups[members]

    def data(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """This rank's input: the same in every run, with NaN, infinities and zeros of both signs among the floats.

        The larger the world, the fewer of them, so that most sums are of ordinary numbers.
        """
        if count > _PERIOD:
            return self.data(name, _PERIOD, dtype).repeat(count // _PERIOD + 1)[:count]
        random = torch.Generator().manual_seed(zlib.crc32(f"{name} {self.rank}".encode()))
        if dtype.is_complex:
            return torch.randn(count, dtype=dtype, generator=random)
        if dtype is torch.bool:
            return torch.randint(0, 2, (count,), generator=random).to(dtype)
        if not dtype.is_floating_point:
            return torch.randint(-100, 100, (count,), generator=random).to(dtype)
        tensor = (torch.randn(count, generator=random) * 10).to(dtype)
        special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=dtype)
        where = torch.rand(count, generator=random) < 0.5 / self.world
        tensor[where] = special[torch.randint(0, 5, (count,), generator=random)][where]
        return tensor


@dataclass(frozen=True, slots=True)
class BitsCase:
    """One call and what it leaves on a rank.

    `moved`: nothing is computed, so that NaNs keep their bits. `large`: it takes its time.
    """

    family: str
    name: str
    compute: Callable[[Bench], Result]
    moved: bool = False
    large: bool = False

    @property
    def title(self) -> str:
        """Unique in the list."""
        return f"{self.family}: {self.name}"


def bits_cases(world_size: int, families: Collection[str] | None = None) -> list[BitsCase]:
    """The cases for a world of this size, of all families or of some; every rank runs them in this order."""
    return [case for case in _all_cases(world_size) if families is None or case.family in families]


@cache
def _all_cases(world_size: int) -> tuple[BitsCase, ...]:
    # In small worlds some sizes and groups fall together.
    every = itertools.chain.from_iterable(make(world_size) for make in _MAKERS)
    return tuple({case.title: case for case in every}.values())


def run_bits(
    world_size: int,
    titles: Collection[str] | None = None,
    *,
    words: Callable[[str], str] = str,
    whole: bool = False,
) -> list[Any]:
    """The body of a rank: join a Gloo world, run the list or what of it has these titles, tell one result for each.

    A result is a digest, or the type and text of a refusal, the latter as `words` puts it. With `whole` it is what the
    rank holds, to be shown to `name_difference`.
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
    """A hash over the bytes of tensors, in the order of their logical contents.

    All NaNs count as one, unless they were only `moved`: which sign and payload comes out of two NaNs, or of inf - inf,
    is up to the instructions that a build of Gloo happens to use. Where there is a NaN does count.
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
    """Where two results of `run_bits(..., whole=True)` part first, in words; empty if they do not."""
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


# -- reductions --------------------------------------------------------------------------------------------------------

Reduction = Callable[[Bench, Tensor, Any], Result]


def _short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(world: int) -> list[int]:
    """Around the boundaries of chunks and segments, with one or more elements for each rank or none at all."""
    near = {0, 1, 2, 3, world - 1, world, world + 1, 2 * world - 1, 2 * world, 2 * world + 1, 1000, 1001, 4097}
    return sorted(near)


def _payloads(world: int) -> Iterator[tuple[str, torch.dtype, int]]:
    """Operation, dtype and size: every operation on every dtype at one size, and many sizes for some of them."""
    for operation in OPERATIONS:
        for dtype in DTYPES:
            yield operation, dtype, 101
    for size in _sizes(world):
        yield "SUM", torch.float32, size
    for operation, dtype in (
        ("MAX", torch.float16),
        ("SUM", torch.bfloat16),
        ("SUM", torch.complex64),
        ("AVG", torch.complex128),
        ("BXOR", torch.int8),
        ("MIN", torch.float64),
    ):
        for size in (1, world + 1, 2 * world - 1, 1001):
            yield operation, dtype, size


def _large_payloads(world: int, *, several_segments: bool) -> Iterator[tuple[str, torch.dtype, int]]:
    """Around a megabyte, and over several segments of a megabyte for each rank."""
    for size in (MIB - 1, MIB, MIB + 1):
        yield "SUM", torch.float32, size
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        yield "AVG", dtype, MIB + 7
    yield "MAX", torch.float32, 2 * MIB + 11
    yield "SUM", torch.bfloat16, 5 * MIB + 3
    if several_segments and world <= _HUGE_WORLD:
        yield "SUM", torch.float32, world * MIB + 3
        yield "SUM", torch.float32, 2 * world * MIB + 5


def _of_reductions(
    family: str, payloads: Iterable[tuple[str, torch.dtype, int]], reduce: Reduction, suffix: str = ""
) -> Iterator[BitsCase]:
    for operation, dtype, size in payloads:
        name = f"{operation} {_short_name(dtype)} {size}{suffix}"

        def compute(
            bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype, size: int = size
        ) -> Result:
            return reduce(bench, bench.data(name, size, dtype), getattr(dist.ReduceOp, operation))

        yield BitsCase(family, name, compute, large=size * dtype.itemsize >= _LARGE)


def _all_reduce(bench: Bench, tensor: Tensor, operation: Any) -> Result:
    dist.all_reduce(tensor, operation)
    return [tensor]


def _reduce_to(root: int, bench: Bench, tensor: Tensor, operation: Any) -> Result:
    dist.reduce(tensor, root, operation)
    return [tensor]


def _reduce_scatter_tensor(bench: Bench, tensor: Tensor, operation: Any) -> Result:
    share = tensor.numel() // bench.world + 1 if tensor.numel() else 0
    whole = tensor.new_zeros(share * bench.world)
    whole[: tensor.numel()] = tensor
    output = torch.zeros(share, dtype=tensor.dtype)
    _c10d.reduce_scatter_tensor(output, whole, operation)
    return [output]


def _reduce_scatter(bench: Bench, tensor: Tensor, operation: Any) -> Result:
    # Entries of one list need not have the same size everywhere but must on every rank: rank q's gets q more elements.
    sizes = [tensor.numel() // bench.world + target if tensor.numel() else 0 for target in range(bench.world)]
    whole = tensor.repeat(2 + bench.world * bench.world // max(1, tensor.numel()))[: sum(sizes)]
    output = torch.zeros(sizes[bench.rank], dtype=tensor.dtype)
    dist.reduce_scatter(output, [part.clone() for part in torch.split_with_sizes(whole, sizes)], operation)
    return [output]


def _reduction_cases(world: int) -> Iterator[BitsCase]:
    yield from _of_reductions("all_reduce", _payloads(world), _all_reduce)
    yield from _of_reductions("all_reduce", _large_payloads(world, several_segments=True), _all_reduce)
    for index, payload in enumerate(_payloads(world)):
        root = index % world
        yield from _of_reductions("reduce", [payload], partial(_reduce_to, root), f" to {root}")
    for root in range(world):
        payloads = [("SUM", torch.float32, size) for size in (1, 7, world, 101, 4097)]
        payloads += [("MAX", torch.float32, 1001), ("AVG", torch.float16, 101)]
        yield from _of_reductions("reduce", payloads, partial(_reduce_to, root), f" to root {root}")
    for payload, root in zip(
        _large_payloads(world, several_segments=True), itertools.cycle((0, world - 1, 1)), strict=False
    ):
        yield from _of_reductions("reduce", [payload], partial(_reduce_to, root), f" to {root}")
    for family, reduce in (("reduce_scatter_tensor", _reduce_scatter_tensor), ("reduce_scatter", _reduce_scatter)):
        yield from _of_reductions(family, _payloads(world), reduce)
        yield from _of_reductions(family, _large_payloads(world, several_segments=False), reduce)


# -- tensors that are not one row of memory, several at once, none at all ----------------------------------------------

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # of 210 elements
    "transposed": lambda flat: flat.reshape(14, 15).t(),
    "permuted": lambda flat: flat.reshape(5, 6, 7).permute(2, 0, 1),
    "channels last": lambda flat: flat.reshape(2, 3, 5, 7).to(memory_format=torch.channels_last),
    "offset": lambda flat: torch.cat([flat.new_zeros(3), flat])[3:],
}


def _shaped_cases(world: int) -> Iterator[BitsCase]:
    def all_reduce(bench: Bench, tensor: Tensor) -> Result:
        dist.all_reduce(tensor)
        return [tensor]

    def reduce(bench: Bench, tensor: Tensor) -> Result:
        dist.reduce(tensor, 1)
        return [tensor]

    def broadcast(bench: Bench, tensor: Tensor) -> Result:
        dist.broadcast(tensor, 1)
        return [tensor]

    def all_gather(bench: Bench, tensor: Tensor) -> Result:
        parts = [torch.zeros_like(tensor) for _ in range(bench.world)]
        dist.all_gather(parts, tensor)
        return parts

    def gather(bench: Bench, tensor: Tensor) -> Result:
        parts = [torch.zeros_like(tensor) for _ in range(bench.world)] if bench.rank == 1 else None
        dist.gather(tensor, parts, 1)
        return parts or []

    def scatter(bench: Bench, tensor: Tensor) -> Result:
        output = torch.zeros_like(tensor)
        dist.scatter(output, [tensor.clone() for _ in range(bench.world)] if bench.rank == 1 else None, 1)
        return [output]

    def reduce_scatter(bench: Bench, tensor: Tensor) -> Result:
        output = torch.zeros_like(tensor)
        dist.reduce_scatter(output, [tensor.clone() for _ in range(bench.world)])
        return [output]

    def all_to_all(bench: Bench, tensor: Tensor) -> Result:
        outputs = [torch.zeros_like(tensor) for _ in range(bench.world)]
        dist.all_to_all(outputs, [tensor.clone() for _ in range(bench.world)])
        return outputs

    calls = (all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all)
    for call in calls:
        for layout, shape in LAYOUTS.items():
            for dtype in (torch.float32, torch.bfloat16, torch.complex64):
                name = f"{call.__name__} {layout} {_short_name(dtype)}"

                def compute(
                    bench: Bench,
                    name: str = name,
                    call: Callable[[Bench, Tensor], Result] = call,
                    shape: Callable[[Tensor], Tensor] = shape,
                    dtype: torch.dtype = dtype,
                ) -> Result:
                    return call(bench, shape(bench.data(name, 210, dtype)))

                yield BitsCase("shapes", name, compute)
    for dtype in (torch.float32, torch.int64):
        yield BitsCase(
            "shapes",
            f"all_reduce scalar {_short_name(dtype)}",
            lambda bench, dtype=dtype: all_reduce(bench, bench.data("scalar", 1, dtype).reshape(())),  # type: ignore[misc]
        )


def _coalesced_cases(world: int) -> Iterator[BitsCase]:
    sizes = (3, 1000, 0, 17)

    def several(bench: Bench, name: str, dtype: torch.dtype) -> list[Tensor]:
        return [bench.data(f"{name} {size}", size, dtype) for size in sizes]

    for operation in ("SUM", "AVG", "MAX"):
        for dtype in (*FLOATS, torch.int32, torch.complex64):
            name = f"{operation} {_short_name(dtype)}"

            def coalesced(
                bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype
            ) -> Result:
                tensors = several(bench, name, dtype)
                _c10d.all_reduce_coalesced(tensors, getattr(dist.ReduceOp, operation))
                return tensors

            def managed(
                bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype
            ) -> Result:
                tensors = several(bench, name, dtype)
                with _c10d._coalescing_manager():
                    for tensor in tensors:
                        dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
                return tensors

            def in_flight(
                bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype
            ) -> Result:
                tensors = several(bench, name, dtype)
                works = [dist.all_reduce(t, getattr(dist.ReduceOp, operation), async_op=True) for t in tensors]
                for work in reversed(works):
                    work.wait()
                return tensors

            yield BitsCase("coalesced", f"all_reduce_coalesced {name}", coalesced)
            yield BitsCase("coalesced", f"managed all_reduce {name}", managed)
            yield BitsCase("coalesced", f"all_reduces in flight {name}", in_flight)

    def all_gather_coalesced(bench: Bench) -> Result:
        mine = [bench.data(f"gathered {size}", size, torch.float32) for size in (3, 100)]
        lists = [[torch.zeros_like(tensor) for tensor in mine] for _ in range(bench.world)]
        dist.all_gather_coalesced(lists, mine)
        return [tensor for parts in lists for tensor in parts]

    def managed_all_gather(bench: Bench) -> Result:
        mine = [bench.data(f"gathered {size}", size, torch.float32) for size in (3, 100)]
        outputs = [torch.zeros(bench.world * tensor.numel()) for tensor in mine]
        with _c10d._coalescing_manager():
            for output, tensor in zip(outputs, mine, strict=True):
                _c10d.all_gather_into_tensor(output, tensor)
        return outputs

    def managed_reduce_scatter(bench: Bench) -> Result:
        inputs = [bench.data(f"scattered {size}", bench.world * size, torch.float32) for size in (3, 100)]
        outputs = [torch.zeros(tensor.numel() // bench.world) for tensor in inputs]
        with _c10d._coalescing_manager():
            for output, tensor in zip(outputs, inputs, strict=True):
                _c10d.reduce_scatter_tensor(output, tensor)
        return outputs

    for call in (all_gather_coalesced, managed_all_gather, managed_reduce_scatter):
        yield BitsCase("coalesced", call.__name__, call)


def _sparse_cases(world: int) -> Iterator[BitsCase]:
    for dtype in (torch.float32, torch.float64, torch.int64):
        for shape in ((8,), (4, 6), (5, 3)):
            name = f"{_short_name(dtype)} {shape}"

            def compute(
                bench: Bench, name: str = name, dtype: torch.dtype = dtype, shape: tuple[int, ...] = shape
            ) -> Result:
                hybrid = shape == (5, 3)
                rows = [[bench.rank % shape[0], 3, 1, 3]]
                columns = [] if len(shape) == 1 or hybrid else [[2, 0, bench.rank % shape[1], 0]]
                values = bench.data(name, 4 * (3 if hybrid else 1), dtype)
                tensor = torch.sparse_coo_tensor(
                    torch.tensor(rows + columns), values.reshape(4, 3) if hybrid else values, shape
                )
                dist.all_reduce(tensor)
                tensor = tensor.coalesce()
                return [tensor.indices(), tensor.values()]

            yield BitsCase("sparse", name, compute)


# -- moves -------------------------------------------------------------------------------------------------------------


def _pieces(bench: Bench, tensor: Tensor) -> list[Tensor]:
    return [torch.zeros_like(tensor) for _ in range(bench.world)]


def _chunks(bench: Bench, tensor: Tensor) -> list[Tensor]:
    return list(tensor.chunk(bench.world)) if tensor.numel() else [tensor] * bench.world


def _move_all_gather(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    parts = _pieces(bench, mine)
    dist.all_gather(parts, mine)
    return parts


def _move_all_gather_into_tensor(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(sent)
    _c10d.all_gather_into_tensor(output, mine)
    return [output]


def _move_all_to_all_single(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(sent)
    dist.all_to_all_single(output, sent)
    return [output]


def _move_all_to_all(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    parts = _pieces(bench, mine)
    dist.all_to_all(parts, _chunks(bench, sent))
    return parts


def _move_broadcast(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    dist.broadcast(mine, root)
    return [mine]


def _move_gather(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    parts = _pieces(bench, mine) if bench.rank == root else None
    dist.gather(mine, parts, root)
    return parts or []


def _move_scatter(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(mine)
    dist.scatter(output, _chunks(bench, sent) if bench.rank == root else None, root)
    return [output]


def _move_send_and_recv(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(mine)
    request = dist.isend(mine, (bench.rank + 1) % bench.world)
    dist.recv(output, (bench.rank - 1) % bench.world)
    assert request is not None
    request.wait()
    return [output]


Move = Callable[[Bench, Tensor, Tensor, int], Result]
UNROOTED: dict[str, Move] = {
    "all_gather": _move_all_gather,
    "all_gather_into_tensor": _move_all_gather_into_tensor,
    "all_to_all_single": _move_all_to_all_single,
    "all_to_all": _move_all_to_all,
    "send and recv": _move_send_and_recv,
}
ROOTED: dict[str, Move] = {"broadcast": _move_broadcast, "gather": _move_gather, "scatter": _move_scatter}


def _move_case(call: str, move: Move, dtype: torch.dtype, size: int, root: int) -> BitsCase:
    name = f"{call} {_short_name(dtype)} {size}" + (f" root {root}" if call in ROOTED else "")

    def compute(bench: Bench) -> Result:
        sent = bench.data(f"{name} all", bench.world * size, dtype)
        return move(bench, bench.data(name, size, dtype), sent, root)

    return BitsCase("moves", name, compute, moved=True, large=size * dtype.itemsize >= _LARGE)


def _move_cases(world: int) -> Iterator[BitsCase]:
    for call, move in (UNROOTED | ROOTED).items():
        for index, dtype in enumerate((*DTYPES, torch.int16)):
            for size in (1, 101):
                yield _move_case(call, move, dtype, size, index % world)
        yield _move_case(call, move, torch.float32, 0, 0)
        yield _move_case(call, move, torch.float32, 4097, 0)
        yield _move_case(call, move, torch.float32, (2 * MIB if world <= _HUGE_WORLD // 2 else MIB // 2) + 1, 1)
    for call, move in ROOTED.items():
        for root in range(world):
            yield _move_case(call, move, torch.float32, 7, root)
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.complex64):

        def uneven(bench: Bench, dtype: torch.dtype = dtype) -> Result:
            gets = [(source + 2 * bench.rank) % 5 for source in range(bench.world)]
            gives = [(bench.rank + 2 * target) % 5 for target in range(bench.world)]
            output = torch.zeros(sum(gets), dtype=dtype)
            dist.all_to_all_single(output, bench.data(f"uneven {dtype}", sum(gives), dtype), gets, gives)
            return [output]

        def uneven_lists(bench: Bench, dtype: torch.dtype = dtype) -> Result:
            gets = [(source + 2 * bench.rank) % 5 for source in range(bench.world)]
            gives = [(bench.rank + 2 * target) % 5 for target in range(bench.world)]
            outputs = [torch.zeros(size, dtype=dtype) for size in gets]
            dist.all_to_all(
                outputs, list(torch.split_with_sizes(bench.data(f"uneven {dtype}", sum(gives), dtype), gives))
            )
            return outputs

        yield BitsCase("moves", f"uneven all_to_all_single {_short_name(dtype)}", uneven, moved=True)
        yield BitsCase("moves", f"uneven all_to_all {_short_name(dtype)}", uneven_lists, moved=True)


def _object_cases(world: int) -> Iterator[BitsCase]:
    def all_gather_object(bench: Bench) -> Result:
        everyone: list[Any] = [None] * bench.world
        dist.all_gather_object(everyone, {"rank": bench.rank, "text": "x" * bench.rank})
        return repr(everyone)

    def broadcast_object_list(bench: Bench) -> Result:
        told: list[Any] = [("from the root", 1.5), {2}] if bench.rank == 0 else [None, None]
        dist.broadcast_object_list(told, 0)
        return repr(told)

    def gather_object(bench: Bench) -> Result:
        collected: list[Any] | None = [None] * bench.world if bench.rank == 1 else None
        dist.gather_object([bench.rank], collected, 1)
        return repr(collected)

    def scatter_object_list(bench: Bench) -> Result:
        dealt: list[Any] = [None]
        whole: Any = [f"for {target}" for target in range(bench.world)] if bench.rank == 0 else None
        dist.scatter_object_list(dealt, whole, 0)
        return repr(dealt)

    for call in (all_gather_object, broadcast_object_list, gather_object, scatter_object_list):
        yield BitsCase("objects", call.__name__, call)


# -- groups ------------------------------------------------------------------------------------------------------------


def _group_cases(world: int) -> Iterator[BitsCase]:
    """Groups are sorted whatever order their ranks are given in; each has an order of summation of its own."""

    def all_reduce(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def reduce(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        dist.reduce(tensor, group=group, group_dst=size - 1)
        return [tensor]

    def reduce_scatter(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        output = torch.zeros(5, dtype=tensor.dtype)
        _c10d.reduce_scatter_tensor(output, tensor[: 5 * size].clone(), group=group)
        return [output]

    def all_gather(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        parts = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor, group=group)
        return parts

    def broadcast(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        dist.broadcast(tensor, group=group, group_src=size - 1)
        return [tensor]

    groups = dict.fromkeys(
        [
            (world - 1, 0),
            tuple(range(1, world)),
            tuple(range(world))[::-1],
            tuple(range(0, world, 2)),
            tuple(sorted({0, world // 2, world - 1})),
        ]
    )
    for members in groups:
        for call in (all_reduce, reduce, reduce_scatter, all_gather, broadcast):
            for dtype in (torch.float32, torch.float16, torch.int32):
                name = f"{call.__name__} {_short_name(dtype)} in {list(members)}"

                def compute(
                    bench: Bench,
                    name: str = name,
                    call: Callable[[Bench, Any, Tensor, int], Result] = call,
                    dtype: torch.dtype = dtype,
                    members: tuple[int, ...] = members,
                ) -> Result:
                    group = bench.group(members)
                    if bench.rank not in members:
                        return []
                    return call(bench, group, bench.data(name, 1001, dtype), len(members))

                yield BitsCase("groups", name, compute)


_MAKERS: tuple[Callable[[int], Iterator[BitsCase]], ...] = (
    _reduction_cases,
    _shaped_cases,
    _coalesced_cases,
    _sparse_cases,
    _move_cases,
    _object_cases,
    _group_cases,
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
