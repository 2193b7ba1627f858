"""The devices of each process, and under them the devices of the hosts, while a world runs.

Circle of imports: the devices of a process own its accounts, streams, history and races, and each of these asks for the
devices of the calling process.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from simdist.cluster import Cluster
from simdist.device._cuda_build import tenancy
from simdist.device._generators import DeviceGenerator
from simdist.device._memory import Account, Device, account_class
from simdist.device._streams import Streams
from simdist.device._torch_core import core
from simdist.inside.torch import begin_cuda, is_built_for_cuda, visible_devices
from simdist.process import SimProcess, current_process, drawn_from

if TYPE_CHECKING:
    from simdist.device._history import History
    from simdist.device._races import Races

__all__ = ["Hardware", "ProcessDevices", "account_of", "busy", "count", "cuda_error", "devices_of", "enter"]
__all__ += ["invalid_device", "is_in_bad_fork", "keep_figures_in", "kernel_changes", "present", "present_or_none"]
__all__ += ["shared_storages", "there_are_devices"]

_present: Hardware | None = None  # of the one world that is active
_account_class = account_class()


class ProcessDevices:
    """The devices of one process: those of its host that CUDA_VISIBLE_DEVICES lets it see, numbered from 0.

    `variables` holds the variables of `torch.cuda` for this process, while another process has the baton.
    """

    def __init__(
        self,
        process: SimProcess,
        host: int,
        devices: list[Device],
        variables: Mapping[str, object],
        races: Races | None,
    ) -> None:
        self._process = process
        self._host = host  # its number
        self._devices = devices
        self._accounts: list[Account] | None = None
        self.variables = dict(variables)
        self.streams = Streams(process)
        self.streams.races = races
        self.raw: dict[int, torch.Tensor] = {}  # memory taken by address, without a tensor
        self.exported: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by the address that a DLPack capsule gave
        self.chosen: set[int] = set()  # devices that were made the current one
        self.made_ids = 0  # for communicators of `torch.cuda.nccl`
        self.has_warned_of_types = False  # of `torch.cuda.FloatTensor` and its like
        self.pools: dict[tuple[int, int], int] = {}  # memory pools of the program, and how many use each
        self.workspaces: dict[str, int] = {}  # bytes that the program has set for cuBLAS
        self.management_uses = 0  # how many times NVML was begun and not ended
        self.has_asked_driver = False
        self.is_in_bad_fork = False  # forked from a process that had asked the driver, so that CUDA can't begin
        self.history: History | None = None  # of the memory, while it is recorded
        self.generators: tuple[DeviceGenerator, ...] = ()

    @property
    def of_host(self) -> list[Device]:
        """All devices of the process's host, seen or not."""
        return self._devices

    def uuid(self, place: int) -> str:
        """The name of a device of the host, which no other device of the world has."""
        return f"{self._host:08x}-0000-0000-0000-{place:012d}"

    @property
    def accounts(self) -> list[Account]:
        """One for each device. The first access fixes which devices there are, as the first call of the driver does."""
        accounts = self._accounts
        if accounts is None:
            seen = self._visible()
            make = _account_class
            accounts = [make(self._devices[place], index, self._process.pid) for index, place in enumerate(seen)]
            self._accounts = accounts
            if is_built_for_cuda():
                tenancy.accounts += accounts
            self._process.end_listeners[self._close] = None
        return accounts

    def start(self) -> None:
        """Begin CUDA for the process, when `torch.cuda` is first used.

        Raises:
            RuntimeError: there is no device.
        """
        self.has_asked_driver = True
        if not self.accounts:
            raise RuntimeError("No CUDA GPUs are available")
        # As in `at::cuda::detail::getDefaultCUDAGenerator`, their seeds are random, of 53 bits.
        self.generators = tuple(
            DeviceGenerator(index).manual_seed(int.from_bytes(drawn_from(self._process, "cuda", 8), "little") >> 11)
            for index in range(len(self.accounts))
        )

    def fail(self, failure: Callable[[], BaseException]) -> None:
        """Let every call of the process that uses a device raise what `failure` makes, from now on."""
        self.streams.fail(failure, range(len(self._devices)))

    def _visible(self) -> list[int]:
        seen: list[int] = []
        for place in visible_devices():  # the first entry that is no device ends the list
            if not isinstance(place, int) or not 0 <= place < len(self._devices):
                break
            seen.append(place)
        return seen

    def _close(self, _: SimProcess) -> None:
        for account in self._accounts or ():
            account.close()


