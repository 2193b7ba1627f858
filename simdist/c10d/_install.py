"""Torch's process-wide state, made per rank for the length of a world.

Names that build groups and stores (`ProcessGroupGloo`, `TCPStore`, ...) are replaced where torch looks them up; on a
rank they make simulated ones, on every other thread the real ones. State that torch reads directly (the default dtype,
the debug level) is swapped when the baton changes hands; `_world` and the C++ group registry are a thread's own.

Three kinds of things, by how torch gets at them:
- Names that Python looks up each time it makes something: replaced by classes whose metaclass asks who calls
  (`_Dispatching`). `isinstance` and attributes go through to the real class, so that code which only asks sees no
  difference, the host's own included.
- Variables that are read by whoever comes along: swapped in `switch`, at each hand-over, and only where the two sides
  differ, for that is hot.
- What torch keeps per thread, or can be told to (`_set_thread_isolation_mode`): nothing has to be done at a hand-over.

Invariants:
- One world at a time is installed, `_present`; outside of `install` and `uninstall` nothing of torch is replaced. All
  replacements are made through one `Patches`, so they are undone in the opposite order, whatever happened in between.
- On a thread that is no rank everything is as without simdist, while a world runs too.
- After a `switch` torch has the state of the process that holds the baton, or the host's if it holds it; the state of
  all others is in their `RankState`. What a rank changes by torch's own functions is read back when it leaves.
- Classes for replaced names are made once in a process (`functools.cache`): worlds start by the thousand.

Doubts: a name that somebody took before the world was installed is the real one for ever (`from torch.distributed
import TCPStore` in a module that the host imported); what it makes is refused where a group is made of it, and not
before. `_set_thread_isolation_mode` is private to torch. A C++ call of a rank that changes the debug level without our
function is put right for the host at the end, not for the other ranks at the next hand-over.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as _c

from simdist._content import with_zero_padding
from simdist.c10d import _replacements
from simdist.c10d.backends import GLOO, IDEAL
from simdist.c10d.engine import Backend
from simdist.c10d.engine._rendezvous import connect
from simdist.c10d.surface import _flags, _generators, _host_stores, _memory, _meshes, _workers
from simdist.c10d.surface._backend_tables import BackendTables
from simdist.c10d.surface._compat import is_duration, said_by, whole_ms
from simdist.c10d.surface._compiled import CompiledCode
from simdist.c10d.surface._group import SimProcessGroup
from simdist.c10d.surface._host_stores import is_hosts, refusal
from simdist.c10d.surface._identity import (
    Device,
    GroupOptions,
    create_default_device,
    create_device,
    lazy_by_default,
)
from simdist.c10d.surface._rank_world import RankWorld, WorldPerThread
from simdist.c10d.surface._store import SimPrefixStore, SimStore, StoreServer
from simdist.c10d.surface._work import SimFuture
from simdist.c10d.watch import _flight_record, _profiling
from simdist.c10d.watch._checked import CheckedProcessGroup
from simdist.c10d.watch._flight_record import FlightRecord, flight_record_of
from simdist.c10d.watch._profiling import ProfiledCalls
from simdist.c10d.watch._results import note_results
from simdist.c10d.watch._strict import watch_strictly
from simdist.cluster import Network
from simdist.errors import SimdistError, UnsupportedError
from simdist.kernel import Bus
from simdist.process import Patches, SimProcess, current_process, variable_of

__all__ = ["RankState", "TorchState", "group_maker"]

# `import ... as` would find the function of the same name in torch.distributed.
_registry: Any = _c  # has what the stubs leave out
_get_default_dtype = torch.get_default_dtype
_set_debug_level_of_torch = _registry.set_debug_level
_rendezvous = importlib.import_module("torch.distributed.rendezvous")
# Its functions have `group=dist.group.WORLD` as a default: imported on a rank, they would keep that rank's group.
importlib.import_module("torch.distributed.nn.functional")

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_STORE_TIMEOUT = timedelta(seconds=300)
_DEBUG = "TORCH_DISTRIBUTED_DEBUG"


class RankState:
    """What torch keeps per process, of one rank."""

    __slots__ = (
        "backends",
        "debug_level",
        "default_dtype",
        "failed",
        "flight_record",
        "futures",
        "graph_task",
        "group_in_making",
        "init_method",
        "making",
        "nccl",
        "profile",
        "ranks_in_making",
        "unwaited",
        "world",
    )

    def __init__(self, debug_level: Any) -> None:
        self.world = RankWorld()
        self.init_method: Any = None
        self.default_dtype = torch.float32
        self.debug_level = debug_level
        self.backends: dict[str, Any] | None = None  # attributes of `Backend`, once the rank has registered one
        self.futures: dict[SimFuture, None] = {}  # not done yet
        self.failed: list[BaseException] = []  # what futures failed with that nobody has looked at
        self.unwaited: dict[Any, str] = {}  # strict: works nobody has waited for, and where they were issued
        self.profile: ProfiledCalls | None = None  # while the rank's profiler runs
        self.graph_task = -1  # the autograd graph task that has our callback queued
        self.flight_record: FlightRecord | None = None  # from the first group on
        self.nccl: Any = None  # what NCCL keeps, from its first group on
        self.ranks_in_making: list[int] = []  # likewise, its members in the world; none of the default group
        self.group_in_making = ""  # its name, from when torch begins to make a group until it has its backend
        self.making: _Making | None = None  # likewise, what else is known of it


@dataclass(slots=True)
class _Making:
    """A group that torch is making: what it told the function that makes it.

    `parts` are the backends by type of device, if there are several; none once the first has been asked for.
    """

    timeout: Any
    options: Any
    device: Any
    parts: dict[str, str]


class _Dispatching(type):
    """Metaclass of a name that makes simulated objects on a rank and real ones elsewhere."""

    real: Any
    simulated: Any
    make: Callable[..., Any]
    unlike: Callable[[Any], bool] = staticmethod(lambda instance: False)  # simulated, and yet no instance
    like: Callable[[Any], bool] = staticmethod(lambda instance: False)  # of another class, and yet one

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if current_process() is None:
            return cls.real(*args, **kwargs)
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, cls.real | cls.simulated):
            return not cls.unlike(instance)
        return cls.like(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.real | cls.simulated)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


@functools.cache  # to make a class takes longer than most of what is replaced, and worlds start by the thousand
def _dispatching(name: str, real: type, simulated: type, make: Callable[..., Any]) -> Any:
    return _Dispatching(name, (), {"real": real, "simulated": simulated, "make": staticmethod(make)})


def _in_present_world(method: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return getattr(_present, method)(*args, **kwargs)

    return make


# Backends that a build of torch may lack, and what torch says behind the name (2.13).
_MAY_LACK = {
    "nccl": "",
    "xccl": "",
    "mpi": ". MPI is only included if you build PyTorch from source on a host that has MPI installed.",
}


def group_maker(backend: Backend) -> Callable[..., Any]:
    """A function for `dist.Backend.register_backend`: on ranks it makes simulated groups of a backend.

    Example:
        >>> def main():
        ...     dist.Backend.register_backend("hub", group_maker(HUB), devices=["cpu"])
        ...     dist.init_process_group("hub")
        ...     return dist.get_backend()
        >>> simdist.run(main, world_size=2).values
        ['hub', 'hub']
    """

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        if current_process() is None or _present is None:
            raise SimdistError(f"the {backend.name!r} backend exists only inside simulated ranks")
        group = _present._make_group(store, rank, size, timeout, backend)
        return _present._with_other_parts(group, backend.name, store, rank, size)

    return make


_present: TorchState | None = None  # of the one world that is active
_STORES = {
    "TCPStore": _in_present_world("_tcp_store"),
    "FileStore": _in_present_world("_file_store"),
    "HashStore": _in_present_world("_hash_store"),
}
_make_sim_group = group_maker(IDEAL)
_make_gloo_group = _in_present_world("_gloo_group")
_make_nccl_group = _in_present_world("_nccl_group")


@functools.cache
def _gloo_class(real: Any) -> Any:
    gloo = _dispatching("ProcessGroupGloo", real, SimProcessGroup, _make_gloo_group)
    gloo.unlike = staticmethod(_is_wrapper)
    gloo.like = staticmethod(_passes_for_gloo)
    gloo._Options = _dispatching("_Options", real._Options, GroupOptions, GroupOptions)
    gloo.Device = _dispatching("Device", real.Device, Device, real.Device)
    gloo.create_device = staticmethod(_device(real.create_device, create_device))
    gloo.create_default_device = staticmethod(_device(real.create_default_device, create_default_device))
    return gloo


def _of_rank(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_debug_level(level: Any) -> None:
        process = current_process()
        if process is None or _present is None:
            original(level)
        else:
            _present.set_debug_level(process, level)

    return set_debug_level


def _of_rank_from_env(original: Callable[[], None]) -> Callable[[], None]:
    def set_debug_level_from_env() -> None:
        process = current_process()
        if process is None or _present is None:
            original()
            return
        said = variable_of(process, _DEBUG)  # C++ would read the host's
        level = _level_named("OFF" if said is None else said)
        if level is None:
            raise ValueError("The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.")
        _present.set_debug_level(process, level)

    return set_debug_level_from_env


def _install_makers(patches: Patches) -> None:
    """Replace the names that make stores and groups."""
    stores = {name: _dispatching(name, getattr(dist, name), SimStore, make) for name, make in _STORES.items()}
    stores["PrefixStore"] = _dispatching("PrefixStore", _c.PrefixStore, SimPrefixStore, _prefix_store)
    for module in (dist, c10d, _rendezvous):
        for name, replacement in stores.items():
            if hasattr(module, name):
                patches.replace(module, name, replacement)
    gloo = _gloo_class(c10d.ProcessGroupGloo)
    patches.replace(c10d, "ProcessGroupGloo", gloo)
    if hasattr(dist, "ProcessGroupGloo"):
        patches.replace(dist, "ProcessGroupGloo", gloo)
    wrapper = _dispatching(
        "_ProcessGroupWrapper", _registry._ProcessGroupWrapper, CheckedProcessGroup, CheckedProcessGroup
    )
    for module in (c10d, _registry):
        patches.replace(module, "_ProcessGroupWrapper", wrapper)
    patches.wrap(c10d, "_new_process_group_helper", _new_group_helper)
    patches.wrap(c10d, "_object_to_tensor", with_zero_padding)
    for module in (dist, _registry):
        patches.wrap(module, "set_debug_level", _of_rank)
        patches.wrap(module, "set_debug_level_from_env", _of_rank_from_env)


_ALWAYS = (
    _install_makers,
    _host_stores.install,
    _profiling.install,
    _flight_record.install,
    _replacements.install,
    _generators.install,
    _workers.install,
)


class TorchState:
    """Installs the replacements, and swaps states.

    Example:
        >>> state = TorchState(network, backend="gloo")
        >>> state.install(simulation.bus)
        >>> slots.add(state.switch)     # keeps ranks apart from here on
        >>> state.uninstall()
    """

    def __init__(self, network: Network, *, backend: str, strict: bool = False, results: bool = False) -> None:
        self._network = network
        self._backend = backend
        self._strict = strict
        self._results = results
        self._patches = Patches()
        self._host: RankState | None = None
        self._threads = 1
        self._debug_level: Any = None  # the one that C++ has now
        self._backends = BackendTables()
        self._variables = vars(c10d)
        self._compiled = CompiledCode()
        self._flags: Any = ()  # what was set for all of torch before
        self._group_class = SimProcessGroup
        self._has_devices = bool(network.cluster.devices_per_host)
        if self._has_devices:
            from simdist.c10d.surface._device_group import DeviceProcessGroup

            self._group_class = DeviceProcessGroup
        self.servers: dict[Any, StoreServer] = {}  # by address, path or identity

    # -- life ----------------------------------------------------------------------------------------------------

    def install(self, bus: Bus, *, flags_apart: bool = False) -> None:
        """Make torch's names simulated on ranks; what is to be watched is heard of on the world's bus.

        With `flags_apart` each rank has the settings for all of torch for itself.
        """
        global _present
        _present = self
        self._flags = _flags.remember()
        if flags_apart:
            _flags.install(self._patches)
        _memory.bus = bus
        if self._strict:
            watch_strictly(bus)
        if self._results:
            note_results(bus)
        host = self._host = RankState(_c.get_debug_level())
        host.init_method = c10d._default_pg_init_method
        host.default_dtype = torch.get_default_dtype()
        self._threads = torch.get_num_threads()
        self._debug_level = host.debug_level
        torch.set_num_threads(1)
        _registry._set_thread_isolation_mode(True)
        self._patches.replace(c10d, "_world", WorldPerThread(c10d._world))
        self._patches.replace(c10d, "_backend", c10d._backend)  # torch writes it, and nobody reads it
        self._patches.install(_ALWAYS)
        self._backends.install(self._patches, _make_sim_group, default=self._backend)
        _meshes.install(self._patches)
        self._compiled.install(self._patches)
        if self._has_devices:
            from simdist.c10d import _nccl_names

            _replacements.install_for_devices(self._patches)
            _nccl_names.install(self._patches, _make_nccl_group)

    def uninstall(self) -> None:
        """Put everything back."""
        global _present
        _present = _memory.bus = None
        host = self._host
        assert host is not None
        self._backends.load(None)
        self._patches.undo()
        _flags.restore(self._flags)
        self._compiled.uninstall()
        self._backends.uninstall()
        _registry._set_thread_isolation_mode(False)
        torch.set_num_threads(self._threads)
        self.switch(None, None)
        if _c.get_debug_level() != host.debug_level:  # a rank may have asked C++ itself
            _set_debug_level_of_torch(host.debug_level)
        self.servers.clear()

    def new_rank(self, debug: str | None = None) -> RankState:
        """The state of a fresh process; `debug` is its TORCH_DISTRIBUTED_DEBUG, unless that is the host's own.

        Raises:
            SimdistError: torch does not know such a debug level; a real process could not import it.
        """
        assert self._host is not None
        if debug is None:
            return RankState(self._host.debug_level)
        level = _level_named(debug)
        if level is None:
            raise SimdistError(f"TORCH_DISTRIBUTED_DEBUG is {debug!r}; expected OFF, INFO or DETAIL")
        return RankState(level)

    def begin_thread(self, process: SimProcess) -> None:
        """Called on a thread that a rank started: C++ keeps what functional collectives find by name for each thread.

        It finds the groups that the rank has now, and not those that the rank makes later.
        """
        if process.torch_state.world.seen_by:
            for group, name in list(c10d._world.pg_names.items()):
                _registry._register_process_group(name, group)

    def begin_child(self, parent: SimProcess, child: SimProcess, forked: bool) -> None:
        """Called by a rank that starts a process: a forked one knows the groups that its parent has."""
        _workers.separate_workers()
        mine: RankState = parent.torch_state
        state = child.torch_state = RankState(mine.debug_level)
        if forked:
            state.world.begin_as(mine.world)
            state.init_method = self._variables["_default_pg_init_method"]
            state.default_dtype = torch.get_default_dtype()
            state.backends = mine.backends

    # -- switching -----------------------------------------------------------------------------------------------

    def switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Swap what is process-wide: called by the kernel whenever another process gets the baton."""
        variables = self._variables
        dtype = _get_default_dtype()
        if leaving is not None:
            state = leaving.torch_state
            if state is not None:
                state.init_method = variables["_default_pg_init_method"]
                state.default_dtype = dtype
        state = self._host if entering is None else entering.torch_state
        assert state is not None
        variables["_default_pg_init_method"] = state.init_method
        if dtype is not state.default_dtype:
            torch.set_default_dtype(state.default_dtype)
        if state.debug_level is not self._debug_level:
            self._debug_level = state.debug_level
            _set_debug_level_of_torch(state.debug_level)
        if state.backends is not self._backends.loaded:
            self._backends.load(state.backends)

    def set_debug_level(self, process: SimProcess, level: Any) -> None:
        """The rank that runs asks for it."""
        if process.torch_state is not None:
            process.torch_state.debug_level = level
            self._debug_level = level
        _set_debug_level_of_torch(level)

    # -- factories -----------------------------------------------------------------------------------------------

    def _make_group(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        backend: Backend,
        options: GroupOptions | None = None,
    ) -> SimProcessGroup:
        process = current_process()
        assert process is not None
        limit_ns = round(timeout.total_seconds() * 1e9)
        devices = () if options is None else options._devices
        lazy = any(device.lazy for device in devices) if devices else lazy_by_default(process)
        ranks: Sequence[int] = process.torch_state.ranks_in_making
        if not ranks and size == self._network.cluster.world_size:
            ranks = range(size)
        member = connect(
            process, self._network, store, rank, size, limit_ns, backend, strict=self._strict, lazy=lazy, ranks=ranks
        )
        group = self._group_class(member, store, size, timeout, options)
        flight_record_of(process).enter(group)
        return group

    def _nccl_group(
        self, store: Any, rank: int, size: int, options: Any = None, *, timeout: timedelta | None = None
    ) -> Any:
        from simdist.c10d.backends.nccl import NCCL, NcclOptions, NcclProcessGroup

        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if not torch.cuda.device_count():
            raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
        if not isinstance(options, NcclOptions):
            options, timeout = NcclOptions(), options if options is not None else timeout
            if timeout is not None:
                options._timeout = timeout
        limit_ns = round(options.timeout.total_seconds() * 1e9)
        ranks: Sequence[int] = state.ranks_in_making
        if not ranks and size == self._network.cluster.world_size:
            ranks = range(size)
        member = connect(
            process, self._network, store, rank, size, limit_ns, NCCL, strict=self._strict, lazy=True, ranks=ranks
        )
        group = NcclProcessGroup(member, store, size, options)
        if state.making is not None:
            group.bound_device_id = state.making.device
        checked = self._checked(group, "nccl", store, rank, size, options.timeout)
        return self._with_other_parts(checked, "nccl", store, rank, size)

    def _with_other_parts(self, group: Any, name: str, store: Any, rank: int, size: int) -> Any:
        """The group; or, if torch wants several backends, one that has it as a part, and the others."""
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
        whole = SeveralBackends(made, making.device, self._split_part)
        whole.passes_for = name
        return whole

    def _split_part(self, part: Any, ranks: Sequence[int], timeout: timedelta, name: str) -> Any:
        """The part, over Gloo, of a group of some of its ranks; None if this one is not among them."""
        part = getattr(part, "wrapped_pg", part)
        if part.rank() not in ranks:
            return None
        process = current_process()
        assert process is not None
        store = SimPrefixStore(f"split/{name}/", part.get_group_store())
        limit_ns, members = round(timeout.total_seconds() * 1e9), sorted(ranks)
        backend = part._member.communicator.backend
        rank, size = members.index(part.rank()), len(members)
        member = connect(process, self._network, store, rank, size, limit_ns, backend, strict=self._strict)
        made = self._group_class(member, store, size, timeout)
        made._set_group_name(name)
        return made

    def _make_part(self, backend: str, store: Any, rank: int, size: int, making: _Making) -> Any:
        if backend == "gloo":
            return self._gloo_group(store, rank, size, timeout=making.timeout)
        if backend == "nccl":
            from simdist.c10d.backends.nccl import NcclOptions

            options = NcclOptions() if making.options is None else making.options
            options._timeout = making.timeout
            return self._nccl_group(store, rank, size, options)
        plugin = c10d.Backend._plugins.get(backend.upper())
        if plugin is None or plugin.extended_api:
            raise UnsupportedError(f"a group of several backends can't have {backend!r} among them; use gloo and nccl")
        return plugin.creator_fn(store, rank, size, making.timeout)

    def _gloo_group(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        timeout, options = _limit_and_options(store, rank, size, args, kwargs)
        _require_place(rank, size, timeout)
        backend = IDEAL if self._backend == "sim" else GLOO
        group = self._make_group(store, rank, size, timeout, backend, options)
        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if not state.group_in_making:
            return group
        checked = group if backend is IDEAL else self._checked(group, "gloo", store, rank, size, timeout)
        return self._with_other_parts(checked, "gloo", store, rank, size)

    def _checked(self, group: Any, backend: str, store: Any, rank: int, size: int, timeout: Any) -> Any:
        """The group; or, where the rank's calls are to be compared with those of others, one that does that.

        Torch makes a wrapper itself, but not around a backend that is a whole group, as ours are.
        """
        process = current_process()
        assert process is not None
        state: RankState = process.torch_state
        if not state.group_in_making or state.debug_level != _registry.DebugLevel.DETAIL:
            return group
        name, state.group_in_making = state.group_in_making, ""  # the group that the wrapper needs gets none itself
        checked: CheckedProcessGroup = c10d._create_process_group_wrapper(group, name, store, rank, size, timeout)
        state.group_in_making = name
        checked.passes_for = backend
        return checked

    def _tcp_store(
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
    ) -> SimStore:
        from simdist.c10d.surface._tcp_store import open_tcp_store

        if master_listen_fd is not None:
            raise UnsupportedError("a simulated TCPStore takes no listening socket")
        return open_tcp_store(
            self.servers,
            host_name,
            port,
            world_size=world_size,
            is_master=is_master,
            timeout=timeout,
            wait_for_workers=wait_for_workers,
            multi_tenant=multi_tenant,
            latency_ns=lambda source, target: self._network.cluster.path(source, target)[0],
        )

    def _file_store(self, path: str, world_size: int = -1) -> SimStore:
        server = self.servers.setdefault(("file", str(path)), StoreServer(str(path)))
        return SimStore(server, kind="file")

    def _hash_store(self) -> SimStore:
        # A real one lives inside one process, so every rank has its own.
        return SimStore(StoreServer("hash"), kind="hash")


def _level_named(name: str) -> Any:
    """The debug level; None if there is none of this name."""
    return _registry.DebugLevel.__members__.get(name.upper())


def _limit_and_options(
    store: Any, rank: int, size: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[timedelta, GroupOptions | None]:
    """What follows the size in a call of `ProcessGroupGloo`: nothing, or options, or a timeout."""
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
    if any(isinstance(each, _registry.ProcessGroupGloo._Options) for each in given):
        raise SimdistError("the group's options were made outside the simulation; make them inside the rank's function")
    raise said_by(_registry.ProcessGroupGloo, store, rank, size, *args, **kwargs)


def _require_place(rank: int, size: int, timeout: timedelta) -> None:
    if 0 <= rank < size and timeout >= _AT_ONCE:
        return
    for line, kept, said in (
        (22, rank >= 0, f"rank >= 0. {rank} vs 0"),
        (23, rank < size, f"rank < size. {rank} vs {size}"),
        (62, timeout >= _AT_ONCE, "timeout.count() >= 0. Invalid timeout"),
    ):
        if not kept:
            raise RuntimeError(f"[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/context.cc:{line}] {said}")


_AT_ONCE = timedelta(0)


def _passes_for_gloo(group: Any) -> bool:
    return getattr(group, "passes_for", "") == "gloo"


def _is_wrapper(group: Any) -> bool:
    return isinstance(group, CheckedProcessGroup) and group.passes_for != "gloo"


def _new_group_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    def helper(*args: Any, **kwargs: Any) -> Any:
        process = current_process()
        if process is None or process.torch_state is None:
            return original(*args, **kwargs)
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        backend = given["backend"]
        _require_built_in(backend)
        state: RankState = process.torch_state
        state.group_in_making = str(given["group_name"])
        state.ranks_in_making = list(given["global_ranks_in_group"])
        state.making = _Making(given["timeout"], given["backend_options"], given["device_id"], _parts(backend))
        try:
            return original(*args, **kwargs)
        finally:
            state.group_in_making, state.ranks_in_making, state.making = "", [], None

    return helper


def _parts(backend: Any) -> dict[str, str]:
    """The backends of a group by type of device; none if all devices have the same, or torch will refuse the list."""
    if ":" not in str(backend) and backend != c10d.Backend.UNDEFINED:
        return {}
    try:
        found = c10d.BackendConfig(backend).get_device_backend_map()
    except ValueError:
        return {}
    return {device: str(name) for device, name in found.items()} if len(set(found.values())) > 1 else {}


def _require_built_in(backend: Any) -> None:
    """Refuse a list of backends one of which this torch does not have, in its words.

    Torch makes the backends one by one, and says it of the first that it lacks. Ours is a whole group, which ends that
    loop, so what comes behind it would be taken in silence.
    """
    text = str(backend).lower()
    named = [part.partition(":")[2] for part in text.split(",") if ":" in part] if ":" in text else (text,)
    for name in named or (text,):
        if name in _MAY_LACK and not getattr(c10d, f"is_{name}_available")():
            error = RuntimeError(f"Distributed package doesn't have {name.upper()} built in{_MAY_LACK[name]}")
            if name == "nccl":
                error.add_note(
                    'this world has no devices for NCCL; simdist.run(..., backend="nccl"), backend = "nccl" in a '
                    "scenario, or devices_per_host in its cluster, gives it virtual ones"
                )
            raise error


def _prefix_store(prefix: str, store: Any) -> Any:
    if isinstance(store, SimStore):
        return SimPrefixStore(prefix, store)
    if is_hosts(store):
        raise refusal(store)
    return _c.PrefixStore(prefix, store)  # of a store that is no store at all, such as torch's FakeStore


def _device(original: Callable[..., Any], make: Callable[..., Device]) -> Callable[..., Any]:
    def create(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if current_process() is None else make(*args, **kwargs)

    return create
