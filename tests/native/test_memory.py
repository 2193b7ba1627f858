"""Memory that judges read, and the state of generators, with the extension and without it."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from simdist.c10d.surface._memory import flat, flat_uniform
from simdist.inside.torch import TENSOR_TABLE
from simdist.judges._bits import first_not_finite
from simdist.native import (
    NOT_LOOKED,
    ROWS,
    _folds,
    _memory,
    copied,
    exchanging,
    holds,
    place_not_finite,
)

Tensor = torch.Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ODD = (float("inf"), -float("inf"), float("nan"), -float("nan"))


@pytest.fixture(params=["native", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the extension, and without it."""
    if request.param == "native":
        request.getfixturevalue("native")
    else:
        monkeypatch.setattr(_folds, "module", None)
    return str(request.param)


@pytest.mark.usefixtures("either")
def test_memory_holds_its_copy_until_a_bit_changes() -> None:
    tensors = [torch.arange(7.0), None, flags := torch.ones(3, dtype=torch.bool)]

    copies = copied(tensors, 31)

    assert copies == [bytes(torch.arange(7.0).view(torch.uint8).tolist()), None, b"\1\1\1"]
    assert holds(tensors, copies)
    flags[1] = False
    assert not holds(tensors, copies)


@pytest.mark.usefixtures("either")
def test_what_is_missing_is_like_nothing_else() -> None:
    numbers = torch.ones(2)

    assert not holds([numbers], [None])
    assert not holds([None], copied([numbers], 8) or [])
    assert not holds([numbers[:1]], copied([numbers], 8) or [])
    assert holds([None], [None])


@pytest.mark.usefixtures("either")
def test_no_more_is_copied_than_is_asked_for() -> None:
    assert copied([torch.ones(2), None, torch.ones(1)], 12) is not None
    assert copied([torch.ones(2), None, torch.ones(1)], 11) is None


@pytest.mark.usefixtures("either")
def test_places_hold_what_was_put_there_until_a_byte_changes() -> None:
    first, second = torch.zeros(5, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)
    where = [(first[1:].data_ptr(), 3), (second.data_ptr(), 3)]
    exchange = exchanging([(first[2:].data_ptr(), 1), where[1]], where)

    assert exchange(b"", b"abcdef")
    assert (first.tolist(), second.tolist()) == ([0, *b"abc", 0], [*b"def"])
    assert exchange(b"bdef", b"")
    second[2] = 0
    assert not exchange(b"bdef", b"ghijkl")
    assert (first.tolist(), second.tolist()) == ([0, *b"abc", 0], [*b"de", 0])
    assert exchange(b"bde\0", b"ghijkl")
    assert (first.tolist(), second.tolist()) == ([0, *b"ghi", 0], [*b"jkl"])


@pytest.mark.parametrize("kind", ["native", "python"])
def test_a_row_is_of_one_dimension_with_elements_side_by_side(kind: str, request: pytest.FixtureRequest) -> None:
    ask: Callable[[object], object] = _memory._row
    if kind == "native":
        ask = functools.partial(request.getfixturevalue("native").row, _folds.PLAIN, TENSOR_TABLE)
    for number, (dtype, element) in enumerate(ROWS):
        assert ask(torch.ones(3, dtype=dtype)) == (number, 3 * element)
        assert ask(torch.nn.Parameter(torch.ones(9, dtype=dtype)[2:4], requires_grad=False)) == (number, 2 * element)
    others: list[object] = [
        torch.ones(2, 2),
        torch.ones(()),
        torch.ones(6)[::3],
        torch.ones(6)[::5][:1],
        torch.empty(0),
    ]
    others += [torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2).as_subclass(Odd)]
    others += [torch.ones(2, dtype=dtype) for dtype in (torch.bool, torch.complex64, torch.uint16, torch.float8_e5m2)]
    for other in (*others, None, "text", [torch.ones(2)]):
        assert ask(other) is None, other


