"""What judges read of memory, with the extension and without it."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from simdist.judges._bits import first_not_finite
from simdist.native import NOT_LOOKED, _folds, copied, holds, lying, place_not_finite

Tensor = torch.Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ODD = (float("inf"), -float("inf"), float("nan"), -float("nan"))


@pytest.fixture(params=["native", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the extension, and without it."""
    if request.param == "native":
        request.getfixturevalue("native")
    else:
        monkeypatch.setattr(_folds, "module", None)
    return str(request.param)


def places(*tensors: Tensor | None) -> tuple[list[int], list[int]]:
    found = lying(list(tensors))
    assert found is not None
    return found


@pytest.mark.usefixtures("either")
def test_memory_holds_its_copy_until_a_bit_changes() -> None:
    numbers, flags = torch.arange(7.0), torch.ones(3, dtype=torch.bool)
    addresses, sizes = places(numbers, None, flags)

    copies = copied(addresses, sizes)

    assert copies == [bytes(numbers.view(torch.uint8).tolist()), None, b"\1\1\1"]
    assert holds(addresses, copies)
    flags[1] = False
    assert not holds(addresses, copies)


@pytest.mark.usefixtures("either")
def test_what_is_missing_is_like_nothing_else() -> None:
    numbers = torch.ones(2)
    addresses, sizes = places(numbers)

    assert not holds(addresses, [None])
    assert not holds([0], copied(addresses, sizes))
    assert holds([0], [None])


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
    assert (first_not_finite([one, odd]) == 1) is dtype.is_floating_point  # of complex numbers nothing is said


class Odd(Tensor):
    """A tensor that may have operators of its own."""


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
    assert lying([torch.ones(2), odd]) is None
    assert place_not_finite([torch.ones(2), odd]) == NOT_LOOKED


@pytest.mark.usefixtures("either")
def test_a_tensor_lies_where_torch_says() -> None:
    whole, parameter = torch.arange(6.0), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    assert lying([whole[2:], None, parameter]) == ([whole.data_ptr() + 8, 0, parameter.data_ptr()], [16, 0, 24])
    assert lying([]) == ([], [])


def test_bad_arguments_are_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="each address has a size"):
        native.copied([0], [])
    for call in (native.lying, lambda *given: native.not_finite(*given, {})):
        for tensors, plain in (((), frozenset()), ([], set())):
            with pytest.raises(TypeError, match="a list of tensors and a frozenset of their types"):
                call(tensors, plain)
    with pytest.raises(TypeError, match="a list with a copy for each address"):
        native.holds([0], [])
    with pytest.raises(TypeError, match="expected bytes"):
        native.holds([1], ["x"])