class Hardware(dict[SimProcess, ProcessDevices]):
    """The devices of every host of a world; by process, its share of them, made when first asked for."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._hosts = {
            name: [Device(cluster.device_memory_bytes) for _ in range(cluster.devices_on(name))]
            for name in cluster.hosts
        }
        self.make_races: Callable[[SimProcess], Races | None] = lambda process: (
            None
        )  # the search for races in a process, if there is one
        self.fresh: dict[str, Any] = {}  # the variables of a process that has not used a device
        self.changes: list[Callable[[int, str, int], tuple[int, float] | None]] = []  # of what kernels make
        self.shared: dict[bytes, Any] = {}  # storages that processes can receive, by handle: see `_storages`

    def __missing__(self, process: SimProcess) -> ProcessDevices:
        fresh = {**self.fresh, "_queued_calls": list(self.fresh["_queued_calls"])}
        fresh["_lazy_seed_tracker"] = type(fresh["_lazy_seed_tracker"])()
        host = process.host.name
        made = self[process] = ProcessDevices(
            process, list(self._hosts).index(host), self._hosts[host], fresh, self.make_races(process)
        )
        return made

    def close(self) -> None:
        """Forget everything: processes and their tensors refer to each other."""
        self.clear()
        self.changes.clear()
        self.shared.clear()
        for devices in self._hosts.values():
            for device in devices:
                device.accounts.clear()


def enter(hardware: Hardware | None) -> None:
    """Make these the devices from now on; None: there are none."""
    global _present
    _present = hardware
    core().count_by(count if hardware is not None else lambda: 0)


def keep_figures_in(figures: type | None) -> None:
    """From now on, put accounts on the base class in which kernels in C++ keep the figures; None: Python keeps them."""
    global _account_class
    if _account_class is not account_class(figures):
        _account_class = account_class(figures)
        _stray.cache_clear()


def there_are_devices() -> bool:
    """True while a world with devices lives."""
    return _present is not None


def present() -> ProcessDevices:
    """Return the devices of the calling process.

    Raises:
        AssertionError: the caller is no process of a world with devices; in the words of a torch without CUDA.
    """
    process = current_process()
    if process is None or _present is None:
        raise AssertionError("Torch not compiled with CUDA enabled")
    return _present[process]


def devices_of(process: SimProcess) -> ProcessDevices | None:
    """Return the devices of a process, on any thread; None in a world without any."""
    return None if _present is None else _present[process]


def busy(device: Device) -> bool:
    """True if a process has work on a stream of the device now."""
    return any(
        devices.accounts[index].device is device
        for devices in (() if _present is None else _present.values())
        for index in devices.streams.busy_devices()
    )


def is_in_bad_fork() -> bool:
    """True if the calling process is the forked child of one that had asked the driver."""
    devices = present_or_none()
    return devices is not None and devices.is_in_bad_fork


def kernel_changes() -> list[Callable[[int, str, int], tuple[int, float] | None]]:
    """The functions that change the results of kernels; see `kernels/_wrong`. Empty in a world without devices."""
    return [] if _present is None else _present.changes


def present_or_none() -> ProcessDevices | None:
    """Return the devices of the calling process; None if it has none, as for a tensor that outlived its world."""
    process = current_process()
    return None if process is None or _present is None else _present[process]


def count() -> int:
    """Return the number of devices that the caller sees; 0 outside simulated ranks."""
    process = current_process()
    return 0 if process is None or _present is None else len(_present[process].accounts)


def account_of(index: int | None) -> Account:
    """The account of the calling process on one of its devices, by default the current one; the first call begins CUDA.

    Raises:
        AcceleratorError: there is no such device.
    """
    process = current_process()
    if process is None or _present is None:
        return _stray(index or 0)
    devices = _present[process]
    if not devices.generators:
        begin_cuda()
    if index is None:
        index = core().device().index
    accounts = devices.accounts
    if index >= len(accounts):
        raise invalid_device()
    return accounts[index]


@functools.cache
def _stray(index: int) -> Account:
    """Return the account of tensors that are made of one that outlived its world."""
    account = _account_class(Device(1 << 62), index, 0)
    if is_built_for_cuda():
        tenancy.accounts.append(account)
    return account


def shared_storages() -> dict[bytes, Any]:
    """The storages that processes can receive, by handle. Empty in a world without devices."""
    return {} if _present is None else _present.shared


def invalid_device() -> Exception:
    """The error for a device that does not exist, in the words of the CUDA runtime and of torch's check around it."""
    return torch.AcceleratorError(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


# CUDA's numbers and texts are those of its runtime, 13.0; the rest is c10/cuda/CUDAException.cpp of torch 2.13.
_ERRORS = {
    "assert": (710, "cudaErrorAssert", "device-side assert triggered"),
    "ecc": (214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    "lost": (719, "cudaErrorLaunchFailure", "unspecified launch failure"),
    "handle": (400, "cudaErrorInvalidResourceHandle", "invalid resource handle"),
    "fork": (3, "cudaErrorInitializationError", "initialization error"),
}


def cuda_error(kind: str) -> torch.AcceleratorError:
    """The error of every call of CUDA after an "assert" that failed, an "ecc" error, a "lost" device, or a "fork".

    Or of one call, whose "handle" is that of another device.
    """
    code, name, text = _ERRORS[kind]
    error = torch.AcceleratorError(
        f"CUDA error: {text}\n"
        f"Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        "information.\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    error.error_code = code  # type: ignore[attr-defined]  # set by C++, which torch's stubs leave out
    return error
