"""The native folds compared with those in Python, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simdist.c10d.backends.gloo import _costs
from simdist.c10d.backends.gloo import _folds as gloo
from simdist.c10d.backends.nccl.kernels import _folds as nccl
from simdist.native import _folds, copy_each, ring

Tensor = torch.Tensor
Case = tuple[torch.dtype, str]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GLOO = [(dtype, name) for dtype in FLOATS for name in ("sum", "avg", "product", "min", "max")]
GLOO += [(dtype, name) for dtype in INTEGERS for name in ("sum", "product", "min", "max", "band", "bor", "bxor")]
NCCL = [(dtype, name) for dtype in FLOATS + INTEGERS for name in ("sum", "avg", "product", "min", "max")]
ODD = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), -float("nan"), 1e-45, -1e-45, 6e-8, 1e-40, 3.4e38, 65504.0)
TILE = 4096  # bytes

# One module serves all examples of a test.
one_module = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
kinds_of_values = st.sampled_from(["numbers", "few", "odd", "bits"])
lengths = st.one_of(st.integers(0, 70), st.sampled_from([127, 1000, 1023, 2047, 2048, 2049, 4096, 4097, 8193, 20011]))


def drawn(seed: Sequence[int], length: int, dtype: torch.dtype, values: str, offset: int = 0) -> Tensor:
    """Return a tensor that begins `offset` elements after the begin of its memory."""
    chance = np.random.default_rng(seed)
    count = length + offset + 1  # torch can't view empty memory as another type
    size = dtype.itemsize
    if values == "bits" or not dtype.is_floating_point:
        memory = torch.from_numpy(chance.integers(0, 256, count * size, dtype=np.uint8))
        whole = memory.view(WORDS[size]).view(dtype)
    else:
        whole = torch.from_numpy(chance.normal(size=count) * 10.0 ** chance.integers(-3, 3, count)).to(dtype)
        if values == "few":  # equal values, and zeros of both signs
            whole = torch.from_numpy(chance.choice([0.0, -0.0, 1.0, -1.0], count)).to(dtype)
        elif values == "odd":
            odd = chance.random(count) < 2 / max(2, length)
            whole[torch.from_numpy(odd)] = torch.from_numpy(chance.choice(ODD, int(odd.sum()))).to(dtype)
    return whole[offset : offset + length]


def bits(tensors: Sequence[Tensor]) -> list[list[int]]:
    return [tensor.view(WORDS[tensor.element_size()]).tolist() for tensor in tensors]


def assert_same(fold: Callable[[list[Tensor]], Sequence[Tensor]], make: Callable[[], list[Tensor]]) -> None:
    """Require that a fold leaves the same in all tensors with the extension and without."""
    native = make()
    left = [*fold(native), *native]
    with mock.patch.object(_folds, "module", None):
        python = make()
        right = [*fold(python), *python]
    for here, there in zip(left, right, strict=True):
        words = WORDS[here.element_size()]
        assert torch.equal(here.view(words), there.view(words))


@one_module
@given(case=st.sampled_from(GLOO), ranks=st.integers(2, 17), length=lengths, values=kinds_of_values, data=st.data())
def test_an_all_reduce_over_gloo_has_the_same_bits(
    native: ModuleType, case: Case, ranks: int, length: int, values: str, data: st.DataObject
) -> None:
    dtype, reduction = case
    seed, offset = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 3))

    def fold(tensors: list[Tensor]) -> list[Tensor]:
        gloo.all_reduce(tensors, reduction)
        return []

    assert_same(fold, lambda: [drawn((seed, rank), length, dtype, values, offset) for rank in range(ranks)])


@one_module
@given(
    case=st.sampled_from(GLOO), ranks=st.integers(2, 9), length=lengths, values=kinds_of_values, in_place=st.booleans()
)
def test_a_reduce_scatter_over_gloo_has_the_same_bits(
    native: ModuleType, case: Case, ranks: int, length: int, values: str, in_place: bool
) -> None:
    dtype, reduction = case
    each = length // 3

    def fold(wholes: list[Tensor]) -> list[Tensor]:
        outputs = [
            wholes[rank][rank * each : (rank + 1) * each] if in_place else torch.zeros(each, dtype=dtype)
            for rank in range(ranks)
        ]
        gloo.reduce_parts(wholes, [(rank * each, output) for rank, output in enumerate(outputs)], reduction)
        return outputs

    assert_same(fold, lambda: [drawn((1, rank), each * ranks, dtype, values) for rank in range(ranks)])


@one_module
@given(
    case=st.sampled_from(NCCL),
    ranks=st.integers(2, 9),
    length=lengths,
    values=kinds_of_values,
    channels=st.integers(1, 3),
    loop_bytes=st.sampled_from([64, 4096, 2 << 20]),
)
def test_an_all_reduce_over_nccl_has_the_same_bits(
    native: ModuleType, case: Case, ranks: int, length: int, values: str, channels: int, loop_bytes: int
) -> None:
    dtype, reduction = case

    def fold(tensors: list[Tensor]) -> list[Tensor]:
        operands = [nccl.Operand(tensor, reduction, None, is_bool=False) for tensor in tensors]
        nccl.all_reduce(operands, channels, loop_bytes)
        return []

    assert_same(fold, lambda: [drawn((2, rank), length, dtype, values) for rank in range(ranks)])


@one_module
@given(case=st.sampled_from(NCCL), ranks=st.integers(2, 9), length=lengths, values=kinds_of_values, data=st.data())
def test_a_reduce_over_nccl_has_the_same_bits(
    native: ModuleType, case: Case, ranks: int, length: int, values: str, data: st.DataObject
) -> None:
    dtype, reduction = case
    owner, in_place = data.draw(st.integers(0, ranks - 1)), data.draw(st.booleans())

    def fold(tensors: list[Tensor]) -> list[Tensor]:
        output = tensors[owner] if in_place else torch.zeros(length, dtype=dtype)
        operands = [nccl.Operand(tensor, reduction, None, is_bool=False) for tensor in tensors]
        nccl.reduce_to(owner, operands, output)
        return [output]

    assert_same(fold, lambda: [drawn((3, rank), length, dtype, values) for rank in range(ranks)])


@one_module
@given(
    case=st.sampled_from(GLOO),
    ranks=st.integers(2, 9),
    length=lengths,
    values=kinds_of_values,
    root=st.integers(0, 8),
    largest=st.sampled_from([64, 1 << 20]),
)
def test_a_reduce_over_gloo_leaves_the_same_bits_with_all_ranks(
    native: ModuleType, case: Case, ranks: int, length: int, values: str, root: int, largest: int
) -> None:
    dtype, reduction = case

    def fold(tensors: list[Tensor]) -> list[Tensor]:
        gloo.reduce(tensors, reduction, root % ranks)
        return []

    with mock.patch.object(_costs, "MAX_SEGMENT", largest):  # small: ranks own many, so the loop runs over
        assert_same(fold, lambda: [drawn((5, rank), length, dtype, values) for rank in range(ranks)])


@one_module
@given(
    case=st.sampled_from(NCCL),
    ranks=st.integers(2, 12),
    length=lengths,
    values=kinds_of_values,
    channels=st.integers(1, 4),
    data=st.data(),
)
def test_an_all_reduce_up_trees_has_the_same_bits(
    native: ModuleType, case: Case, ranks: int, length: int, values: str, channels: int, data: st.DataObject
) -> None:
    dtype, reduction = case
    trees: list[tuple[int, nccl.Tree]] = []
    for _ in range(2):
        order = data.draw(st.permutations(range(ranks)))
        children: list[list[int]] = [[] for _ in order]
        for place, rank in enumerate(order[1:], 1):
            children[order[data.draw(st.integers(0, place - 1))]].append(rank)
        trees.append((order[0], children))

    def fold(tensors: list[Tensor]) -> list[Tensor]:
        operands = [nccl.Operand(tensor, reduction, None, is_bool=False) for tensor in tensors]
        nccl.tree_all_reduce(operands, trees, channels)
        return []

    assert_same(fold, lambda: [drawn((6, rank), length, dtype, values) for rank in range(ranks)])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_numbers_without_a_nan_are_all_done_natively(native: ModuleType, dtype: torch.dtype) -> None:
    tensors = [drawn((4, rank), 3000, dtype, "few") for rank in range(3)]

    done = [ring(name, tensors, step=-1, chunk=1000) for name in ("sum", "product", "min", "max")]

    no_halves = dtype is torch.float16 and done == [0] * 4  # if the processor can't convert them
    assert no_halves or done == [3000] * 4


def test_what_follows_the_first_nan_is_not_touched(native: ModuleType) -> None:
    tensors = [torch.ones(5000) for _ in range(3)]
    tensors[1][3000] = float("nan")

    done = ring("sum", tensors, step=-1, chunk=5000)

    assert done == 2 * TILE // 4  # the NaN is in the third tile
    assert tensors[0].tolist() == [3.0] * done + [1.0] * (5000 - done)


@pytest.mark.parametrize("length", [0, 1, 1000, 70_000])
def test_tensors_are_copied_as_they_are(native: ModuleType, length: int) -> None:
    sources = [drawn((8, index), length, dtype, "bits", 1) for index, dtype in enumerate((*FLOATS, torch.int8))]
    targets = [torch.zeros_like(source) for source in sources]

    assert copy_each([*targets, *targets[:1]], [*sources, *targets[:1]])  # one copied onto itself
    assert bits(targets) == bits(sources)


def test_a_copy_of_other_types_is_one_of_bytes_or_none(native: ModuleType) -> None:
    source, target = torch.tensor([1.5]), torch.zeros(1, dtype=torch.int32)

    assert not copy_each([target], [source])
    assert target.item() == 0
    assert copy_each([target], [source], as_bytes=True)
    assert target.view(torch.float32).item() == 1.5


@pytest.mark.parametrize(
    ("target", "source"),
    [
        pytest.param(torch.zeros(4), torch.ones(3), id="another size"),
        pytest.param(torch.zeros(8)[::2], torch.ones(4), id="strides"),
        pytest.param(torch.zeros(4), torch.ones(4, device="meta"), id="no memory"),
        pytest.param(*torch.arange(6.0).unfold(0, 4, 2), id="an overlap"),
    ],
)
def test_a_copy_that_it_can_not_make_is_not_made(native: ModuleType, target: Tensor, source: Tensor) -> None:
    before = target.tolist()

    assert not copy_each([target], [source])
    assert target.tolist() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_nan", [False, True])
def test_payloads_beyond_the_caches_have_the_same_bits(native: ModuleType, dtype: torch.dtype, with_nan: bool) -> None:
    length = (5 << 20) // 4 // dtype.itemsize + 1

    def make() -> list[Tensor]:
        tensors = [drawn((7, rank), length, dtype, "numbers") for rank in range(4)]
        if with_nan:
            tensors[2][length - 1000] = float("nan")
        return tensors

    def fold(tensors: list[Tensor]) -> list[Tensor]:
        gloo.all_reduce(tensors, "avg")
        return []

    assert_same(fold, make)


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param([torch.ones(4), torch.ones(4).double()], id="types that differ"),
        pytest.param([torch.ones(4), torch.ones(5)], id="sizes that differ"),
        pytest.param([torch.ones(8)[::2], torch.ones(4)], id="strides"),
        pytest.param([torch.ones(4, dtype=torch.complex64)] * 2, id="a type that it does not know"),
        pytest.param([torch.ones(4, device="meta")] * 2, id="no memory"),
        pytest.param([torch.arange(6.0)[:4], torch.arange(6.0)[2:]][:1] * 2, id="one memory of two ranks"),
    ],
)
def test_what_it_can_not_do_it_leaves_alone(native: ModuleType, tensors: list[Tensor]) -> None:
    assert ring("sum", tensors, step=-1, chunk=4) == 0


def test_memory_that_two_ranks_share_in_part_is_left_alone(native: ModuleType) -> None:
    memory = torch.arange(6.0)

    assert ring("sum", [memory[:4], memory[2:]], step=-1, chunk=4) == 0
    assert memory.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((0, 0, [], [], 0, 0, 1, 0, 1, 0.0, 0.0), TypeError),
        ((0, 0, 5, [], 0, 0, 1, 0, 1, 0.0, 0.0, 0), TypeError),
        ((0, 0, ["a"], [], 0, 0, 1, 0, 1, 0.0, 0.0, 0), TypeError),
        ((0, 99, [], [], 0, 0, 1, 0, 1, 0.0, 0.0, 0), ValueError),
        ((0, 0, [], [], -1, 0, 1, 0, 1, 0.0, 0.0, 0), OverflowError),
        ((0, 0, [], [], 0, 0, 1, 0, "x", 0.0, 0.0, 0), TypeError),
        ((0, 0, [], [], 0, 0, 1, 0, 1, "x", 0.0, 0), TypeError),
    ],
)
def test_arguments_that_make_no_sense_are_errors(
    native: ModuleType, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        native.ring(*arguments)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param([], id="nothing"),
        pytest.param([0, 4], id="two totals"),
        pytest.param([1], id="a step from nothing"),
        pytest.param([0, 2], id="a merge of one"),
        pytest.param([400], id="a rank that is not there"),
        pytest.param([3], id="an unknown act"),
    ],
)
def test_programs_that_make_no_sense_are_errors(native: ModuleType, program: list[int]) -> None:
    with pytest.raises(ValueError, match="program"):
        native.tree(0, 0, [0, 0], [0, 0], program, 0, 0, 0.0)
