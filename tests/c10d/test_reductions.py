"""Every reduction, bit for bit, compared with an emulator that moves segments by Gloo's schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.c10d import ring
from tests.c10d.worlds import attempt, in_group, now_ns, sleep_s

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
PAIRS = (
    [(dtype, op) for dtype in FLOATS for op in ("sum", "avg", "product", "max", "min")]
    + [(dtype, op) for dtype in INTEGERS for op in ("sum", "product", "max", "min", "band", "bor", "bxor")]
    + [(dtype, "sum") for dtype in COMPLEX]
)
POWERS = 10.0 ** np.arange(-3, 3)
LARGE = 5 << 20  # bytes: more than 2 MiB per rank of two, where all_reduce and reduce cut differently
PERIOD = 65_537  # drawn data repeats after so many elements, to save time; a prime, so that no two chunks are alike


def around_chunks(ranks: int) -> list[int]:
    return [1, 2, 3, ranks, 2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 63, 64, 65, 127, 1000, 1001, 4097]


def draw(seed: tuple[int, ...], count: int, dtype: torch.dtype, nan: bool = False) -> torch.Tensor:
    if count > PERIOD:
        return draw(seed, PERIOD, dtype, nan).repeat(-(-count // PERIOD))[:count]
    generator = np.random.default_rng(seed)
    if dtype is torch.bool:
        return torch.from_numpy(generator.integers(0, 2, count).astype(bool))
    if dtype in INTEGERS:
        return torch.from_numpy(generator.integers(-100, 100, count)).to(dtype)
    if dtype in COMPLEX:
        return torch.from_numpy(generator.normal(size=count) + 1j * generator.normal(size=count)).to(dtype)
    values = generator.normal(size=count) * POWERS[generator.integers(0, len(POWERS), count)]
    if nan:
        values[generator.random(count) < 0.3] = np.nan
    return torch.from_numpy(values).to(dtype)


def emulate(
    inputs: list[torch.Tensor], reduce: Callable[[list[ring.Array], bool], None]
) -> tuple[list[ring.Array], bool]:
    pairs = [ring.as_array(tensor) for tensor in inputs]
    buffers, brain = [buffer for buffer, _ in pairs], pairs[0][1]
    reduce(buffers, brain)
    return buffers, brain


def assert_all_reduced(inputs: list[torch.Tensor], outputs: list[torch.Tensor], op: str) -> None:
    expected, brain = emulate(inputs, lambda buffers, brain: ring.all_reduce(buffers, op, brain))
    for rank, output in enumerate(outputs):
        assert ring.same_bits(output, expected[rank], brain), (rank, op, output.dtype, output.numel())


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 17])
def test_all_reduce_adds_in_ring_order_for_every_dtype_and_operation(ranks: int) -> None:
    # Up to three ranks, every pair is tried at every size; in larger worlds at some, all pairs together at all sizes.
    some = 1 if ranks <= 3 else 4 if ranks <= 8 else 14
    counts = around_chunks(ranks)
    cases = [(dtype, op, count) for index, (dtype, op) in enumerate(PAIRS) for count in counts[index % some :: some]]
    inputs = [
        [draw((rank, index), count, dtype) for rank in range(ranks)] for index, (dtype, _, count) in enumerate(cases)
    ]

    def body(rank: int) -> list[torch.Tensor]:
        outputs = [each[rank].clone() for each in inputs]
        for output, (_, op, _) in zip(outputs, cases, strict=True):
            dist.all_reduce(output, OPS[op])
        return outputs

    results = in_group(body, ranks)

    for index, (_, op, _) in enumerate(cases):
        assert_all_reduced(inputs[index], [result[index] for result in results], op)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("op", ["max", "min", "sum", "product"])
def test_a_nan_that_is_held_stays_and_one_that_is_received_may_be_dropped(ranks: int, op: str) -> None:
    def body(rank: int) -> list[torch.Tensor]:
        outputs = [draw((rank,), 1001, dtype, nan=True) for dtype in FLOATS]
        for output in outputs:
            dist.all_reduce(output, OPS[op])
        return outputs

    results = in_group(body, ranks)

    for index, dtype in enumerate(FLOATS):
        inputs = [draw((rank,), 1001, dtype, nan=True) for rank in range(ranks)]
        assert_all_reduced(inputs, [result[index] for result in results], op)


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [(2, torch.float32), (3, torch.float32), (4, torch.float32), (2, torch.bfloat16), (3, torch.float64)],
)
def test_large_payloads_are_cut_as_gloo_cuts_them(ranks: int, dtype: torch.dtype) -> None:
    count = LARGE // dtype.itemsize + 3
    inputs = [draw((rank,), count, dtype) for rank in range(ranks)]

    def body(rank: int) -> torch.Tensor:
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        return tensor

    results = in_group(body, ranks)

    assert_all_reduced(inputs, results, "sum")


def test_the_order_of_summation_is_not_that_of_the_ranks() -> None:
    def body(rank: int) -> torch.Tensor:
        tensor = draw((rank,), 1000, torch.float32)
        dist.all_reduce(tensor)
        return tensor

    summed = in_group(body, 3)[0]
    naive = sum(draw((rank,), 1000, torch.float32) for rank in range(3))

    assert 50 < (summed != naive).sum().item() < 500  # measured on real Gloo: about 17 %


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("at_end", [False, True])
def test_reduce_leaves_on_every_rank_what_gloo_leaves_there(ranks: int, at_end: bool) -> None:
    root = ranks - 1 if at_end else 0
    pairs = [(torch.float32, "sum"), (torch.float16, "product"), (torch.bfloat16, "max"), (torch.float64, "avg")]
    pairs += [(torch.int32, "bxor"), (torch.complex64, "sum")]
    some = 1 if ranks <= 3 else 4  # as above
    counts = around_chunks(ranks)
    cases = [(dtype, op, count) for index, (dtype, op) in enumerate(pairs) for count in counts[index % some :: some]]
    if ranks <= 3 or not at_end:
        cases.append((torch.float32, "sum", (LARGE * ranks // 2) // 4 + 7))  # the loop runs on into the next chunk
    inputs = [
        [draw((rank, index), count, dtype) for rank in range(ranks)] for index, (dtype, _, count) in enumerate(cases)
    ]

    def body(rank: int) -> list[torch.Tensor]:
        outputs = [each[rank].clone() for each in inputs]
        for output, (_, op, _) in zip(outputs, cases, strict=True):
            dist.reduce(output, root, OPS[op])
        return outputs

    results = in_group(body, ranks)

    for index, (dtype, op, count) in enumerate(cases):
        expected, brain = emulate(inputs[index], lambda buffers, brain, op=op: ring.reduce(buffers, op, brain, root))  # type: ignore[misc]
        for rank, result in enumerate(results):
            assert ring.same_bits(result[index], expected[rank], brain), (rank, dtype, op, count)


def test_who_is_done_early_with_a_reduce_may_use_its_tensor_again() -> None:
    # Four floats on four ranks are two chunks, so the last rank owns none and does not wait for rank 1.
    def body(rank: int) -> tuple[list[float], list[float], float]:
        dist.barrier()
        begin = now_ns()
        sleep_s(1.0 * (rank == 1))
        tensor = torch.full((4,), 2.0**rank)
        dist.reduce(tensor, 0)
        after_s = round((now_ns() - begin) / 1e9, 2)
        left = tensor.tolist()
        tensor.fill_(-1000.0)
        sleep_s(2)
        return left, tensor.tolist(), after_s

    results = in_group(body, 4)

    overwritten = [-1000.0] * 4
    assert results[0] == ([15.0] * 4, overwritten, 1.0)
    assert results[3] == ([8.0, 8.0, 9.0, 9.0], overwritten, 0.0)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_reduce_scatter_tensor_is_one_all_reduce_of_the_whole_input(ranks: int) -> None:
    counts = (1, 2, 33, 250)
    cases = [
        (dtype, op, n) for dtype in (torch.float32, torch.bfloat16) for op in ("sum", "avg", "max") for n in counts
    ]

    def body(rank: int) -> list[torch.Tensor]:
        outputs = [torch.zeros(count, dtype=dtype) for dtype, _, count in cases]
        for index, (dtype, op, count) in enumerate(cases):
            dist.reduce_scatter_tensor(outputs[index], draw((rank, index), count * ranks, dtype), OPS[op])
        return outputs

    results = in_group(body, ranks)

    for index, (dtype, op, count) in enumerate(cases):
        inputs = [draw((rank, index), count * ranks, dtype) for rank in range(ranks)]
        expected, brain = emulate(inputs, lambda buffers, brain, op=op: ring.all_reduce(buffers, op, brain))  # type: ignore[misc]
        for rank, result in enumerate(results):
            part = expected[rank][rank * count : (rank + 1) * count]
            assert ring.same_bits(result[index], part, brain), (rank, dtype, op, count)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_reduce_scatter_of_a_list_is_one_all_reduce_per_entry(ranks: int) -> None:
    def entries(rank: int) -> list[torch.Tensor]:
        return [draw((rank, entry), 250, torch.float32) for entry in range(ranks)]

    def body(rank: int) -> torch.Tensor:
        output = torch.zeros(250)
        dist.reduce_scatter(output, entries(rank))
        return output

    results = in_group(body, ranks)

    for rank, result in enumerate(results):
        inputs = [entries(source)[rank] for source in range(ranks)]
        expected, brain = emulate(inputs, lambda buffers, brain: ring.all_reduce(buffers, "sum", brain))
        assert ring.same_bits(result, expected[rank], brain)


def test_a_complex_average_divides_parts_in_all_reduce_numbers_in_reduce() -> None:
    # all_reduce views complex tensors as real ones in Python; reduce hands them to Gloo, and torch's division of a
    # complex number by 3 rounds differently from that of its parts.
    def body(rank: int) -> list[torch.Tensor]:
        tensors = [draw((rank,), 300, torch.complex64) for _ in range(3)]
        dist.all_reduce(tensors[0])
        dist.all_reduce(tensors[1], dist.ReduceOp.AVG)
        dist.reduce(tensors[2], 0, dist.ReduceOp.AVG)
        scattered = torch.zeros(100, dtype=torch.complex64)
        dist.reduce_scatter_tensor(scattered, draw((rank,), 300, torch.complex64), dist.ReduceOp.AVG)
        return [*tensors, scattered]

    total, average, reduced, scattered = in_group(body, 3)[0]

    assert torch.equal(torch.view_as_real(average), torch.view_as_real(total) / 3)
    assert torch.equal(reduced, total / 3)
    assert torch.equal(scattered, total[:100] / 3)
    assert not torch.equal(reduced, average)


def test_bools_are_counted_as_bytes() -> None:
    def body(rank: int) -> list[int]:
        tensor = torch.ones(3, dtype=torch.bool)
        dist.all_reduce(tensor)
        return tensor.view(torch.uint8).tolist()

    assert in_group(body, 3) == [[3, 3, 3]] * 3


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.int8, "Char"), (torch.uint8, "Byte"), (torch.bool, "Bool"), (torch.int32, "Int"), (torch.int64, "Long")],
)
def test_an_average_of_integers_fails_after_the_sum(dtype: torch.dtype, name: str) -> None:
    def body(rank: int) -> tuple[str, list[int]]:
        tensor = torch.ones(3, dtype=dtype)
        said = attempt(lambda: dist.all_reduce(tensor, dist.ReduceOp.AVG))
        return said, tensor.view(torch.uint8 if dtype is torch.bool else dtype).tolist()

    expected = f"RuntimeError: result type Float can't be cast to the desired output type {name}"

    assert in_group(body, 2) == [(expected, [2, 2, 2])] * 2


def test_dense_tensors_are_reduced_in_memory_order_whatever_their_strides() -> None:
    def body(rank: int) -> torch.Tensor:
        tensor = draw((rank,), 30, torch.float32).reshape(5, 6).t()
        dist.all_reduce(tensor)
        return tensor

    results = in_group(body, 3)

    flat = [draw((rank,), 30, torch.float32) for rank in range(3)]
    expected, brain = emulate(flat, lambda buffers, brain: ring.all_reduce(buffers, "sum", brain))
    for result in results:
        assert result.shape == (6, 5)
        assert ring.same_bits(result.t(), expected[0], brain)


@pytest.mark.parametrize("call", ["all_reduce", "reduce", "all_gather", "reduce_scatter", "reduce_scatter_tensor"])
def test_an_empty_ring_waits_for_nobody(call: str) -> None:
    def body(rank: int) -> float:
        empty = torch.zeros(0)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(empty),
            "reduce": lambda: dist.reduce(empty, 0),
            "all_gather": lambda: dist.all_gather([empty] * 3, empty),
            "reduce_scatter": lambda: dist.reduce_scatter(empty, [empty] * 3),
            "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(empty, empty),
        }
        dist.barrier()
        begin = now_ns()
        sleep_s(0.5 * (rank == 1))
        calls[call]()
        return (now_ns() - begin) / 1e9

    assert in_group(body, 3) == [0.0, 0.5, 0.0]


@settings(max_examples=10, deadline=None)
@given(
    ranks=st.integers(1, 20),
    count=st.integers(1, 3000),
    pair=st.sampled_from(PAIRS),
    seed=st.integers(0, 1000),
)
def test_any_all_reduce_agrees_with_the_emulator(
    ranks: int, count: int, pair: tuple[torch.dtype, str], seed: int
) -> None:
    dtype, op = pair

    def body(rank: int) -> torch.Tensor:
        tensor = draw((seed, rank), count, dtype)
        dist.all_reduce(tensor, OPS[op])
        return tensor

    results = in_group(body, ranks)

    assert_all_reduced([draw((seed, rank), count, dtype) for rank in range(ranks)], results, op)
