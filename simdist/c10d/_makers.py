"""Functions that make the groups and stores of ranks, and the names under which torch finds them.

A name that a program took before the world was installed stays the real one (`from torch.distributed import TCPStore`
in a module that the host imported). A store made with it is refused only when a group is made of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsIndex, SupportsInt, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from simdist._content import with_numbered_storages, with_zero_padding
from simdist.c10d._rank_state import Making, RankState
from simdist.c10d.backends import GLOO, SIMULATED
from simdist.c10d.engine import Backend
from simdist.c10d.engine._rendezvous import connect
from simdist.c10d.surface._compat import is_duration, said_by, whole_ms, without_news
from simdist.c10d.surface._group import SimProcessGroup
from simdist.c10d.surface._host_stores import client_of_host, is_hosts, refusal
from simdist.c10d.surface._identity import (
    REAL_GLOO,
    Device,
    GroupOptions,
    close_when_dropped,
    create_default_device,
    create_device,
    lazy_by_default,
)
from simdist.c10d.surface._store import SimPrefixStore, SimStore
from simdist.c10d.surface._store_server import StoreServer
from simdist.c10d.watch._checked import CheckedProcessGroup
from simdist.c10d.watch._flight_record import flight_record_of
from simdist.cluster import Network
from simdist.errors import SimdistError, UnsupportedError
from simdist.inside.torch import (
    FileStore,
    Place,
    PrefixStore,
    TCPStore,
    backend_plugin,
    c10d_bindings,
    wrap_for_debugging,
)
from simdist.process import Patches, class_on_ranks, current_process

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._options import NcclOptions
    from simdist.c10d.calls._member import Member
    from simdist.c10d.surface._identity import GroupBackend
    from simdist.inside.torch import Store

__all__ = ["Makers", "group_maker", "install", "make_nccl_group", "make_simulated_group", "serve"]

# `import ... as` would find the function of the same name in torch.distributed.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_DEFAULT_TIMEOUT = timedelta(minutes=30)
_STORE_TIMEOUT = timedelta(seconds=300)
_present: Makers | None = None  # of the one world that is active


class Makers:
    """Makes the groups and stores of one world's ranks."""

    def __init__(self, network: Network, *, backend: str, strict: bool, values: str = "all") -> None:
        self._network = network
        self._backend = backend
        self._strict = strict
        self._moves_payloads = values == "all"
        self._group_class = SimProcessGroup
        if network.cluster.devices_per_host:
            from simdist.c10d.surface._device_group import DeviceProcessGroup

            self._group_class = DeviceProcessGroup
        self.servers: dict[tuple[Hashable, ...], Any] = {}  # by address, path or identity
        self.backends: dict[str, None] = {}  # names of the backends over which groups were made

    def make_group(
        self,
        store: SimStore,
        rank: int,
        size: int,
        timeout: timedelta,
        backend: Backend,
        options: GroupOptions | None = None,
        ranks: Sequence[int] | None = None,
    ) -> SimProcessGroup:
        """Make a group over Gloo, or one like it; `ranks` are its ranks' in the world, if they are known."""
        process = current_process()
        assert process is not None
        limit_ns = round(timeout.total_seconds() * 1e9)
        devices = () if options is None else options._devices
        lazy = any(device.lazy for device in devices) if devices else lazy_by_default(process)
        member = self._connected(store, rank, size, limit_ns, backend, lazy=lazy, ranks=ranks)
        group = self._group_class(member, store, size, timeout, options)
        group.maker = self
        held_by_torch = process.torch_state.making is not None
        flight_record_of(process).enter(group, held=held_by_torch)
        if not held_by_torch:
            close_when_dropped(group)
        return group

    def _connected(
        self,
        store: SimStore,
        rank: int,
        size: int,
        limit_ns: int,
        backend: Backend,
        *,
        lazy: bool,
        ranks: Sequence[int] | None = None,
    ) -> Member:
        """The calling rank's end of a group that is being made; the world decides whether payloads are moved."""
        process = current_process()
        assert process is not None
        self.backends[backend.name] = None
        if ranks is None:
            ranks = process.torch_state.ranks_in_making
            if not ranks and size == self._network.cluster.world_size:
                ranks = range(size)
        if not self._moves_payloads:
            backend = replace(backend, moves_payloads=False)
        return connect(
            process, self._network, store, rank, size, limit_ns, backend, strict=self._strict, lazy=lazy, ranks=ranks
        )

    def nccl_group(
        self,
        store: SimStore,
        rank: int,
        size: int,
        options: NcclOptions | timedelta | None = None,
        *,
        timeout: timedelta | None = None,
        device_id: torch.device | None = None,  # of torch 2.15, which also binds the group to it
    ) -> GroupBackend:
        from simdist.c10d.backends.nccl import NCCL, NcclOptions, NcclProcessGroup

        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if not torch.cuda.device_count():
            raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
        if not isinstance(options, NcclOptions):
            timeout = options if options is not None else timeout
            options = NcclOptions()
            if timeout is not None:
                options._timeout = timeout
        limit_ns = round(options.timeout.total_seconds() * 1e9)
        member = self._connected(store, rank, size, limit_ns, NCCL, lazy=True)
        group = NcclProcessGroup(member, store, size, options)
        if state.making is not None:
            group.bound_device_id = state.making.device
        if device_id is not None:
            group.bound_device_id = device_id
        checked = self._checked(group, "nccl", store, rank, size, options.timeout)
        return self.with_other_parts(checked, "nccl", store, rank, size)

    def with_other_parts(self, group: GroupBackend, name: str, store: Any, rank: int, size: int) -> GroupBackend:
        """Return the group; or, if torch wants several backends, one that has it as a part, and the others."""
        process = current_process()
        assert process is not None
        making = process.torch_state.making
        if making is None or not making.parts:
            return group
        from simdist.c10d.surface._several_backends import SeveralBackends

        parts, making.parts = making.parts, {}
        made = {}
        for device, backend in parts.items():
            if backend == name:
                made[device] = group
                continue
            beside = SimPrefixStore(f"{device}/", store.underlying_store)
            made[device] = self._make_part(backend, beside, rank, size, making)
        whole = SeveralBackends(made, making.device)
        whole.passes_for = name
        return whole

    def make_child(
        self, group: GroupBackend, store: SimStore, rank: int, size: int, options: GroupOptions, ranks: Sequence[int]
    ) -> SimProcessGroup:
        """Make a group over Gloo from another one, with options that it shares with it.

        Raises:
            RuntimeError: there is no such rank, in Gloo's words.
        """
        _require_place(rank, size, options._timeout)
        backend = group._member.communicator.backend
        made = self.make_group(store, rank, size, options._timeout, backend, options, ranks)
        made.options = options
        return made

    def options_of_gloo(self, options: object, call: str) -> GroupOptions:
        """Return the options for Gloo: those given, or its default ones with a warning, once in each process."""
        if isinstance(options, GroupOptions):
            return options
        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if not hasattr(state, "warned_of_options"):
            from simdist.c10d.backends.nccl import log

            state.warned_of_options = None
            text = (
                f"Warning: Tried to pass options to ProcessGroupGloo::{call} that are not ProcessGroupGloo::Options."
                "Falling back to default options. (function operator())"
            )
            log(process, "W", text, Place.NO_OPTIONS_OF_GLOO)
        return GroupOptions(_DEFAULT_TIMEOUT)

    def _make_part(self, backend: str, store: SimStore, rank: int, size: int, making: Making) -> GroupBackend:
        if backend == "gloo":
            return self.gloo_group(store, rank, size, timeout=making.timeout)
        if backend == "nccl":
            from simdist.c10d.backends.nccl import NcclOptions

            options = NcclOptions() if making.options is None else making.options
            options._timeout = making.timeout
            return self.nccl_group(store, rank, size, options)
        plugin = backend_plugin(backend)
        if plugin is None or plugin.extended_api:
            raise UnsupportedError(f"a group of several backends can't have {backend!r} among them; use gloo and nccl")
        part: GroupBackend = plugin.creator_fn(store, rank, size, making.timeout)
        return part

    def gloo_group(self, store: SimStore, rank: int, size: int, *args: object, **kwargs: object) -> GroupBackend:
        kwargs = without_news(REAL_GLOO, ("options", "timeout"), kwargs)
        timeout, options = _limit_and_options(store, rank, size, args, kwargs)
        _require_place(rank, size, timeout)
        backend = SIMULATED.get(self._backend, GLOO)
        group = self.make_group(store, rank, size, timeout, backend, options)
        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if state.making is not None and state.making.device is not None:
            group.bound_device_id = state.making.device
        if not state.group_in_making:
            return group
        checked = self._checked(group, "gloo", store, rank, size, timeout) if backend is GLOO else group
        return self.with_other_parts(checked, "gloo", store, rank, size)

    def _checked(
        self, group: GroupBackend, backend: str, store: SimStore, rank: int, size: int, timeout: timedelta
    ) -> GroupBackend:
        """Return the group; or one that wraps it, if the rank's calls are to be compared with those of others.

        Torch makes a wrapper itself, but not around a backend that is a whole group, as ours are.
        """
        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if not state.group_in_making or state.debug_level != c10d_bindings.DebugLevel.DETAIL:
            return group
        name, state.group_in_making = state.group_in_making, ""  # the group that the wrapper needs is not checked
        checked = wrap_for_debugging(group, name, store, rank, size, timeout)
        assert isinstance(checked, CheckedProcessGroup)
        state.group_in_making = name
        checked.passes_for = backend
        return checked

    def tcp_store(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = _STORE_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> SimStore | TCPStore:
        from simdist.c10d.surface._tcp_store import is_served, open_tcp_store

        if not isinstance(host_name, str | bytes) or not _is_port(port):
            TCPStore(host_name, port, world_size, is_master, timeout)  # raises torch's TypeError
        if world_size == 0:
            raise ValueError("TCPStore world size cannot be 0")
        if master_listen_fd is not None:
            raise UnsupportedError("a simulated TCPStore takes no listening socket")
        if not is_master and not is_served(self.servers, host_name, port):
            client = client_of_host(
                host_name,
                port,
                world_size=world_size,
                timeout=timeout,
                wait_for_workers=wait_for_workers,
                use_libuv=use_libuv,
            )
            if client is not None:
                return client
        return open_tcp_store(
            self.servers,
            host_name,
            port,
            world_size=world_size,
            is_master=is_master,
            timeout=timeout,
            wait_for_workers=wait_for_workers,
            multi_tenant=multi_tenant,
            use_libuv=use_libuv,
            latency_ns=lambda source, target: self._network.cluster.path(source, target)[0],
        )

    def file_store(self, path: str, world_size: int = -1) -> SimStore:
        from simdist.c10d.surface._file_store import open_file_store

        if not isinstance(path, str | bytes):
            FileStore(path, world_size)  # raises torch's TypeError
        return open_file_store(self.servers, str(path), world_size)

    def hash_store(self) -> SimStore:
        # A real one lives inside one process, so every rank has its own.
        return SimStore(StoreServer("hash"), kind="hash")


def serve(makers: Makers | None) -> None:
    """Let `makers` make the groups and stores of ranks from now on; None: no world does."""
    global _present
    _present = makers


def _in_present_world(method: str) -> Callable[..., object]:
    def make(*args: object, **kwargs: object) -> object:
        return getattr(_present, method)(*args, **kwargs)

    return make


# Backends that a build of torch may lack, and the rest of torch's text after the name (2.13).
_MAY_LACK = {
    "nccl": "",
    "xccl": "",
    "mpi": ". MPI is only included if you build PyTorch from source on a host that has MPI installed.",
}


def group_maker(backend: Backend) -> Callable[[Store, int, int, timedelta], dist.ProcessGroup]:
    """A function for `dist.Backend.register_backend`: on ranks it makes simulated groups of a backend.

    Example:
        >>> def main():
        ...     dist.Backend.register_backend("hub", group_maker(HUB), devices=["cpu"])
        ...     dist.init_process_group("hub")
        ...     return dist.get_backend()
        >>> simdist.run(main, world_size=2).values
        ['hub', 'hub']
    """

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
        if current_process() is None or _present is None:
            raise SimdistError(f"the {backend.name!r} backend exists only inside simulated ranks")
        group = _present.make_group(store, rank, size, timeout, backend)
        return _present.with_other_parts(group, backend.name, store, rank, size)

    return make


_STORES = {
    "TCPStore": _in_present_world("tcp_store"),
    "FileStore": _in_present_world("file_store"),
    "HashStore": _in_present_world("hash_store"),
}
make_simulated_group = {name: group_maker(backend) for name, backend in SIMULATED.items()}
_make_gloo_group = _in_present_world("gloo_group")
make_nccl_group = _in_present_world("nccl_group")


@functools.cache
def _gloo_class(real: Any) -> Any:
    def is_gloo(group: object) -> bool:
        return not _is_wrapper(group) if isinstance(group, (real, SimProcessGroup)) else _passes_for_gloo(group)

    gloo: Any = class_on_ranks(real, _make_gloo_group, SimProcessGroup, has=is_gloo)
    gloo._Options = class_on_ranks(real._Options, GroupOptions, GroupOptions)
    gloo.Device = class_on_ranks(real.Device, real.Device, Device)
    gloo.create_device = staticmethod(_device(real.create_device, create_device))
    gloo.create_default_device = staticmethod(_device(real.create_default_device, create_default_device))
    return gloo


def install(patches: Patches) -> None:
    """Replace the names that make stores and groups."""
    stores = {name: class_on_ranks(getattr(dist, name), make, SimStore) for name, make in _STORES.items()}
    stores["PrefixStore"] = class_on_ranks(PrefixStore, _prefix_store, SimPrefixStore)
    for module in (dist, c10d, _rendezvous, c10d_bindings):
        for name, replacement in stores.items():
            if hasattr(module, name):
                patches.replace(module, name, replacement)
    gloo = _gloo_class(c10d.ProcessGroupGloo)
    for module in (dist, c10d, c10d_bindings):
        if hasattr(module, "ProcessGroupGloo"):
            patches.replace(module, "ProcessGroupGloo", gloo)
    wrapper = class_on_ranks(c10d_bindings._ProcessGroupWrapper, CheckedProcessGroup, CheckedProcessGroup)
    for module in (c10d, c10d_bindings):
        patches.replace(module, "_ProcessGroupWrapper", wrapper)
    patches.wrap(c10d, "_new_process_group_helper", _new_group_helper)
    patches.wrap(c10d, "_object_to_tensor", with_zero_padding)
    patches.wrap(torch.serialization, "_legacy_save", _numbered_on_ranks)


def _numbered_on_ranks(save: Callable[..., None]) -> Callable[..., None]:
    numbered = with_numbered_storages(save)

    @functools.wraps(save)
    def legacy_save(*args: object, **kwargs: object) -> None:
        (save if current_process() is None else numbered)(*args, **kwargs)

    return legacy_save


def _limit_and_options(
    store: SimStore, rank: int, size: int, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[timedelta, GroupOptions | None]:
    """The arguments after the size in a call of `ProcessGroupGloo`: nothing, or options, or a timeout."""
    given = [*args, *kwargs.values()] if kwargs else args
    if not given:
        return _DEFAULT_TIMEOUT, None
    if len(given) == 1:
        if isinstance(given[0], GroupOptions) and "timeout" not in kwargs:
            if not given[0]._devices:
                raise RuntimeError("No device(s) specified")
            return given[0]._timeout, given[0]
        if is_duration(given[0]) and "options" not in kwargs:
            return whole_ms(given[0]), None
    if any(isinstance(each, REAL_GLOO._Options) for each in given):
        raise SimdistError("the group's options were made outside the simulation; make them inside the rank's function")
    raise said_by(REAL_GLOO, store, rank, size, *args, **kwargs)


def _require_place(rank: int, size: int, timeout: timedelta) -> None:
    if 0 <= rank < size and timeout >= _AT_ONCE:
        return
    for place, kept, said in (
        (Place.RANK_IS_NEGATIVE, rank >= 0, f"rank >= 0. {rank} vs 0"),
        (Place.RANK_IS_TOO_LARGE, rank < size, f"rank < size. {rank} vs {size}"),
        (Place.TIMEOUT_IS_NEGATIVE, timeout >= _AT_ONCE, "timeout.count() >= 0. Invalid timeout"),
    ):
        if not kept:
            raise RuntimeError(f"[enforce fail at {place.path}] {said}")


_AT_ONCE = timedelta(0)


def _passes_for_gloo(group: object) -> bool:
    return getattr(group, "passes_for", "") == "gloo"


def _is_wrapper(group: object) -> bool:
    return isinstance(group, CheckedProcessGroup) and group.passes_for != "gloo"


def _new_group_helper(original: Callable[_P, _R]) -> Callable[_P, _R]:
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    def helper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        process = current_process()
        if process is None or process.torch_state is None:
            return original(*args, **kwargs)
        given: dict[str, Any] = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        backend = given["backend"]
        _require_built_in(backend)
        state: RankState = process.torch_state
        state.group_in_making = str(given["group_name"])
        state.ranks_in_making = list(given["global_ranks_in_group"])
        state.making = Making(given["timeout"], given["backend_options"], given["device_id"], _parts(backend))
        try:
            return original(*args, **kwargs)
        finally:
            state.group_in_making, state.ranks_in_making, state.making = "", [], None

    return helper


def _parts(backend: dist.Backend) -> dict[str, str]:
    """The backends of a group by type of device; none if all devices share one, or if torch will refuse the list."""
    if ":" not in str(backend) and backend != c10d.Backend.UNDEFINED:
        return {}
    try:
        found = c10d.BackendConfig(backend).get_device_backend_map()
    except ValueError:
        return {}
    return {device: str(name) for device, name in found.items()} if len(set(found.values())) > 1 else {}


def _require_built_in(backend: dist.Backend) -> None:
    """Refuse a list of backends one of which this torch does not have, in its words.

    Torch makes the backends one by one, and refuses the first that it lacks. Ours is a whole group, which ends that
    loop, so torch would silently accept the backends after it.
    """
    text = str(backend).lower()
    named = [part.partition(":")[2] for part in text.split(",") if ":" in part] if ":" in text else (text,)
    for name in named or (text,):
        if name in _MAY_LACK and not getattr(c10d, f"is_{name}_available")():
            raise RuntimeError(f"Distributed package doesn't have {name.upper()} built in{_MAY_LACK[name]}")


def _is_port(port: object) -> bool:
    if isinstance(port, str | float) or not isinstance(port, SupportsInt | SupportsIndex):
        return False
    return 0 <= int(port) < 1 << 16


def _prefix_store(prefix: str, store: Store) -> Store:
    if isinstance(store, SimStore) and isinstance(prefix, str | bytes):
        return SimPrefixStore(prefix, store)
    # Torch makes a view of a group's store before all else. The program may wait in a view that it makes itself.
    if is_hosts(store) and sys._getframe(2).f_globals.get("__name__") == c10d.__name__:
        raise refusal(store)
    return PrefixStore(prefix, store)  # of an object that is no store at all, such as torch's FakeStore


def _device(original: Callable[..., object], make: Callable[..., Device]) -> Callable[..., object]:
    def create(*args: object, **kwargs: object) -> object:
        return original(*args, **kwargs) if current_process() is None else make(*args, **kwargs)

    return create
