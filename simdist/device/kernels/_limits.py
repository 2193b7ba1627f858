"""Refusals of a GPU only: types without a kernel, and results that could differ.

`gpu_limits.json` has the samples of torch's own tests that a GPU refused; `tools/gpu_limits.py` measured them there,
and compares virtual devices with it. Errors of the CPU's kernels are reworded as the GPU's.

In doubt: operators that are not in torch's list are not measured, and neither are refusals that depend on more than the
type of the first tensor, but for the conditions here. Measured with torch 2.11; newer ones may take more types.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from simdist.inside.torch import Operator, full_name, no_deterministic_form

__all__ = ["ONLY_CPU", "guarded", "refused_types", "reworded", "rewording", "varies"]

Kernel = Callable[..., object]
_FILE = Path(__file__).with_name("gpu_limits.json")
_NO_TYPE = re.compile(r"""^"\w+" not implemented for '(\w+)'""")
# What the CPU's kernels say of an input and a weight, or of two factors, that are not of one type.
_UNLIKE = re.compile(
    r"expected scalar type (\w+) but found (\w+)$"
    r"|Input type \((?:CPU(\w+)Type|torch\.(\w+)Tensor)\) and weight type \((?:CPU(\w+)Type|torch\.(\w+)Tensor)\)"
)
_CLASSES = ("Byte", "Char", "Double", "Float", "Int", "Long", "Short", "Half")
_UNLIKE_FACTORS = "expected m1 and m2 to have the same dtype"
_ERRORS = {"NotImplementedError": NotImplementedError, "RuntimeError": RuntimeError}

# Operators that a GPU has no kernel for: there is none here either, and torch's dispatcher says so.
ONLY_CPU = frozenset(
    f"aten::{name}"
    for name in (
        *("histogram.bin_ct", "histogram.bin_ct_out", "histogram.bins_tensor", "histogram.bins_tensor_out"),
        *("_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"),
        "narrow_copy",  # a GPU takes the composite
        *("_add_relu.Tensor", "_add_relu.Scalar", "_add_relu.out", "_add_relu_.Tensor", "_add_relu_.Scalar"),
    )
)


@functools.cache
def _limits() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return found


def _shared(name: str) -> str:
    """Return the name that the overloads of an operator and its forms in place share."""
    inside = name.removeprefix("aten::").partition(".")[0]
    return inside if inside.startswith("__") else inside.rstrip("_")


def reworded(name: str, error: RuntimeError) -> RuntimeError:
    """Return a GPU's error where the CPU's kernel of an operator refused a type; else the error itself."""
    if name.startswith("aten::convolution"):
        unlike = _UNLIKE.match(str(error))
        if unlike is not None:
            input, weight = (_class_of(each) for each in unlike.groups() if each)
            return RuntimeError(f"Input type ({input}) and weight type ({weight}) should be the same")
    if str(error).startswith(_UNLIKE_FACTORS):  # aten/src/ATen/native/cuda/Blas.cpp
        return RuntimeError(str(error).replace("m1 and m2", "mat1 and mat2", 1))
    match = _NO_TYPE.match(str(error))
    label = "" if match is None else _label_of(name)
    return (
        NotImplementedError(f"\"{label}\" not implemented for '{match[1]}'") if match is not None and label else error
    )


def _class_of(kind: str) -> str:
    """Return what torch's errors call tensors of a device and of a type (torch/csrc/Exceptions.cpp)."""
    return f"torch.cuda.{kind}Tensor" if kind in _CLASSES else f"CUDA{kind}Type"


def _label_of(name: str) -> str:
    """Return the name by which a GPU's kernel calls itself; for a helper (`_cummax_helper`) its operator's."""
    labels: Mapping[str, str] = _limits()["labels"]
    own = _shared(name)
    return labels.get(own) or labels.get(own.removeprefix("_").removesuffix("_helper"), "")


