"""What a program is told that wanted a device in a world without any: how to have some."""

from __future__ import annotations

from simdist.values import text_of

__all__ = ["explain"]

# What torch says to those who want a device, or NCCL: a CPU build, and one for CUDA where there is no GPU (2.13, 2.14).
_WORDS = (
    *("Torch not compiled with CUDA enabled", "compiled without CUDA support", "requires CUDA support"),
    *("has no attribute '_cuda_", "has no attribute '_nccl_", "has no attribute 'ProcessGroupNCCL'"),
    *("Tried to instantiate dummy base class", "Cannot get CUDA generator", "doesn't have NCCL built in"),
    *("Cannot access accelerator device", "no accelerator support is found", "accelerator support: None"),
    *("no accelerator device is detected", "no pinned memory allocator", "deserialize object on a CUDA device"),
    *("Found no NVIDIA driver", "CUDA driver version is insufficient", "only supported with GPUs, no GPUs found"),
    *("less than the number of accelerators available: 0", "nccl2 requires at least one CUDA device"),
)


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
