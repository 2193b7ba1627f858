"""A world without devices: programs find no GPU, even if their machine has one, and learn how to have virtual ones.

A program that looks for a GPU and goes on without one does the same on every machine, and no rank initializes CUDA in
the process that called simdist. Doubt: if CUDA was initialized before the world, C++ no longer checks whether it may.
Then a rank that names "cuda" nevertheless gets the GPU, and so does one that pins memory without looking for a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn

import torch

from simdist.inside.torch import (
    c10d_bindings,
    core_bindings,
    ensure_guard,
    guards_go_with_threads,
    is_built_for_cuda,
    physical_gpus,
)
from simdist.process import Patches, Replacement, on_ranks
from simdist.values import text_of

__all__ = ["explain", "without_devices"]

# Torch's errors for programs that want a device, or NCCL: a CPU build, and a CUDA build without a GPU (2.13, 2.14).
_WORDS = (
    *("Torch not compiled with CUDA enabled", "compiled without CUDA support", "requires CUDA support"),
    *("has no attribute '_cuda_", "has no attribute '_nccl_", "has no attribute 'ProcessGroupNCCL'"),
    *("Tried to instantiate dummy base class", "Cannot get CUDA generator", "doesn't have NCCL built in"),
    *("Cannot access accelerator device", "no accelerator support is found", "accelerator support: None"),
    *("no accelerator device is detected", "no pinned memory allocator", "deserialize object on a CUDA device"),
    *("Found no NVIDIA driver", "CUDA driver version is insufficient", "only supported with GPUs, no GPUs found"),
    "No CUDA GPUs are available",
    *("less than the number of accelerators available: 0", "nccl2 requires at least one CUDA device"),
)


def without_devices() -> Callable[[], None]:
    """Hide GPUs from ranks, and allow fake tensors of one on any thread; returns the function that undoes it."""
    patches = Patches()
    if is_built_for_cuda() and physical_gpus():
        patches.redirect(_of_cuda())
        patches.wrap(core_bindings, "_get_accelerator", on_ranks(lambda *_: torch.device("cpu")))
        patches.wrap(torch.cuda.Stream, "__new__", lambda original: staticmethod(on_ranks(_refuse)(original)))
        nccl = getattr(c10d_bindings, "ProcessGroupNCCL", None)
        if nccl is not None:
            patches.wrap(nccl, "__init__", on_ranks(_refuse_nccl))
    if guards_go_with_threads():
        patches.replace(core_bindings, "_ensureCUDADeviceGuardSet", ensure_guard)
    return patches.undo


@functools.cache
def _of_cuda() -> tuple[Replacement, ...]:
    answers: dict[str, Callable[..., object]] = {
        "is_available": lambda: False,
        "device_count": lambda: 0,
        "is_initialized": lambda: False,
        "_lazy_init": _refuse,
        "_lazy_call": lambda *_, **__: None,  # callbacks for once CUDA has begun, such as seeding its generators
    }
    return tuple(Replacement(torch.cuda, name, on_ranks(answer)) for name, answer in answers.items())


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("No CUDA GPUs are available")  # as where CUDA_VISIBLE_DEVICES names none


def _refuse_nccl(*_: object, **__: object) -> NoReturn:
    raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")


def explain(error: BaseException, launched: bool) -> None:
    """Add a note on how its world can have devices to an error that ended a rank, if it failed for lack of them.

    `launched` worlds are those of `simdist launch`.
    """
    text = text_of(error)
    if any(words in text for words in _WORDS) and not getattr(error, "__notes__", ()):
        error.add_note("this world has no devices; " + (_OF_LAUNCH if launched else _OF_OTHERS))


_OF_LAUNCH = "simdist launch --devices ranks gives each worker a virtual one"
_OF_OTHERS = (
    'backend="nccl" for the world, or devices_per_host in its cluster (simdist.cluster.build(..., '
    "devices_per_host=...) or [cluster] in a scenario) gives it virtual ones"
)
