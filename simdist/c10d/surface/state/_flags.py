"""Settings for all of torch: deterministic algorithms, precision, backends' switches, print options, global module
hooks, types that may be loaded.

Torch keeps them once for a process. A world ends with the settings that it began with (`remember`, `restore`). If ranks
have their own modules, they also have their own settings, from the first change on. Global module hooks and types that
may be loaded are separate in every world: `CommDebugMode`, trackers and `safe_globals` set them temporarily, and a rank
that waits meanwhile must neither run another rank's hooks nor lose its own. Unpickled sparse tensors are separate, too:
the next `torch.load` of the same process checks and releases them.

In doubt: switches of a GPU's libraries are separate like all others, and have no effect here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing
from torch.nn.modules import module as _modules

from simdist.inside.torch import core_bindings, print_options, rebuilding, safe_globals, unchecked_tensors, unpickling
from simdist.process import Patches, current_process, followed, imported_for_all, original

__all__ = ["forget_imports", "install", "remember", "restore", "separate"]

_sharing: Any = torch.multiprocessing
# By their names without `_get_` and `_set_`; switches that this torch does not have are left out.
_SWITCHES = tuple(
    (getattr(core_bindings, f"_get_{name}"), getattr(core_bindings, f"_set_{name}"))
    for name in (
        "float32_matmul_precision",  # first: it sets others as well
        "cpu_allow_fp16_reduced_precision_reduction",
        "cublas_allow_bf16_reduced_precision_reduction",
        "cublas_allow_fp16_accumulation",
        "cublas_allow_fp16_reduced_precision_reduction",
        "cublas_allow_tf32",
        "cudnn_allow_tf32",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "cudnn_enabled",
        "deterministic_fill_uninitialized_memory",
        "math_sdp_allow_fp16_bf16_reduction",
        "mkldnn_deterministic",
        "mkldnn_enabled",
        "nnpack_enabled",
        "onednn_allow_tf32",
        "qengine",
    )
    if hasattr(core_bindings, f"_get_{name}") and hasattr(core_bindings, f"_set_{name}")
) + tuple(
    (getattr(core_bindings, getter), getattr(core_bindings, setter))
    for getter, setter in (
        ("_get_math_sdp_enabled", "_set_sdp_use_math"),
        ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
        ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
        ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    )
    if hasattr(core_bindings, getter) and hasattr(core_bindings, setter)
)
_WRITERS = (
    *((core_bindings, setter.__name__) for _, setter in _SWITCHES),
    (core_bindings, "_set_deterministic_algorithms"),
    (torch, "set_anomaly_enabled"),
    (torch, "set_printoptions"),
    (_sharing, "set_sharing_strategy"),
)
_ALLOWING = tuple((unpickling, f"_{verb}_safe_globals") for verb in ("add", "clear", "remove"))
_REBUILDING = ((rebuilding, "_rebuild_sparse_tensor"),)
_of_modules = vars(_modules)
_HOOKS = tuple(name for name in _of_modules if name.startswith("_global_"))
_NONE: dict[int, object] = {}  # no hooks: the usual case
_Settings = tuple[list[object], tuple[bool, bool], tuple[bool, bool], dict[str, object], str]
_State = tuple[_Settings, set[object], list[object]]
# Types that shared modules have registered for `torch.load` at their import in this world. A module registers them only
# once, so every rank gets them, and they stay as long as the module does.
_of_imports: set[object] = set()


def _read(get: Callable[[], object]) -> object:
    try:
        return get()
    except RuntimeError:  # torch 2.13, if a precision was set in two ways
        return None


def _read_all() -> list[object]:
    try:
        return [get() for get, _ in _SWITCHES]
    except RuntimeError:
        return [_read(get) for get, _ in _SWITCHES]


def _hooks() -> list[object]:
    """Return the global module hooks, and their switch."""
    found = map(_of_modules.__getitem__, _HOOKS)
    return [(dict(each) if each else _NONE) if isinstance(each, dict) else each for each in found]


def _set_hooks(hooks: list[Any]) -> None:
    for name, was in zip(_HOOKS, hooks, strict=True):
        now = _of_modules[name]
        if now is was or now == was:
            continue
        if isinstance(now, dict):  # in place: a hook's handle refers to the dictionary
            now.clear()
            now.update(was)
        else:
            _of_modules[name] = was


def remember() -> _State:
    """Return the current settings, for `restore`."""
    return _settings(), set(safe_globals()), _hooks()


def restore(state: _State) -> None:
    """Set the settings that `remember` found, as far as they have changed since."""
    settings, safe, hooks = state
    _set_settings(settings)
    _allow(safe)
    _set_hooks(hooks)


def _settings() -> _Settings:
    """Return all settings except the temporary ones. These have their own slots, and must not be exchanged twice."""
    return (
        _read_all(),
        (core_bindings._get_deterministic_algorithms(), core_bindings._get_deterministic_algorithms_warn_only()),
        (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        dict(print_options()),
        _sharing.get_sharing_strategy(),
    )


def _set_settings(settings: _Settings) -> None:
    switches, deterministic, anomaly, printed, strategy = settings
    if _read_all() != switches:
        for (get, change), was in zip(_SWITCHES, switches, strict=True):
            if was is not None and _read(get) != was:
                original(change)(*was) if isinstance(was, tuple) else original(change)(was)
    if deterministic != (
        core_bindings._get_deterministic_algorithms(),
        core_bindings._get_deterministic_algorithms_warn_only(),
    ):
        original(core_bindings._set_deterministic_algorithms)(deterministic[0], warn_only=deterministic[1])
    if anomaly != (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()):
        original(torch.set_anomaly_enabled)(*anomaly)
    print_options().update(printed)
    if _sharing.get_sharing_strategy() != strategy:
        original(_sharing.set_sharing_strategy)(strategy)


def _allow(types: set[object]) -> None:
    known, wanted = safe_globals(), types | _of_imports
    if known != wanted:
        known.clear()
        known.update(wanted)


def _unchecked() -> list[torch.Tensor]:
    return list(unchecked_tensors() or ())


def _set_unchecked(tensors: list[torch.Tensor]) -> None:
    shared = unchecked_tensors()
    if shared is not None:
        shared[:] = tensors


_REPLACEMENTS = tuple(followed("settings of torch", _WRITERS, _settings, _set_settings))
_REGISTERS = tuple((_modules, name) for name in vars(_modules) if name.startswith("register_module_"))
_FOR_A_WHILE = (
    *followed("hooks of all modules", _REGISTERS, _hooks, _set_hooks),
    *followed("types that may be loaded", _ALLOWING, lambda: set(safe_globals()), _allow),
    *followed("sparse tensors to be checked", _REBUILDING, _unchecked, _set_unchecked),
)


def install(patches: Patches) -> None:
    """Give each process its own temporary settings, which context managers set."""
    patches.wrap(unpickling, "_add_safe_globals", _noting)
    patches.redirect(_FOR_A_WHILE)


def forget_imports() -> None:
    """Forget the types registered by imports, at the end of the world; they belong to the host from now on."""
    _of_imports.clear()


def _noting(original: Callable[[list[object]], None]) -> Callable[[list[object]], None]:
    @functools.wraps(original)
    def _add_safe_globals(safe_globals: list[object]) -> None:
        added = list(safe_globals)
        if current_process() is not None and imported_for_all(sys._getframe(1)):
            _of_imports.update(added)
        original(added)

    return _add_safe_globals


def separate(patches: Patches) -> None:
    """Give each process its own settings, from the first change by a rank on."""
    patches.redirect(_REPLACEMENTS)
