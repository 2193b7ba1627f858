"""Variables that torch sets temporarily: during a `with`, after which it restores the old value, or for a process.

Dispatch modes set flags in Python and C++ that say whether any mode is active; compiled functions are then left alone.
A rank that enters a mode while another rank is inside one would save and later restore the other's flags. So each
process has its own flags, from the first mode of a world on. Only dynamo reads which module's forward pass runs
(`DistributedDataParallel`): this is separate once something is compiled, and is restored at the end of every world.
Worlds with and without devices must not see each other's cached kind of device. Tracing is also separate for each rank.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.fx.experimental import proxy_tensor
from torch.nn.parallel import DistributedDataParallel

from simdist.inside.torch import modes_module, set_tracing_flag, tracing, tracing_flag
from simdist.process import Patches, Slot, followed, when_imported

__all__ = ["FORWARD", "install", "load_forward", "save_forward"]

_ddp = DistributedDataParallel
_FLAGS = tuple(
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(modes_module, name)
)
_OF_COMPILED_CODE = "set_is_in_mode_without_ignore_compile_internals"  # sets the last flag in C++


def _save() -> tuple[bool, ...]:
    return tuple(getattr(modes_module, name) for name in _FLAGS)


def _load(flags: tuple[bool, ...]) -> None:
    if flags == _save():
        return
    for name, flag in zip(_FLAGS, flags, strict=True):
        setattr(modes_module, name, flag)
    if hasattr(modes_module, _OF_COMPILED_CODE):
        getattr(modes_module, _OF_COMPILED_CODE)(flags[-1])


def save_forward() -> object:
    """Return the module whose forward pass runs."""
    return getattr(_ddp, "_active_ddp_module", None)


def load_forward(module: Any) -> None:
    """Set the module whose forward pass runs; the class is only written to if the module differs."""
    if save_forward() is not module:
        _ddp._active_ddp_module = module


FORWARD: Slot[object] = Slot("forward pass", save_forward, load_forward, lambda process, of_host: None)
_ENTERING = tuple(followed("dispatch modes", ((modes_module.TorchDispatchMode, "__enter__"),), _save, _load))


# -- tracing: a rank may park in a function that `torch.fx` or `make_fx` traces, for example when it makes a group -----

_proxies = proxy_tensor
_Traced = tuple[bool, Any, Any]


def _save_tracing() -> _Traced:
    patcher = tracing.CURRENT_PATCHER
    if patcher is not None:
        patcher.revert_all_patches()  # of methods of modules, which all other ranks call too
    return tracing_flag(), patcher, _proxies._CURRENT_MAKE_FX_TRACER


def _load_tracing(state: _Traced) -> None:
    flag, tracing.CURRENT_PATCHER, _proxies._CURRENT_MAKE_FX_TRACER = state
    set_tracing_flag(flag)
    if tracing.CURRENT_PATCHER is not None:
        tracing.CURRENT_PATCHER.reapply_all_patches()


# These are called before tracing changes anything: the state then is that of ranks that trace nothing.
_TRACERS = (tracing.Tracer, "trace"), (_proxies, "_set_make_fx_tracer")
_TRACING = tuple(followed("tracing by torch.fx", _TRACERS, _save_tracing, _load_tracing))


_CHECKPOINT = "torch.utils.checkpoint"


def _forget_kind(patches: Patches) -> None:
    patches.replace(sys.modules[_CHECKPOINT].DefaultDeviceType, "_default_device_type", None)


when_imported(_CHECKPOINT, _forget_kind, remembered=True)


def install(patches: Patches) -> None:
    """Give each process its own flags."""
    patches.redirect(_ENTERING)
    patches.redirect(_TRACING)
