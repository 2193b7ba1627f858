"""Functions of torch that use a group's backend or a future in C++, which a simulated rank does in Python."""

from __future__ import annotations

import functools
import os
import signal
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.rpc

from simdist.c10d._fsdp_timings import keep_timings_apart
from simdist.c10d.calls._futures import SimFuture, safe_for_backward, wait_for_future
from simdist.c10d.watch._checked import CheckedProcessGroup
from simdist.errors import StrictError, UnsupportedError
from simdist.inside.torch import BaseFuture, c10d_bindings, c10d_module, future_values
from simdist.process import Patches, Replacement, current_process, current_runtime, on_ranks, when_imported

if TYPE_CHECKING:
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    from simdist.c10d.surface._compat import Work
    from simdist.process import SimProcess

__all__ = ["install"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


when_imported("torch.distributed.fsdp._debug_utils", keep_timings_apart)


def install(patches: Patches) -> None:
    """Install all replacements."""
    patches.redirect(_OF_RPC)
    patches.redirect(_OF_RECORDERS)
    patches.redirect(_OF_FUTURES)
    patches.wrap(c10d_bindings, "_set_allow_inflight_collective_as_graph_input", _refused_in_graphs)
    patches.wrap(dist, "_register_builtin_comm_hook", _register_builtin_hook)
    for module in (dist, c10d_bindings):
        patches.wrap(module, "_register_comm_hook", _register_hook)
    patches.wrap(c10d_bindings.Reducer, "_set_forward_pass_work_handle", _set_work_of_join)
    patches.wrap(c10d_bindings.Reducer, "_delay_all_reduce", _delay_all_reduce)
    patches.wrap(torch.nn.parallel.DistributedDataParallel, "_get_ddp_logging_data", _logging_data)
    patches.wrap(torch.nn.parallel.DistributedDataParallel, "_ddp_init_helper", _ddp_init)
    # Futures that C++ makes (a comm hook's, seen by DDP's join) are of the base type and wait in C++.
    patches.wrap(BaseFuture, "wait", _future_wait)
    patches.wrap(torch.futures, "wait_all", _wait_all)
    patches.wrap(torch.futures, "collect_all", _collect_all)


def _refused_rpc(original: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(original)
    def init_rpc(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        process = current_process()
        if process is None:
            return original(*args, **kwargs)
        raise UnsupportedError(
            f"rank {process.rank}: torch.distributed.rpc is not simulated: its agents talk over real sockets, from "
            "threads of C++; send_object_list and recv_object_list, or a store, carry objects between ranks"
        )

    return init_rpc


def _refused_in_graphs(original: Callable[[bool], None]) -> Callable[[bool], None]:
    def allow(value: bool) -> None:
        process = current_process()
        if process is not None and value:
            raise UnsupportedError(
                f"rank {process.rank}: allow_inflight_collective_as_graph_input_ctx is not simulated: wait_tensor in "
                "compiled code finds works of C++ only; call wait() on the work before the compiled function"
            )
        original(value)

    return allow


_OF_RPC = (Replacement(dist.rpc, "init_rpc", _refused_rpc),) if dist.rpc.is_available() else ()


def _register_builtin_hook(original: Callable[[object, object], object]) -> Callable[[object, object], object]:
    def register(reducer: object, kind: object) -> object:
        if current_process() is None:
            return original(reducer, kind)
        # The built-in hooks read a future's value in C++, as a list that only a C++ work can hold. These compute
        # the same.
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        half = kind == c10d_bindings.BuiltinCommHookType.FP16_COMPRESS
        hook = default_hooks.fp16_compress_hook if half else default_hooks.allreduce_hook
        return c10d_bindings._register_comm_hook(reducer, None, hook)

    return register


def _register_hook(original: Callable[..., None]) -> Callable[..., None]:
    def register(reducer: object, state: object, hook: Callable[..., object]) -> None:
        if current_process() is None:
            original(reducer, state, hook)
            return

        @functools.wraps(hook)
        def call(state: object, bucket: object) -> object:
            future, process = hook(state, bucket), current_process()
            if future is None and process is not None:
                _crash(process, "a DDP communication hook that returns None crashes in C++")
            return future if process is None else safe_for_backward(process, future)

        original(reducer, state, call)

    return register


def _set_work_of_join(original: Callable[..., None]) -> Callable[..., None]:
    def set_forward_pass_work_handle(reducer: object, work: Work, use_static_world_size: bool) -> None:
        original(reducer, work, use_static_world_size)
        process = current_process()
        if process is not None:
            # C++ only keeps the C++ half of the work, and waits for it in backward. Without the Python half, which
            # knows when it is done, it would wait forever (torch 2.13).
            state = process.torch_state
            if state.works_of_joins is None:
                state.works_of_joins = weakref.WeakKeyDictionary()
            state.works_of_joins[reducer] = work

    return set_forward_pass_work_handle


def _delay_all_reduce(original: Callable[[object], None]) -> Callable[[object], None]:
    def delay_all_reduce(reducer: object) -> None:
        process = current_process()
        if process is None:
            original(reducer)
            return
        state = process.torch_state
        state.waits_in_cxx += 1
        try:
            original(reducer)
        finally:
            state.waits_in_cxx -= 1

    return delay_all_reduce


def _ddp_init(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: DistributedDataParallel, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        process = current_process()
        group = self.process_group
        if process is None or not isinstance(group, CheckedProcessGroup) or group.name() != "gloo":
            return
        # At the end of this, C++ takes the wrapper for a ProcessGroupGloo, and reads its options (torch 2.13).
        said = "DistributedDataParallel crashes on a gloo group made under TORCH_DISTRIBUTED_DEBUG=DETAIL"
        if group._member.communicator.strict:
            raise StrictError(f"{said}; make the group under INFO or OFF")
        _crash(process, said)

    return init


def _crash(process: SimProcess, said: str) -> None:
    """Kill the rank as the fault in torch's C++ kills a real process."""
    process.stderr.append(f"Fatal Python error: Segmentation fault ({said}, as with real processes)\n")
    process.kill(signal.SIGSEGV)


def _logging_data(original: Callable[[object], dict[str, object]]) -> Callable[[object], dict[str, object]]:
    def logging_data(self: object) -> dict[str, object]:
        data = original(self)
        if current_process() is not None:
            # C++ does not know the backend's real name, and the rank's own environment.
            data["backend_name"] = str(data.get("backend_name", "")).removeprefix("simdist:")
            names = ["MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG"]
            if data["backend_name"] == "gloo":
                names += ["GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"]
                data["gloo_num_threads"] = 2
            for name in names:
                data[name.lower()] = os.environ.get(name, "N/A")
        return data

    return logging_data


def _future_wait(original: Callable[[BaseFuture[object]], object]) -> Callable[[BaseFuture[object]], object]:
    def wait(future: BaseFuture[object]) -> object:
        process = current_process()
        if process is not None and not BaseFuture.done(future):
            wait_for_future(process, future)
        return original(future)

    return wait


def _wait_all(
    original: Callable[[list[Future[object]]], list[object]],
) -> Callable[[list[Future[object]]], list[object]]:
    def wait_all(futures: list[Future[object]]) -> list[object]:
        if current_runtime() is None:
            return original(futures)
        return [future.wait() for future in futures]

    return wait_all


def _collect_all(original: Callable[[list[Future[object]]], object]) -> Callable[[list[Future[object]]], object]:
    def collect_all(futures: list[Future[object]]) -> object:
        process = current_process()
        if process is None or not any(isinstance(future, SimFuture) for future in futures):
            return original(futures)
        joint = SimFuture(process)
        process.torch_state.futures[joint] = None
        left = len(futures)

        def one_less(_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                joint.set_result(list(futures))

        for future in futures:
            future.add_done_callback(one_less)
        return joint

    return collect_all


def _tensors_of_list(original: Callable[[object], list[torch.Tensor]]) -> Callable[[object], list[torch.Tensor]]:
    def extract_tensors(value: object) -> list[torch.Tensor]:
        """Return the tensors in a future's value. Hot: DDP calls it for each bucket; torch's own pickles the value."""
        if type(value) is list and all(type(each) is torch.Tensor for each in value):
            return value
        return original(value)

    return extract_tensors


_OF_FUTURES = (
    (Replacement(future_values, "_extract_tensors", _tensors_of_list),)
    if hasattr(future_values, "_extract_tensors")
    else ()
)

# Since torch 2.15 it records the calls of groups that do not; groups of ranks record their own calls, or none.
_RECORDS = "_maybe_attach_flight_recorder"
_HOSTS_ALONE = on_ranks(lambda *_, **__: None)
_OF_RECORDERS = (Replacement(c10d_module, _RECORDS, _HOSTS_ALONE),) if hasattr(c10d_module, _RECORDS) else ()
