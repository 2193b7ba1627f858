"""What torch keeps in a variable for a while: a `with`, and takes it back then to what it found; or a whole process.

Dispatch modes set flags of Python and of C++ that say whether any is on; compiled functions are left alone then. A rank
that enters one while another is inside would find the other's, and keep it. So each process has them for itself, from
the first mode of a world on. The module whose forward pass runs (`DistributedDataParallel`) only dynamo asks for: it is
kept apart where something is compiled, and put back at the end of every world. And a world with devices must not find
which kind of devices a world without has looked up, or the other way around. What is traced is a rank's own, too.
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
    """The module whose forward pass runs."""
    return getattr(_ddp, "_active_ddp_module", None)


def load_forward(module: Any) -> None:
    """Set it; a class is not written to without need."""
    if save_forward() is not module:
        _ddp._active_ddp_module = module


FORWARD: Slot[object] = Slot("forward pass", save_forward, load_forward, lambda process, of_host: None)
_ENTERING = tuple(followed("dispatch modes", ((modes_module.TorchDispatchMode, "__enter__"),), _save, _load))


# -- tracing: a rank may park in a function that `torch.fx` or `make_fx` traces, as where that makes a group -----------

_proxies = proxy_tensor
_Traced = tuple[bool, Any, Any]


def _save_tracing() -> _Traced:
    patcher = tracing.CURRENT_PATCHER
    if patcher is not None:
        patcher.revert_all_patches()  # of methods of modules, through which all others call too
    return tracing_flag(), patcher, _proxies._CURRENT_MAKE_FX_TRACER


def _load_tracing(state: _Traced) -> None:
    flag, tracing.CURRENT_PATCHER, _proxies._CURRENT_MAKE_FX_TRACER = state
    set_tracing_flag(flag)
    if tracing.CURRENT_PATCHER is not None:
        tracing.CURRENT_PATCHER.reapply_all_patches()


# Each is called before it changes anything: what stands there then is the state of those who trace nothing.
_TRACERS = (tracing.Tracer, "trace"), (_proxies, "_set_make_fx_tracer")
_TRACING = tuple(followed("tracing by torch.fx", _TRACERS, _save_tracing, _load_tracing))


_CHECKPOINT = "torch.utils.checkpoint"


def _forget_kind(patches: Patches) -> None:
    patches.replace(sys.modules[_CHECKPOINT].DefaultDeviceType, "_default_device_type", None)


when_imported(_CHECKPOINT, _forget_kind, remembered=True)


def install(patches: Patches) -> None:
    """Give each process flags of its own."""
    patches.redirect(_ENTERING)
    patches.redirect(_TRACING)
