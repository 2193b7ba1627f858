"""What a program finds in a world without devices: no GPU, whatever its machine has, and how to have virtual ones.

A program that asks for a GPU and goes on without one does the same on every machine, and no rank begins CUDA in the
process that called simdist. In doubt: where CUDA has begun before the world, C++ no longer asks whether it may, and a
rank that names "cuda" all the same gets the GPU; so does one that pins memory without asking for a GPU first.
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

# What torch says to those who want a device, or NCCL: a CPU build, and one for CUDA where there is no GPU (2.13, 2.14).
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
    """Let ranks see no GPU, where there is one, and make fake tensors of one on any thread; returns what undoes it."""
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
        "_lazy_call": lambda *_, **__: None,  # what is to be done once CUDA has begun, such as seeding its generators
    }
    return tuple(Replacement(torch.cuda, name, on_ranks(answer)) for name, answer in answers.items())


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("No CUDA GPUs are available")  # as where CUDA_VISIBLE_DEVICES names none


def _refuse_nccl(*_: object, **__: object) -> NoReturn:
    raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")


def explain(error: BaseException, launched: bool) -> None:
    """Add to an error that ended a rank how its world would have had devices, if it is for want of them.

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
