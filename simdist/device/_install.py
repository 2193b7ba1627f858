"""Installs everything that is different while a world with devices runs, and removes it again."""

from __future__ import annotations

import functools
import importlib.machinery
from collections.abc import Callable
from typing import Any

import torch

from simdist.cluster import Cluster
from simdist.device import _absent, _cuda_build, _legacy, _nvml, _pools, _storages
from simdist.device._bindings import (
    CUDA_VERSION,
    Markers,
    bindings,
    count_by_nvml,
    exchanging,
    finding,
    runtime_library,
)
from simdist.device._claims import abandon_claims
from simdist.device._generators import DeviceGenerator
from simdist.device._state import Hardware, cuda_error, enter, is_in_bad_fork, present_or_none, there_are_devices
from simdist.device._streams import torch_streams
from simdist.device._torch_core import core
from simdist.device.kernels import _kernels, _triton
from simdist.inside.torch import (
    CUDA_VARIABLES,
    FakeTensorMode,
    compiled_base,
    core_bindings,
    core_names,
    cuda_variables,
    cudnn_bindings,
    cudnn_module,
    device_hooks,
    is_built_for_cuda,
    operators_class,
    says_cuda,
)
from simdist.process import Patches, SimProcess, call_all, class_on_ranks, current_process, on_ranks, when_imported

__all__ = ["DeviceState"]

_version: dict[str, object] = vars(torch.version)
_HOST = says_cuda()
for _name, _report in _triton.ADAPTERS.items():
    when_imported(_name, _report)


