"""Torch's handling of a rank's child processes, mostly DataLoader's workers.

DataLoader watches its workers in C++, by their pids and by signal handlers of the whole process. Here the simulated
children are watched in the same way, with the texts of C++ (2.13, torch/csrc/DataLoader.cpp). Each process-wide
variable of torch for workers is a slot.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.elastic.utils.distributed
import torch.multiprocessing
from torch.utils.data import dataloader

from simdist.inside.torch import OPERATORS, loader_signals, loader_worker
from simdist.process import (
    COPIERS,
    Extra,
    Patches,
    Replacement,
    SimProcess,
    Slot,
    current_process,
    current_runtime,
    followed_variables,
    name_own,
)

if TYPE_CHECKING:
    from simdist.inside.python import Make

__all__ = ["install", "separate_workers"]

_LARGE_BYTES = 1 << 20
_FIRST_PORT = 50_000  # of the ports that `get_free_port` returns on ranks
_EXECUTOR = "torch.distributed.checkpoint._async_process_executor"
_watched: dict[tuple[SimProcess, int], dict[int, SimProcess]] = {}  # by process and loader
_iterators: list[weakref.ref[Any]] = []  # of loaders, each with workers
_spawn = importlib.import_module("torch.multiprocessing.spawn")


def install(patches: Patches) -> None:
    """Replace functions that would act on the host process."""
    for name, make in _HANDLING.items():
        patches.wrap(loader_signals, name, make)
    patches.wrap(_spawn, "_prctl_pr_set_pdeathsig", _death_signal)
    patches.redirect(_REPLACEMENTS)
    patches.on_undo(_forget)


def _forget() -> None:
    """Forget all workers at the end of the world; an iterator that is collected later has nothing to shut down."""
    _watched.clear()
    for reference in _iterators:
        iterator = reference()
        if iterator is not None:
            iterator._shutdown = True
    _iterators.clear()


def separate_workers() -> None:
    """Separate torch's variables for workers by process; called by a rank that starts a process."""
    runtime = current_runtime()
    assert runtime is not None
    runtime.separate(_INFO)
    runtime.separate(_HANDLER_SET)
    runtime.separate(_CHECKPOINTS)


# -- state -----------------------------------------------------------------------------------------------------------


def _load_info(info: object) -> None:
    vars(loader_worker)["_worker_info"] = info


def _load_handler_set(is_set: bool) -> None:
    loader_signals._SIGCHLD_handler_set = is_set


_INFO: Slot[object] = Slot(
    "DataLoader worker", lambda: loader_worker._worker_info, _load_info, lambda process, host: None
)
_HANDLER_SET: Slot[bool] = Slot(
    "DataLoader handler",
    lambda: bool(loader_signals._SIGCHLD_handler_set),
    _load_handler_set,
    lambda process, host: False,
)


def _save_checkpoints() -> object:
    return vars(sys.modules[_EXECUTOR])["_CHECKPOINT_PROCESS"] if _EXECUTOR in sys.modules else None


def _load_checkpoints(process: object) -> None:
    if _EXECUTOR in sys.modules:
        vars(sys.modules[_EXECUTOR])["_CHECKPOINT_PROCESS"] = process


# The process of `async_save`, which DCP keeps for the next checkpoint.
_CHECKPOINTS: Slot[object] = Slot(_EXECUTOR, _save_checkpoints, _load_checkpoints, lambda process, host: None)

name_own(loader_worker.__name__, ("_worker_info",), _INFO)
name_own(loader_signals.__name__, ("_SIGCHLD_handler_set",), _HANDLER_SET)
name_own(_EXECUTOR, ("_CHECKPOINT_PROCESS",), _CHECKPOINTS)


# -- replacements ----------------------------------------------------------------------------------------------------


def _set_handlers(original: Callable[[], None]) -> Callable[[], None]:
    def set_worker_signal_handlers() -> None:
        if current_process() is None:
            original()

    return set_worker_signal_handlers


def _set_pids(original: Callable[..., None]) -> Callable[..., None]:
    def set_worker_pids(loader: int, pids: tuple[int, ...]) -> None:
        process = current_process()
        if process is None:
            original(loader, pids)
            return
        iterator = sys._getframe(1).f_locals.get("self")
        if iterator is not None and id(iterator) == loader:
            _iterators.append(weakref.ref(iterator))
        children = dict(process.children)
        _watched[process, loader] = {pid: children[pid] for pid in pids if pid in children}

    return set_worker_pids


