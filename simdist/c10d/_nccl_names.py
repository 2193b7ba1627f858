"""The names by which torch and programs find NCCL, which a CPU build lacks; only in a world with devices."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.constants as constants
import torch.distributed.distributed_c10d as c10d

from simdist.c10d.backends.nccl import DEFAULT_TIMEOUT, NcclProcessGroup
from simdist.c10d.backends.nccl.watch._rank import nccl_of
from simdist.c10d.backends.nccl.watch._recorder import NcclRecorder
from simdist.c10d.surface._identity import GroupBackend
from simdist.errors import UnsupportedError
from simdist.inside.torch import NCCL, BackendRequest, c10d_bindings, c10d_module, core_bindings, nccl_means_nccl2
from simdist.process import Patches, Replacement, SimProcess, class_on_ranks, current_process, on_ranks

if TYPE_CHECKING:
    from datetime import timedelta

    from simdist.c10d.surface._compat import Work

__all__ = ["install"]


def _has_no_nccl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("Distributed package doesn't have NCCL built in")


def _is_nccl(group: object) -> bool:
    return isinstance(group, NcclProcessGroup) or (isinstance(group, GroupBackend) and group.passes_for == "nccl")


# Newer implementations, which torch uses for the backends "nccl2" and "nccl-lazy", and for TORCH_DIST_USE_NCCL2=1.
_OTHERS = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")


@functools.cache
def _refused(name: str) -> type:
    def make(*_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            f"{name} is not simulated; use the backend nccl, and leave TORCH_DIST_USE_NCCL2 unset: ProcessGroupNCCL is"
        )

    return type(name, (), {"__new__": staticmethod(make), "__module__": c10d.__name__})


def install(patches: Patches, make: Callable[..., object]) -> None:
    """Let ranks find NCCL; `make` makes its groups."""
    nccl = class_on_ranks(
        *(NcclProcessGroup, make),
        elsewhere=_has_no_nccl,
        has=_is_nccl,
        name="ProcessGroupNCCL",
        module=c10d.__name__,
    )
    for module in (c10d, dist, c10d_bindings):
        patches.replace(module, "ProcessGroupNCCL", nccl)
    for name in _OTHERS:
        if hasattr(c10d, name):  # in CUDA builds since torch 2.14
            for module in (c10d, c10d_bindings):
                patches.replace(module, name, _refused(name))
    patches.replace(c10d, "_DistributedBackendOptions", BackendRequest)
    patches.replace(constants, "default_pg_nccl_timeout", DEFAULT_TIMEOUT)
    major, minor, patch = NCCL.number
    patches.replace(core_bindings, "_nccl_version", lambda: major << 32 | minor << 16 | patch)
    patches.replace(core_bindings, "_nccl_version_suffix", lambda: b"")
    patches.replace(c10d_bindings, "_dump_nccl_trace", _dump)
    patches.replace(c10d_bindings, "_dump_nccl_trace_json", _dump_json)
    patches.replace(c10d_bindings, "_hash_tensors", _hash_tensors)
    patches.replace(c10d_bindings, "_reset_fr_recording_nccl", lambda: _recorder().reset())
    patches.redirect(_REPLACEMENTS)
    patches.redirect(_OF_NCCL2)
    # Dynamo looks up arguments by name; a redirected function has none.
    patches.replace(c10d.batch_isend_irecv, "__signature__", _SIGNATURE_OF_BATCH)


def _process() -> SimProcess:
    process = current_process()
    if process is None:
        raise RuntimeError("Distributed package doesn't have NCCL built in")
    return process


def _recorder() -> NcclRecorder:
    return nccl_of(_process()).recorder


def _dump(
    includeCollectives: bool | None = None, includeStackTraces: bool | None = None, onlyActive: bool | None = None
) -> bytes:
    return _recorder().dump_bytes(
        _process().simulation.now_ns,
        collectives=includeCollectives is not False,
        frames=includeStackTraces is not False,
        active=bool(onlyActive),
    )


def _dump_json(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> str:
    return _recorder().dump_json(
        _process().simulation.now_ns, collectives=includeCollectives is not False, active=bool(onlyActive)
    )


_SIZE_T = (1 << 64) - 1


def _combined(seed: int, value: int) -> int:
    """`c10::hash_combine`."""
    return (seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2))) & _SIZE_T


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    """Like `c10d::hashTensors`: hashes each byte of each tensor's memory, and its size; waits for what fills it."""
    found = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.numel() and storage.nbytes():
            memory = torch.empty(0, dtype=torch.int8, device=tensor.device).set_(storage).tolist()
            of_byte = {byte: _combined(len(memory), byte & _SIZE_T) for byte in range(-128, 128)}
            for byte in memory:
                found = _combined(found, of_byte[byte])
    return found


def _default_timeout(original: Callable[[str], timedelta]) -> Callable[[str], timedelta]:
    @functools.wraps(original)
    def get_default_timeout(backend: str) -> timedelta:
        if current_process() is None or backend != dist.Backend.NCCL:
            return original(backend)
        return DEFAULT_TIMEOUT

    return get_default_timeout


def _batch(
    original: Callable[[list[dist.P2POp]], list[Work]],
) -> Callable[[list[dist.P2POp]], list[Work]]:
    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[Work]:
        # Torch coalesces only on groups of its own class.
        if current_process() is None or not p2p_op_list or not isinstance(p2p_op_list[0], dist.P2POp):
            return original(p2p_op_list)
        group: Any = p2p_op_list[0].group or c10d_module._get_default_group()
        device = p2p_op_list[0].tensor.device
        if not isinstance(group, GroupBackend) or not group._get_backend(device).supports_coalescing:
            return original(p2p_op_list)
        c10d_module._check_p2p_op_list(p2p_op_list)
        with c10d_module._coalescing_manager(group, device, async_ops=True) as manager:
            for each in p2p_op_list:
                peer = {"group_dst" if each.op is dist.isend else "group_src": each.group_peer}
                each.op(each.tensor, group=each.group, tag=each.tag, **peer)
        works: list[Work] = manager.works
        return works

    return batch_isend_irecv


def _shrunk(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def create_shrunk_process_group(
        backend: object, ranks: list[int], metadata: dict[str, Any], is_default: bool
    ) -> object:
        # Torch puts the backend into a group of its own class; ours is a whole group.
        if not isinstance(backend, GroupBackend):
            return original(backend, ranks, metadata, is_default)
        backend._set_group_name(metadata["new_group_name"])
        backend._set_group_desc("default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk")
        backend.bound_device_id = metadata.get("bound_device_id")
        return backend

    return create_shrunk_process_group


_SIGNATURE_OF_BATCH = inspect.signature(c10d.batch_isend_irecv)
_REPLACEMENTS = (
    Replacement(c10d, "_create_shrunk_process_group", _shrunk),
    Replacement(c10d, "is_nccl_available", on_ranks(lambda: True)),
    Replacement(c10d, "batch_isend_irecv", _batch),
    Replacement(c10d, "_get_default_timeout", _default_timeout),
)


def _as_before(original: Callable[..., object]) -> Callable[..., object]:
    """Use ProcessGroupNCCL on ranks, as with TORCH_DIST_USE_NCCL2=0: since 2.15 torch calls this for "nccl"."""

    @functools.wraps(original)
    def make(options: BackendRequest, backend_options: object) -> object:
        maker = original if current_process() is None else c10d_module._create_nccl_process_group
        return maker(options, backend_options)

    return make


_OF_NCCL2 = (Replacement(c10d, "_create_nccl2_process_group", _as_before),) if nccl_means_nccl2() else ()