class DeviceState:
    """The devices of a world: installs what ranks find, and swaps what torch keeps per process.

    Example:
        >>> state = DeviceState(cluster)
        >>> state.install([], [])
        >>> slots.add(state.switch)
        >>> state.uninstall()

    Raises:
        UnsupportedError: this process has begun to use CUDA, or this torch is built in a way that is not known.
    """

    def __init__(self, cluster: Cluster, *, strict: bool = False, judged: bool = False) -> None:
        if not there_are_devices():
            _cuda_build.require_unused()
        core()
        self._hardware = Hardware(cluster)
        self._strict = strict  # races between streams are errors
        self._judged = judged  # they are reported
        self._model = cluster.device_model  # the time that computing takes
        self._varies = 0.0 if cluster.jitter is None else cluster.jitter.compute
        self._patches = Patches()
        self._host: dict[str, object] = {}

    def install(
        self, stops: list[Callable[[], None]], child_begins: list[Callable[[SimProcess, SimProcess, bool], None]]
    ) -> None:
        """Let ranks find devices.

        `stops` holds functions that run before a debugger stops a rank: it gets `settle`. `child_begins` holds those
        that run when a process starts another.
        """
        from simdist.device.kernels._compiled import chosen  # which worlds without devices do not need

        if is_built_for_cuda():
            _cuda_build.tenancy.begin(_give_back)
        stops.append(self.settle)
        child_begins.append(self._begin_child)
        _kernels.install(chosen())
        wrappers: list[_kernels.Wrapper] = []
        if self._model is not None:
            from simdist.device._compute import timed

            wrappers.append(timed(self._model, self._varies))
        if self._strict or self._judged:
            from simdist.device._races import Races, watched

            self._hardware.make_races = functools.partial(Races, refuses=self._strict)
            wrappers.append(watched)
        if wrappers:
            _kernels.wrap_kernels(wrappers)
        self._host = {name: cuda_variables[name] for name in (*CUDA_VARIABLES, "_cudart")}
        self._hardware.fresh = {name: self._host[name] for name in CUDA_VARIABLES}
        patches = self._patches
        names = bindings()
        for name, binding in names.items():
            patches.replace(core_bindings, name, binding)
        streams = torch_streams()
        for name in ("Stream", "Event", "ExternalStream"):  # of classes that a module took early
            real = getattr(torch.cuda, name)
            if is_built_for_cuda():
                patches.replace(real, "__new__", _cuda_build.early(getattr(streams, name), real, _is_on_a_rank))
            elif name != "ExternalStream":  # their base class in torch
                base = compiled_base(real)
                patches.replace(base, "__new__", _early(base.__new__, getattr(streams, name)))
        for module in (torch.cuda, torch.cuda.streams):
            for name in ("Stream", "Event", "ExternalStream"):
                if hasattr(module, name):
                    patches.replace(module, name, _kept_out(getattr(module, name), getattr(streams, name)))
        for name in ("_exchange_device", "_maybe_exchange_device"):
            patches.wrap(torch.cuda, name, exchanging)
        patches.wrap(torch.cuda, "is_available", finding)
        patches.wrap(torch.cuda, "_is_in_bad_fork", on_ranks(is_in_bad_fork))
        patches.replace(torch.cuda, "_device_count_nvml", count_by_nvml)
        patches.wrap(torch.cuda, "is_current_stream_capturing", on_ranks(lambda: False))
        patches.wrap(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", on_ranks(lambda: False))
        patches.replace(torch.cuda, "_CudaDeviceProperties", names["_CudaDeviceProperties"])
        patches.replace(torch.cuda.nvtx, "_nvtx", Markers())
        _nvml.install(patches)
        _pools.install(patches)
        _absent.install(patches)
        _legacy.install(patches)
        generator = _generator_class(torch.Generator)
        for module in (torch, core_bindings):
            patches.replace(module, "Generator", generator)
        for name, version in _cuda_build.cudnn_versions().items():
            patches.replace(cudnn_bindings(), name, version)
        if not is_built_for_cuda():  # there is no cuDNN, and no reason to warn of it
            patches.wrap(cudnn_module(), "is_acceptable", on_ranks(lambda _: False))
        patches.wrap(core_bindings, "_show_config", _without_a_library_of_cuda)
        for name, make in _storages.METHODS.items():
            patches.wrap(torch.UntypedStorage, name, make)
        for name, make in _storages.CAPSULES.items():
            if hasattr(core_bindings, name):  # older ones have no `_to_dlpack_versioned`
                patches.wrap(core_bindings, name, make)
        for loads in ((operators_class, "load_library"), (importlib.machinery.ExtensionFileLoader, "exec_module")):
            patches.wrap(*loads, _kernels.adding_libraries)
        patches.wrap(FakeTensorMode, "_prep_args_for_hash", _with_the_current_device)
        enter(self._hardware)
        core().switch(on=True)

    def uninstall(self) -> None:
        """Put everything back, also after an `install` that failed.

        Raises:
            BaseException: the error of the first step that failed; all other steps are taken.
        """
        call_all(
            _kernels.unwrap_kernels,
            lambda: core().switch(on=False),
            lambda: enter(None),
            self._patches.undo,
            lambda: self.switch(None, None),
            abandon_claims,
            self._hardware.close,
            _put_back_properties,
            _cuda_build.tenancy.end,
        )

    def settle(self) -> None:
        """Park until the devices of the calling process are done with their present work."""
        devices = present_or_none()
        if devices is not None:
            devices.streams.settle()

    def _begin_child(self, parent: SimProcess, child: SimProcess, forked: bool) -> None:
        """After a fork the driver does not work in the child: CUDA can't begin there, nor values reach the host."""
        if forked and (self._hardware[parent].has_asked_driver or self._hardware[parent].is_in_bad_fork):
            self._hardware[child].is_in_bad_fork = True
            self._hardware[child].fail(functools.partial(cuda_error, "fork"))

    def switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Swap what `torch.cuda` keeps in its module: called whenever another process gets the baton."""
        variables = cuda_variables
        if leaving is not None:
            kept = self._hardware[leaving].variables
            for name in CUDA_VARIABLES:
                kept[name] = variables[name]
        if entering is None:
            variables.update(self._host)
            _version["cuda"], core_names["_has_cuda"] = _HOST
            return
        variables.update(self._hardware[entering].variables)
        if leaving is None:
            variables["_cudart"] = runtime_library()
            _version["cuda"] = _HOST[0] or CUDA_VERSION
            core_names["_has_cuda"] = True


def _give_back() -> None:
    """Put the kernels and the guard of a CUDA build in their places again."""
    call_all(_kernels.uninstall, core().give_back_guard)


_PROPERTIES = cuda_variables.get("_get_device_properties")  # which a CPU build gets when a rank begins


def _put_back_properties() -> None:
    if _PROPERTIES is None:
        cuda_variables.pop("_get_device_properties", None)
    else:
        cuda_variables["_get_device_properties"] = _PROPERTIES


def _without_a_library_of_cuda(show_config: Callable[[], str]) -> Callable[[], str]:
    """Where there are devices, torch asks a library of CUDA for its version. Virtual devices have no such library."""

    def _show_config() -> str:
        with device_hooks().unseen():
            return show_config()

    return _show_config


def _is_on_a_rank() -> bool:
    return current_process() is not None


def _with_the_current_device(original: Callable[..., object]) -> object:
    """Add the current device to the cache key of fake tensors: "cuda" alone means it, and all ranks share the cache."""

    @functools.wraps(original)
    def prepare(mode: object, key: list[object], *args: object) -> None:
        original(mode, key, *args)
        if current_process() is not None:
            key.append(core().device().index)  # at the end, because symbolic sizes are found in it by their places

    return prepare


@functools.cache
def _generator_class(real: type) -> type:
    def make(device: torch.device | str | int = "cpu") -> object:
        device = torch.device(device)
        # Also for a device that does not exist, as in torch.
        return DeviceGenerator(device.index) if device.type == "cuda" else real(device)

    return class_on_ranks(real, make)


@functools.cache
def _early(refuse: Callable[..., object], ours: type) -> object:
    """Return a `__new__` for a class with a dummy base: on a rank, it makes one of ours."""
    make = compiled_base(ours).__new__

    def new(cls: type, *args: object, **kwargs: object) -> object:
        return refuse(cls, *args, **kwargs) if current_process() is None else make(ours, *args, **kwargs)

    return staticmethod(new)


@functools.cache
def _kept_out(real: type, ours: Any) -> object:
    """Our class; a thread that is no rank gets torch's, which says that there is no CUDA."""
    new = ours.__new__

    def __new__(cls: type, *args: object, **kwargs: object) -> object:
        if current_process() is None:
            return real(*args, **kwargs)
        return new(cls, *args, **kwargs)

    ours.__new__ = __new__
    return ours