def test_addresses_and_contents_are_those_of_plain_memory(native: ModuleType) -> None:
    addresses = functools.partial(native.addresses, _folds.PLAIN, TENSOR_TABLE)
    content = functools.partial(native.content, _folds.PLAIN, TENSOR_TABLE)
    whole, few = torch.arange(6.0), torch.tensor([1, 2, 3], dtype=torch.int16)

    assert addresses([whole[2:], few.view(3, 1)]) == [whole.data_ptr() + 8, few.data_ptr()]
    assert content(few.view(3, 1), 6) == b"\1\0\2\0\3\0"
    assert content(few, 5) is None
    for odd in (whole[::2], torch.ones(2).to_sparse(), torch.empty(0), torch.ones(2).as_subclass(Odd)):
        assert addresses([few, odd]) is None
        assert content(odd, 100) is None
    for dtype in (torch.bool, torch.complex64, torch.uint16):
        assert content(torch.ones(2, dtype=dtype), 100) is None


def test_tensors_are_uniform_that_are_dense_and_have_one_type_and_shape(native: ModuleType) -> None:
    uniform = functools.partial(native.uniform, _folds.PLAIN, TENSOR_TABLE)
    one, whole = torch.ones(2, 3), torch.arange(12.0)

    assert uniform([])
    assert uniform([one, whole[6:].view(2, 3), torch.nn.Parameter(one), one.clone().t().contiguous().view(2, 3)])
    others = [torch.ones(3, 2), torch.ones(6), torch.ones(2, 3, 1), torch.ones(2, 3).double(), torch.ones(3, 2).t()]
    others += [torch.ones(2, 3, dtype=torch.int32), torch.ones(2, 3).to_sparse(), torch.ones(2, 3).as_subclass(Odd)]
    others += [torch.ones(2, 3, device="meta"), torch.ones(4, 3)[::2]]
    for other in others:
        assert not uniform([one, other]), other
        assert not uniform([other, one]), other
    assert not uniform([torch.empty(0)])


def test_flat_memory_of_many_is_that_of_each() -> None:
    cases = [
        [torch.arange(6.0).view(2, 3), torch.arange(12.0)[6:].view(2, 3)],
        [torch.arange(3), torch.arange(6)[3:]],
        [torch.ones(1), torch.ones(6)[::5][:1]],
        [torch.tensor([1 + 2j]), torch.tensor([3j]).conj()],
        [torch.ones(2, dtype=torch.bool)],
        [torch._neg_view(torch.ones(3)), torch.ones(3)],
        [torch.ones(3, 2).t(), torch.ones(2, 3)],
    ]
    for tensors in cases:
        whole = flat_uniform(tensors)
        if whole is not None:
            for found, tensor in zip(whole, tensors, strict=True):
                expected = flat(tensor)
                assert (found.data_ptr(), found.shape, found.dtype, found.stride(), found.requires_grad) == (
                    *(expected.data_ptr(), expected.shape, expected.dtype, expected.stride(), False),
                )
    beyond = torch.ones(4)
    beyond.untyped_storage().resize_(8)
    assert flat_uniform([torch.ones(4), beyond]) is None
    assert [flat_uniform(tensors) is None for tensors in cases] == [_folds.module is None] * 3 + [True] * 4


@pytest.mark.parametrize("looks", [True, False])
def test_the_extension_looks_nowhere_that_it_has_no_place_or_no_bytes_for(native: ModuleType, looks: bool) -> None:
    memory = torch.zeros(2, dtype=torch.uint8)

    def call(place: object, contents: object) -> None:
        native.exchange(*((place, b"", contents, b"") if looks else (b"", place, b"", contents)))

    here = struct.pack("NN", memory.data_ptr(), 1)
    for place, contents in (
        *((struct.pack("NN", 0, 1), b"a"), (b"", b"a"), (here, b"ab"), (here + here, b"a"), (here + here, b"abc")),
        *((here[:-1], b"a"), (here[:-1], b"")),
    ):
        with pytest.raises(ValueError, match="stretch"):
            call(place, contents)
    others: list[tuple[object, object]] = [(here, "a"), (here, [b"a"]), ([memory.data_ptr(), 1], b"a"), (None, b"")]
    for given in others:
        with pytest.raises(TypeError):
            call(*given)
    assert memory.tolist() == [0, 0]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", [0, 4095, 4096, 9000])
