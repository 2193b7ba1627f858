"""Extras of an NCCL rank over a Gloo one: its GPU, the backend's name, its ways of waiting, its flight recorder."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable

from simdist.hardware._job import Job

__all__ = ["nccl_environment", "use_device", "with_backend"]

_RECORDS = "20000"  # operations that the flight recorder keeps


def nccl_environment(wait: str) -> dict[str, str]:
    """Return the environment for NCCL's ways of waiting, its watchdog and its flight recorder (ProcessGroupNCCL.hpp).

    "blocking": `wait()` blocks the caller, and raises when the timeout has passed. "async": `wait()` returns when the
    kernel is queued; when the timeout has passed, the watchdog aborts the communicator and takes the process down.
    Either way the watchdog writes the flight record on a timeout, and the record has the times of each kernel.
    """
    blocking = wait == "blocking"
    return {
        "TORCH_NCCL_BLOCKING_WAIT": "1" if blocking else "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0" if blocking else "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": _RECORDS,  # the name until torch 2.11
        "TORCH_FR_BUFFER_SIZE": _RECORDS,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }


def use_device(job: Job) -> None:
    """Give an NCCL rank the GPU of its local rank; for any other backend do nothing.

    The workload stays as it is: tensors are made on the GPU by default, and where it asks for "gloo" or for nothing in
    particular, it gets NCCL, bound to the GPU.
    """
    if job.backend != "nccl":
        return
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    # Results are compared bit for bit.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    for name in ("init_process_group", "new_group"):
        wrapped = with_backend(getattr(c10d, name), device if name == "init_process_group" else None)
        for module in (c10d, dist):
            setattr(module, name, wrapped)


def with_backend(function: Callable[..., object], device: object = None) -> Callable[..., object]:
    """Return `function` with "nccl" where its caller asks for Gloo or for no backend; bound to `device`, if any."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def with_nccl(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        if str(bound.arguments.get("backend") or "gloo").lower() == "gloo":
            bound.arguments["backend"] = "nccl"
        if device is not None and "device_id" in signature.parameters:
            bound.arguments.setdefault("device_id", device)
        return function(*bound.args, **bound.kwargs)

    return with_nccl