def _remove_pids(original: Callable[..., None]) -> Callable[..., None]:
    def remove_worker_pids(loader: int) -> None:
        process = current_process()
        if process is None:
            original(loader)
        else:
            _watched.pop((process, loader), None)

    return remove_worker_pids


def _error_if_any_fails(original: Callable[[], None]) -> Callable[[], None]:
    def error_if_any_worker_fails() -> None:
        process = current_process()
        if process is None:
            original()
            return
        for (owner, _), workers in _watched.items():
            if owner is not process:
                continue
            for pid, child in workers.items():
                code = child.exit_code
                if not code:
                    continue
                workers.clear()  # report the failure once
                if code > 0:
                    raise RuntimeError(
                        f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {code}. Details are lost "
                        "due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
                    )
                said = (
                    f"DataLoader worker (pid {pid}) is killed by signal: {_SAID.get(-code, signal.strsignal(-code))}. "
                )
                if -code == signal.SIGBUS:
                    said += (
                        "It is possible that dataloader's workers are out of shared memory. Please try to raise your "
                        "shared memory limit."
                    )
                raise RuntimeError(said)

    return error_if_any_worker_fails


_SAID: dict[int, str] = {}


_PORTS: Extra[dict[str, int]] = Extra("free ports")  # the last port of each host


def _free_port(original: Callable[[], int]) -> Callable[[], int]:
    def get_free_port() -> int:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original()
        given = runtime.extras.setdefault(_PORTS, {})
        given[process.host.name] = given.get(process.host.name, _FIRST_PORT - 1) + 1
        return given[process.host.name]

    return get_free_port


_HANDLING: dict[str, Make] = {
    "_set_worker_signal_handlers": _set_handlers,
    "_set_worker_pids": _set_pids,
    "_remove_worker_pids": _remove_pids,
    "_error_if_any_worker_fails": _error_if_any_fails,
}


def _death_signal(original: Callable[[int], None]) -> Callable[[int], None]:
    def set_death_signal(number: int) -> None:
        process = current_process()
        if process is None:
            original(number)
        else:
            process.death_signal = int(number)

    return set_death_signal


def _collected(original: Callable[[object], None]) -> Callable[[object], None]:
    def delete(iterator: object) -> None:
        workers = vars(iterator).get("_workers")
        child: SimProcess | None = getattr(workers[0]._popen, "simulated", None) if workers else None
        if child is None:
            original(iterator)
        elif child.parent is not None and child.parent.running:  # a process that was killed runs no destructors
            if child.parent is current_process():
                original(iterator)
            else:  # garbage collection may run on any rank
                child.parent.deliver(lambda: end(iterator))

    def end(iterator: object) -> None:
        if vars(iterator).get("_pin_memory_thread") is threading.current_thread():  # `original` waits for this thread
            threading.Thread(target=original, args=(iterator,)).start()
        else:
            original(iterator)

    return delete


_REPLACEMENTS = (
    Replacement(vars(dataloader)["_MultiProcessingDataLoaderIter"], "__del__", _collected),
    Replacement(torch.distributed.elastic.utils.distributed, "get_free_port", _free_port),
    *followed_variables(  # from torch 2.13 on
        "persistent workers to be ended",
        dataloader,
        ("_persistent_workers_atexit_registered", "_persistent_workers_atexit"),
        ("_MultiProcessingDataLoaderIter._register_persistent_workers_atexit",),
        lambda: [False, weakref.WeakSet()],
    ),
)


# -- copies ----------------------------------------------------------------------------------------------------------


def _copy_tensor(tensor: Any) -> Any:
    """Return a forked child's copy: shared memory stays shared; large tensors are copied on the first write."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return tensor
    if tensor.device.type != "cpu" or tensor.is_shared():
        return tensor
    plain = tensor.detach()
    copied = _lazily(plain) if plain.nbytes > _LARGE_BYTES else plain.clone()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)


def _lazily(tensor: torch.Tensor) -> torch.Tensor:
    lazy_clone: Callable[[torch.Tensor], torch.Tensor] = vars(torch)["_lazy_clone"]
    try:
        return lazy_clone(tensor)
    except RuntimeError:  # torch does not own its memory: numpy or a file does
        return tensor.clone()


def _copy_generator(generator: torch.Generator) -> torch.Generator:
    return generator.clone_state() if generator.device.type == "cpu" else generator


COPIERS[torch.Tensor] = _copy_tensor
COPIERS[torch.Generator] = _copy_generator
COPIERS.update(dict.fromkeys(OPERATORS, lambda operator: operator))  # tables of kernels have them as keys
