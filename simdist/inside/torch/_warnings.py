"""Warnings that torch shows once in a process.

`TORCH_WARN_ONCE` notes in a variable of its place in C++ that the warning was shown. Python can neither read nor clear
that note. With `torch.set_warn_always(True)` torch shows the warning every time, and writes no note.

In doubt: C++ does not say which warnings are of this kind, so they are listed here, by how their texts begin. Left out:
those of TorchScript's fusers, of quantized and of lazy tensors, and of the profiler.

Most functions hand a warning on to Python. In others, such as those of DDP's reducer, an object of C++ writes it to
stderr: there a copy of its table of functions has our own in place of the one that writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import torch

from simdist.errors import UnsupportedError
from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings, missing
from simdist.inside.torch._cxx import BeforeTable, Pointer, copy_table, keep_for_ever, library, table_of

__all__ = ["SHOWN_ONCE", "log_once", "show_always", "shows_always", "storage_warning", "unwarned", "write_by"]

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
    try:
        module._showwarnmsg = lambda shown: texts.append(str(shown.message))
        yield texts
    finally:
        module.filters.remove(_ALWAYS)
        module._showwarnmsg = show


_ALWAYS = ("always", None, Warning, None, 0)

Write = Callable[[str, str, str], bool]
"""Takes a warning's text, the name of its function and its place; False if C++ has to write it after all."""

_HANDLER = "_ZN3c1012WarningUtils19get_warning_handlerEv"
_HANDLER_TABLE = "_ZTVN3c1014WarningHandlerE"
_TEXT = "_ZNK3c107Warning3msgB5cxx11Ev"
_PLACE = "_ZNK3c107Warning15source_locationEv"
_PROCESS = 2  # in the handler's table, after two destructors

_write: Write | None = None


class _Text(ctypes.Structure):
    _fields_ = (("data", Pointer), ("size", ctypes.c_size_t))


class _Place(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char_p), ("file", ctypes.c_char_p), ("line", ctypes.c_uint32))


def write_by(write: Write | None) -> None:
    """Have a function write the warnings that C++ would write to stderr; None: C++ does."""
    global _write
    _write = write
    if (found := _handler()) is not None:
        handler, plain, ours = found
        Pointer.from_address(handler).value = plain if write is None else ours


@functools.cache
def _handler() -> tuple[int, int, int] | None:
    """The address of the object that writes warnings, of its table and of ours; None if they are not as expected."""
    try:
        core = library("libc10.so")
        find, text_of, place_of = core[_HANDLER], core[_TEXT], core[_PLACE]
        table = (Pointer * BeforeTable).in_dll(core, _HANDLER_TABLE)
    except (AttributeError, UnsupportedError, ValueError):
        return None
    find.restype, text_of.restype, place_of.restype = Pointer, ctypes.POINTER(_Text), ctypes.POINTER(_Place)
    text_of.argtypes = place_of.argtypes = (Pointer,)
    handler, plain = find(), ctypes.addressof(table) + ctypes.sizeof(table)
    if Pointer.from_address(handler).value != plain:
        return None
    kind = ctypes.CFUNCTYPE(None, Pointer, Pointer)
    write_plainly = kind(table_of(handler)[_PROCESS])

    def process(this: int, warning: int) -> None:
        text, place = text_of(warning).contents, place_of(warning).contents
        words = ctypes.string_at(text.data, text.size), place.function, place.file
        message, function, file = (each.decode(errors="replace") for each in words)
        if _write is None or not _write(message, function, f"{Path(file).name}:{place.line}"):
            write_plainly(this, warning)

    processing = kind(process)
    ours, held = copy_table(table_of(handler), _PROCESS + 1, {_PROCESS: processing})
    keep_for_ever(held, processing)
    return handler, plain, ours


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
