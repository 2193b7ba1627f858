"""Bit-exact comparison of what ranks returned: tensors, arrays, floats, containers."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simdist.values import repr_of, shortened, text_of

if TYPE_CHECKING:
    import torch

__all__ = ["difference", "near"]

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6  # the differences that another order of sums may cause over a training


def difference(left: object, right: object) -> str | None:
    """Return the first place where the two differ, with both values; None if they are equal bit for bit.

    A NaN equals itself, 0.0 and -0.0 differ, and so do values of different types.
    """
    try:
        return _difference(left, right, "", _same)
    except RecursionError:
        return "value: nested too deep to be compared"


def near(left: object, right: object) -> str | None:
    """As `difference`, but floats may differ by 1 in 10 000, as sums in another order do."""
    try:
        return _difference(left, right, "", _near)
    except RecursionError:
        return "value: nested too deep to be compared"


def _difference(left: Any, right: Any, where: str, equal: Callable[[Any, Any], bool]) -> str | None:
    if type(left) is not type(right):
        return f"{where or 'value'}: {_shown(left)} and {_shown(right)} are of different types"
    if isinstance(left, Mapping):
        if list(left) != list(right) and set(left) != set(right):
            return f"{where or 'value'}: keys {_shown(list(left))} and {_shown(list(right))}"
        pairs = ((f"{where}[{key!r}]", left[key], right[key]) for key in left)
    elif isinstance(left, list | tuple):
        if len(left) != len(right):
            return f"{where or 'value'}: {len(left)} and {len(right)} entries"
        pairs = ((f"{where}[{index}]", one, other) for index, (one, other) in enumerate(zip(left, right, strict=True)))
    else:
        try:
            same = equal(left, right)
        except Exception as error:  # the value's own `==`
            return f"{where or 'value'}: {_shown(left)} can't be compared: {type(error).__name__}: {text_of(error)}"
        return None if same else _difference_of_values(left, right, where)
    return next(
        (text for place, one, other in pairs if (text := _difference(one, other, place, equal)) is not None), None
    )


def _difference_of_values(left: Any, right: Any, where: str) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(left, torch.Tensor) and _alike(left, right):
        from simdist._content import bytes_of

        size = left.element_size()
        differ = (bytes_of(left).reshape(-1, size) != bytes_of(right).reshape(-1, size)).any(dim=1)
        first = int(differ.nonzero()[0])
        index = torch.unravel_index(torch.tensor(first), left.shape)
        place = "".join(f"[{int(each)}]" for each in index)
        one, other = (each.detach().reshape(-1)[first].item() for each in (left, right))
        return f"{where or 'value'}{place}: {one!r} and {other!r} ({int(differ.sum())} of {differ.numel()} differ)"
    return f"{where or 'value'}: {_shown(left)} and {_shown(right)}"


def _alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True if two tensors have elements to compare one by one."""
    return bool(left.shape == right.shape and left.dtype == right.dtype and left.numel() > 1)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(left, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        from simdist._content import bytes_of

        return bool(torch.equal(bytes_of(left), bytes_of(right)))
    if numpy is not None and isinstance(left, numpy.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return bool((left == right).all() if left.dtype.hasobject else left.tobytes() == right.tobytes())
    return bool(left == right)


def _near(left: Any, right: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(left, float):
        return math.isclose(left, right, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE) or _same(left, right)
    if torch is not None and isinstance(left, torch.Tensor) and left.is_floating_point():
        alike = left.dtype == right.dtype and left.shape == right.shape
        return bool(alike and torch.allclose(left, right, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True))
    if numpy is not None and isinstance(left, numpy.ndarray) and left.dtype.kind == "f":
        alike = left.dtype == right.dtype and left.shape == right.shape
        return bool(alike and numpy.allclose(left, right, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True))
    return _same(left, right)


def _shown(value: object) -> str:
    return shortened(repr_of(value), 40)