def test_a_value_that_is_no_number_is_found_wherever_it_is(dtype: torch.dtype, odd: float, place: int) -> None:
    biggest = torch.full((9001,), torch.finfo(dtype).max, dtype=dtype)
    with_odd = biggest.clone()
    with_odd[place] = odd

    assert first_not_finite([None, biggest, torch.tensor([2**31 - 1], dtype=torch.int32)]) is None
    assert first_not_finite([None, biggest, with_odd, with_odd]) == 2


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2])
def test_types_that_the_extension_does_not_know_are_looked_at_without_it(dtype: torch.dtype) -> None:
    one, odd = torch.ones(4).to(dtype), torch.tensor([1.0, float("nan")]).to(dtype)

    assert place_not_finite([one]) == NOT_LOOKED
    assert first_not_finite([one]) is None
    assert (first_not_finite([one, odd]) == 1) is dtype.is_floating_point  # complex numbers are not checked


class Odd(Tensor):
    """A tensor class that may have its own operators."""


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    "odd",
    [
        torch.ones(2, 2).t(),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.empty(0),
        torch.ones(1, dtype=torch.complex64).conj().imag,
        torch.ones(2).as_subclass(Odd),
    ],
    ids=["strided", "sparse", "meta", "empty", "negated", "subclass"],
)
def test_only_plain_memory_has_a_place(odd: Tensor) -> None:
    assert copied([torch.ones(2), odd], 100) is None
    assert not holds([odd], [b"\0\0\x80?\0\0\x80?"])
    if not odd.is_neg():
        assert place_not_finite([torch.ones(2), odd]) == NOT_LOOKED


@pytest.mark.usefixtures("either")
def test_a_negated_view_is_as_finite_as_its_memory() -> None:
    negated = torch.complex(torch.ones(2), torch.tensor([1.0, -float("inf")])).conj().imag

    assert negated.is_neg()
    assert first_not_finite([negated[:1], negated]) == 1


@pytest.mark.usefixtures("either")
def test_views_and_parameters_are_read_where_they_lie() -> None:
    whole, parameter = torch.arange(6.0), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    assert copied([whole[2:], None, parameter], 40) == [
        bytes(whole[2:].view(torch.uint8).tolist()),
        None,
        bytes(parameter.detach().view(torch.uint8).tolist()),
    ]
    assert copied([], 0) == []


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (3, 1), (2, 1, 2)])
def test_dense_tensors_of_any_shape_are_read(shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, float("nan"))

    assert copied([tensor], 100) == [bytes(tensor.reshape(-1).view(torch.uint8).tolist())]
    assert first_not_finite([tensor]) == 0


def test_bad_arguments_are_refused(native: ModuleType) -> None:
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    calls: dict[str, tuple[object, ...]] = {"copied": (table, 0), "holds": (table, []), "not_finite": (table,)}
    for name, others in calls.items():
        with pytest.raises(TypeError, match="a list of tensors is taken"):
            getattr(native, name)((), frozenset(), *others)
        with pytest.raises(TypeError, match="a frozenset of types of tensors is taken"):
            getattr(native, name)([], set(), *others)
    for name in ("addresses", "uniform"):
        with pytest.raises(TypeError, match="a list of tensors is taken"):
            getattr(native, name)(frozenset(), table, ())
    for name, last in (("row", (None,)), ("addresses", ([],)), ("uniform", ([],)), ("content", (None, 0))):
        with pytest.raises(TypeError, match="a frozenset of types of tensors is taken"):
            getattr(native, name)(set(), table, *last)
    plain = frozenset((torch.Tensor,))
    with pytest.raises(ValueError, match="PyCapsule_GetPointer called with invalid PyCapsule object"):
        native.not_finite([], plain, None)
    with pytest.raises(TypeError, match="a list with a copy for each tensor"):
        native.holds([None], plain, table, [])
    with pytest.raises(TypeError, match="expected bytes"):
        native.holds([torch.ones(1)], plain, table, ["x"])
