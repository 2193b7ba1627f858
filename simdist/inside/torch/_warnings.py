"""Warnings that torch shows once in a process.

`TORCH_WARN_ONCE` notes in a variable of its place in C++ that the warning was shown. Python can neither read nor clear
that note. With `torch.set_warn_always(True)` torch shows the warning every time, and writes no note.

In doubt: C++ does not say which warnings are of this kind, so they are listed here, by how their texts begin. Left out:
those of TorchScript's fusers, of quantized and of lazy tensors, and of the profiler.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, cast

import torch

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings, missing

__all__ = ["SHOWN_ONCE", "log_once", "show_always", "shows_always", "storage_warning", "unwarned"]

shows_always: Callable[[], bool] = core_bindings._get_warnAlways
show_always: Callable[[bool], None] = core_bindings._set_warnAlways

SHOWN_ONCE = (
    "Converting a tensor with requires_grad=True to a scalar may lead to unexpected behavior.",
    "The given NumPy array is not writable",
    "The given buffer is not writable",
    "Creating a tensor from a list of numpy.ndarrays is extremely slow.",
    "This overload of ",
    "torch.set_default_tensor_type() is deprecated",
    "torch.sparse.SparseTensor(",
    # autograd and DDP
    "This mode should be enabled only for debugging",
    "Using backward() with create_graph=True will create a reference cycle",
    "The AccumulateGrad node's stream does not match",
    "grad and param do not obey the gradient layout contract.",
    "Grad strides do not match bucket view strides.",
    "find_unused_parameters=True was specified in DDP constructor",
    "Unable to resolve hostname to a (local) address.",
    # operators
    "A window was not provided.",
    "stft with return_complex=False is deprecated",
    "Casting complex values to real discards the imaginary part",
    "LSTM with projections is not supported with oneDNN",
    "Mismatch dtype between input and weight",
    "Tensor.H is deprecated on 0-D tensors.",
    "Tensor.T is deprecated on 0-D tensors.",
    "Tensor.mH is deprecated on 0-D tensors.",
    "Tensor.mT is deprecated on 0-D tensors.",
    "The use of `x.T` on tensors of dimension other than 2",
    "Using padding='same' with even kernel lengths",
    "Using torch.cross without specifying the dim arg is deprecated.",
    "_aminmax is deprecated",
    "adjoint() is deprecated on 0-D tensors.",
    "at::frobenius_norm is deprecated",
    "at::nuclear_norm is deprecated",
    "index_reduce() is in beta",
    "torch.chain_matmul is deprecated",
    "torch.cholesky is deprecated",
    "torch.lu_solve is deprecated",
    "torch.meshgrid: in an upcoming release",
    "torch.qr is deprecated",
    "torch.searchsorted(): ",
    "torch.triangular_solve is deprecated",
    "where received a uint8 condition tensor.",
    "Warning only once for all operators",
    # layouts
    "Sparse invariant checks are implicitly disabled.",
    *(f"Sparse {layout} tensor support is in beta" for layout in ("CSR", "CSC", "BSR", "BSC")),
    "The PyTorch API of nested tensors is in prototype stage",
)
"""How the texts of these warnings begin."""

log_once: functools._lru_cache_wrapper[None] = importlib.import_module("torch._logging._internal").warning_once
"""Logs a warning; a cache of its calls keeps it from logging the same one twice."""

storage_warning = cast("FunctionType", torch.storage._warn_typed_storage_removal)
"""Warns of typed storages, and notes in an attribute of its own that it did."""


@contextlib.contextmanager
def unwarned() -> Iterator[list[str]]:
    """Keep C++ from warning programs of a call that simdist makes, in which no other process gets the baton.

    Yields the texts of what it would show.
    """
    module: Any = warnings
    texts: list[str] = []
    show = module._showwarnmsg
    module.filters.insert(0, _ALWAYS)
    module._showwarnmsg = lambda shown: texts.append(str(shown.message))
    try:
        yield texts
    finally:
        module._showwarnmsg = show
        module.filters.remove(_ALWAYS)


_ALWAYS = ("always", None, Warning, None, 0)


@fact(
    "torch.warnings",
    what="warnings that torch shows once in a process can be repeated",
    source="torch/csrc/Module.cpp, THPModule_setWarnAlways; torch/_logging/_internal.py; torch/storage.py",
    seen="2.13, 2.14",
    feature="each rank of each world is warned",
)
def _warnings_can_be_repeated() -> str:
    return (
        missing(core_bindings, ("_get_warnAlways", "_set_warnAlways"))
        or missing(log_once, ("cache_clear", "__wrapped__"))
        or ("" if "has_warned" in storage_warning.__code__.co_consts else "typed storages note warnings elsewhere")
    )