def rewording(name: str, usual: Kernel) -> Kernel:
    """Wrap a kernel of ours that calls the CPU's: it refuses in a GPU's words."""
    if not _label_of(name):
        return usual

    def kernel(*args: Any, **kwargs: Any) -> object:
        try:
            return usual(*args, **kwargs)
        except NotImplementedError as error:
            raise reworded(name, error) from None

    return kernel


@functools.cache
def _refused(name: str) -> Mapping[torch.dtype, RuntimeError]:
    """Return the types of the first tensor that only a GPU refuses, and the errors."""
    found = {}
    for said, types in _limits()["beyond"].get(_shared(name), {}).items():
        kind, _, text = said.partition(": ")
        for each in types.split():
            dtype: torch.dtype = getattr(torch, each)
            found[dtype] = _ERRORS[kind](text.replace("'*'", f"'{_name_in_cxx(dtype)}'"))
    return found


def _name_in_cxx(dtype: torch.dtype) -> str:
    """Return the name of a type in `c10::toString`, after which the old classes of tensors are named."""
    kind: str = torch.empty(0, dtype=dtype, device="cpu").type()
    return kind.removeprefix("torch.").removesuffix("Tensor")


def _alert_of(name: str) -> str:
    label: str = _limits()["alerts"].get(_shared(name), "") or _MORE_ALERTS.get(_shared(name), "")
    return label


def refused_types(name: str) -> list[torch.dtype]:
    """Return the types of an operator's first tensor that only a GPU refuses, be it in some calls only."""
    return [*_refused(name), *(_NO_PRODUCTS if name in _REDUCTIONS else ()), *_SIZED.get(name, ((),))[0]]


def varies(name: str) -> bool:
    """True if a GPU's results with that operator can differ from run to run."""
    return bool(_alert_of(name))


def guarded(op: Operator, usual: Kernel) -> Kernel:
    """Wrap the kernel of an operator: it refuses what a GPU refuses before it does anything."""
    name = full_name(op)
    refused, alert, reduction = _refused(name), _alert_of(name), _REDUCTIONS.get(name.removeprefix("aten::"))
    sized = _SIZED.get(name.removeprefix("aten::"))
    if sized is not None:
        return _sized(usual, sized[1])
    if not refused and not alert and not reduction:
        return usual
    alerts_for = _VARIES.get(_shared(name), _always)

    def kernel(*args: Any, **kwargs: Any) -> object:
        if alert and torch.are_deterministic_algorithms_enabled() and alerts_for(*args, **kwargs):
            _alert(alert)
        if refused:
            first = next(_tensors(args), None)
            if first is not None and first.dtype in refused and first.numel():
                error = refused[first.dtype]
                raise type(error)(*error.args)
        if reduction and args[0].dtype in _NO_PRODUCTS and args[2].numel() and not _adds(*args, **kwargs):
            raise NotImplementedError(f"\"{reduction}\" not implemented for '{_name_in_cxx(args[0].dtype)}'")
        return usual(*args, **kwargs)

    return kernel


def _sized(usual: Kernel, check: Callable[..., str]) -> Kernel:
    """Wrap a product of matrices: a GPU's library takes fewer of them; `check` says why, if it does not take them."""

    def kernel(one: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> object:
        if one.dim() == other.dim() == 2 and one.shape[1] == other.shape[0]:
            refusal = check(*one.shape, other.shape[1], one, other)
            if refusal:
                raise RuntimeError(refusal)
        return usual(one, other, *args, **kwargs)

    return kernel


def _of_float8(rows: int, depth: int, columns: int, one: torch.Tensor, other: torch.Tensor) -> str:
    """native/cuda/ScaledBlas.cpp (torch 2.13)."""
    if depth % 16:
        shape = f"({rows}x{depth})"
        return f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: {shape}."
    if columns % 16:
        return f"mat2 shape ({depth}x{columns}) must be divisible by 16"
    both = one.dtype is other.dtype is torch.float8_e5m2
    return "Multiplication of two Float8_e5m2 matrices is not supported" if both else ""


def _of_int8(rows: int, depth: int, columns: int, *_: torch.Tensor) -> str:
    """native/cuda/Blas.cpp (torch 2.13)."""
    if rows <= 16:
        return f"self.size(0) needs to be greater than 16, but got {rows}"
    for name, size in (("self", depth), ("mat2", columns)):
        if not size or size % 8:
            return f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
    return ""


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif type(each) in (list, tuple):
            yield from _tensors(each)


def _alert(label: str) -> None:
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(no_deterministic_form(label))
    warnings.warn(no_deterministic_form(label, warns=True), stacklevel=4)


def _always(*_: object, **__: object) -> bool:
    return True


def _of_maxima(*args: object, **_: object) -> bool:
    return args[7] == 2  # the mode


def _of_floats(tensor: torch.Tensor, *_: object, **__: object) -> bool:
    return tensor.is_floating_point()


def _weighted(tensor: torch.Tensor, weights: torch.Tensor | None = None, *_: object, **__: object) -> bool:
    return weights is not None


def _by_dimension(tensor: torch.Tensor, *others: object, dim: int | None = None, **_: object) -> bool:
    return dim is not None or bool(others)


def _reduces(*args: object, reduce: str | None = None, **_: object) -> bool:
    return reduce is not None or len(args) > 4


def _adds(*args: object, reduce: str | None = None, **_: object) -> bool:
    return (args[4] if reduce is None else reduce) in ("sum", "add")


def _multiplies(*args: object, reduce: str | None = None, **_: object) -> bool:
    return (args[4] if reduce is None and len(args) > 4 else reduce) == "prod"


def _accumulates(*args: object, accumulate: bool = False, **_: object) -> bool:
    return accumulate or (len(args) > 3 and bool(args[3]))  # else the CPU's kernel says the same


# Products that depend on sizes, with the types of the first tensor.
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SIZED: Mapping[str, tuple[tuple[torch.dtype, ...], Callable[..., str]]] = {
    **dict.fromkeys(("_scaled_mm", "_scaled_mm.out"), (_FLOAT8, _of_float8)),
    **dict.fromkeys(("_int_mm", "_int_mm.out"), ((torch.int8,), _of_int8)),
}
# Reductions of scattered values, which a GPU computes by atomic operations, and its name for itself: for types without
# these it refuses all but sums (ScatterGatherKernel.cu).
_NO_PRODUCTS = (torch.bool, torch.complex64, torch.complex128)
_GATHERING, _FILLING = "cuda_scatter_gather_base_kernel_func", "cuda_scatter_fill_base_kernel_reduce_multiply"
_REDUCTIONS = {
    **dict.fromkeys(("scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out"), _GATHERING),
    **dict.fromkeys(("scatter.reduce", "scatter_.reduce", "scatter.reduce_out"), _GATHERING),
    **dict.fromkeys(("scatter.value_reduce", "scatter_.value_reduce", "scatter.value_reduce_out"), _FILLING),
}

# Alerts that are not measured, because a deterministic forward pass takes another way (test_torch.py).
_MORE_ALERTS = {
    "_embedding_bag_dense_backward": "embedding_bag_backward_cuda_max",
    "replication_pad1d_backward": "replication_pad1d_backward_cuda",
    "replication_pad2d_backward": "replication_pad2d_backward_cuda",
    "replication_pad3d_backward": "replication_pad3d_backward_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
}
_VARIES: Mapping[str, Callable[..., bool]] = {  # when it does; others always vary
    "_embedding_bag_dense_backward": _of_maxima,
    "bincount": _weighted,
    "histc": _of_floats,
    "median": _by_dimension,
    "nanmedian": _by_dimension,
    "put": _accumulates,
    "scatter": _reduces,
    "scatter_reduce": _multiplies,
}
