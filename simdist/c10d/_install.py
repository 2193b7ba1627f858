"""Torch's process-wide state, made per rank for the length of a world.

Names that build groups and stores (`ProcessGroupGloo`, `TCPStore`, ...) are replaced where torch looks them up; on a
rank they make simulated ones, on every other thread the real ones. State that torch reads directly (`_world`, the
default dtype, the debug level) is swapped when the baton changes hands; the C++ group registry has a per-thread mode.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as _c

from simdist.c10d import _profiling
from simdist.c10d._gloo import GLOO, SIM, Personality
from simdist.c10d._group import Device, GroupOptions, SimProcessGroup
from simdist.c10d._rendezvous import connect
from simdist.c10d._store import SimPrefixStore, SimStore, StoreServer
from simdist.c10d._work import SimFuture, wait_for_futures
from simdist.cluster import Network
from simdist.errors import SimdistError, UnsupportedError
from simdist.process import Patches, SimProcess, current_process, current_runtime
from simdist.process._randomness import RandomStates

__all__ = ["RankState", "TorchState"]

# `import ... as` would find the function of the same name in torch.distributed.
_registry: Any = _c  # has what the stubs leave out
_get_default_dtype = torch.get_default_dtype
_rendezvous = importlib.import_module("torch.distributed.rendezvous")
# Its functions have `group=dist.group.WORLD` as a default: imported on a rank, they would keep that rank's group.
importlib.import_module("torch.distributed.nn.functional")

_BACKEND_TABLES = (
    "backend_list",
    "backend_capability",
    "backend_type_map",
    "_plugins",
    "default_device_backend_map",
)
_DEFAULT_TIMEOUT = timedelta(minutes=30)
_STORE_TIMEOUT = timedelta(seconds=300)


class _GroupMap(dict[Any, Any]):
    """The groups that a rank has; one that is taken out is gone, as a real one is when nothing refers to it."""

    def __delitem__(self, group: Any) -> None:
        super().__delitem__(group)
        _leave(group)

    def clear(self) -> None:
        """Take all of them out."""
        groups = list(self)
        super().clear()
        for group in groups:
            _leave(group)


def _leave(group: Any) -> None:
    if isinstance(group, SimProcessGroup):
        group.leave()


class _RankWorld:
    """Stands in for `torch.distributed.distributed_c10d._World`: the groups that one rank knows."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = _GroupMap()
        self.pg_names: dict[Any, Any] = {}
        self.pg_group_ranks: dict[Any, Any] = {}
        self.pg_backend_config: dict[Any, Any] = {}
        self.group_count = 0
        self.tags_to_pg: dict[Any, Any] = {}
        self.pg_to_tag: dict[Any, Any] = {}
        self.pg_coalesce_state: dict[Any, Any] = {}
        self.comms: list[Any] = []

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        """As torch's own: one entry for each group."""
        return [
            {
                "pg_name": self.pg_names[group],
                "pg_desc": group.group_desc,
                "backend_config": self.pg_backend_config[group],
                "ranks": list(self.pg_group_ranks[group]),
                "group_size": group.size(),
                "group_count": self.group_count,
            }
            for group in self.pg_map
        ]


class RankState:
    """What torch keeps per process, of one rank."""

    __slots__ = (
        "backends",
        "debug_level",
        "default_dtype",
        "excepthook",
        "failed",
        "futures",
        "graph_task",
        "init_method",
        "profile",
        "unwaited",
        "world",
    )

    def __init__(self, excepthook: Any, debug_level: Any) -> None:
        self.world = _RankWorld()
        self.init_method: Any = None
        self.excepthook = excepthook
        self.default_dtype = torch.float32
        self.debug_level = debug_level
        self.backends: dict[str, Any] | None = None  # attributes of `Backend`, once the rank has registered one
        self.futures: dict[SimFuture, None] = {}  # not done yet
        self.failed: list[BaseException] = []  # what futures failed with that nobody has looked at
        self.unwaited: dict[Any, str] = {}  # strict: works nobody has waited for, and where they were issued
        self.profile: list[Any] | None = None  # the calls that the rank's profiler has seen, while one runs
        self.graph_task = -1  # the autograd graph task that has our callback queued


class _Dispatching(type):
    """Metaclass of a name that makes simulated objects on a rank and real ones elsewhere."""

    real: Any
    simulated: Any
    make: Callable[..., Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if current_process() is None:
            return cls.real(*args, **kwargs)
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real | cls.simulated)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.real | cls.simulated)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


def _dispatching(name: str, real: type, simulated: type, make: Callable[..., Any], **extra: Any) -> type:
    return _Dispatching(name, (), {"real": real, "simulated": simulated, "make": staticmethod(make), **extra})


class TorchState:
    """Installs the replacements, and swaps states.

    Example:
        >>> state = TorchState(runtime, network, backend="gloo")
        >>> state.install()         # Simulation(on_switch=state.switch) keeps ranks apart from here on
        >>> state.uninstall()
    """

    def __init__(self, network: Network, *, backend: str, seed: int, strict: bool = False) -> None:
        self._network = network
        self._backend = backend
        self._strict = strict
        self._patches = Patches()
        self._host: RankState | None = None
        self._threads = 1
        self._debug_level: Any = None  # the one that C++ has now
        self._backends: dict[str, Any] | None = None  # those of the rank that runs, where it has its own
        self._shared_backends: dict[str, Any] = {}
        self._variables = vars(c10d)
        self.random = RandomStates(seed)
        self.servers: dict[Any, StoreServer] = {}  # by address, path or identity

    # -- life ----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Make torch's names simulated on ranks."""
        host = self._host = RankState(sys.excepthook, _c.get_debug_level())
        host.world = c10d._world  # type: ignore[assignment]  # torch's own, for which ours stands in
        host.init_method = c10d._default_pg_init_method
        host.default_dtype = torch.get_default_dtype()
        self._argv = sys.argv
        self._streams = sys.stdout, sys.stderr
        self._threads = torch.get_num_threads()
        self._debug_level = host.debug_level
        torch.set_num_threads(1)
        _registry._set_thread_isolation_mode(True)
        stores: dict[str, Any] = {}
        for name, make in (
            ("TCPStore", self._tcp_store),
            ("FileStore", self._file_store),
            ("HashStore", self._hash_store),
        ):
            stores[name] = _dispatching(name, getattr(dist, name), SimStore, make)
        stores["PrefixStore"] = _dispatching("PrefixStore", _c.PrefixStore, SimPrefixStore, _prefix_store)
        for module in (dist, c10d, _rendezvous):
            for name, replacement in stores.items():
                if hasattr(module, name):
                    self._patches.replace(module, name, replacement)
        real: Any = c10d.ProcessGroupGloo
        gloo = _dispatching(
            "ProcessGroupGloo",
            real,
            SimProcessGroup,
            self._gloo_group,
            _Options=_dispatching("_Options", real._Options, GroupOptions, GroupOptions),
            create_device=staticmethod(_device(real.create_device)),
            create_default_device=staticmethod(_device(real.create_default_device)),
        )
        self._patches.replace(c10d, "ProcessGroupGloo", gloo)
        if hasattr(dist, "ProcessGroupGloo"):
            self._patches.replace(dist, "ProcessGroupGloo", gloo)
        backend = c10d.Backend
        for name in _BACKEND_TABLES:
            self._patches.replace(backend, name, getattr(backend, name).copy())
        if "sim" not in backend.backend_list:
            backend.register_backend("sim", self._sim_group, devices=["cpu"])
        else:
            raise SimdistError("a backend named 'sim' is registered already; simdist needs that name")
        if self._backend == "sim":
            backend.default_device_backend_map["cpu"] = "sim"
        elif "cpu" not in backend.default_device_backend_map:
            backend.default_device_backend_map["cpu"] = "gloo"
        self._shared_backends = {name: getattr(backend, name) for name in _BACKEND_TABLES}
        self._patches.replace(backend, "register_backend", self._register_backend(backend.register_backend))
        self._patches.replace(dist, "set_debug_level", self._set_debug_level)
        self._patches.replace(
            dist, "set_debug_level_from_env", self._set_debug_level_from_env(_registry.set_debug_level_from_env)
        )
        _profiling.install(self._patches)
        self._patches.wrap(dist, "_register_builtin_comm_hook", _register_builtin_hook)
        self._patches.wrap(torch.nn.parallel.DistributedDataParallel, "_get_ddp_logging_data", _logging_data)
        # Futures that C++ makes (a comm hook's, seen by DDP's join) are of the base type and wait in C++.
        self._patches.replace(torch._C.Future, "wait", _future_wait(torch._C.Future.wait))
        self._patches.replace(torch.futures, "wait_all", _wait_all(torch.futures.wait_all))
        self._patches.replace(torch.futures, "collect_all", _collect_all(torch.futures.collect_all))

    def uninstall(self) -> None:
        """Put everything back."""
        host = self._host
        assert host is not None
        self._load_backends(None)
        self._patches.undo()
        backend = c10d.Backend
        if hasattr(backend, "SIM"):
            del backend.SIM
        _registry._set_thread_isolation_mode(False)
        torch.set_num_threads(self._threads)
        self._load(host)
        if _c.get_debug_level() != host.debug_level:  # a rank may have asked C++ itself
            _c.set_debug_level(host.debug_level)
        sys.argv = self._argv
        sys.stdout, sys.stderr = self._streams
        self.random.restore()
        self.servers.clear()

    def new_rank(self) -> RankState:
        """The state of a fresh process."""
        assert self._host is not None
        return RankState(self._host.excepthook, self._host.debug_level)

    # -- switching -----------------------------------------------------------------------------------------------

    def switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Swap what is process-wide: called by the kernel whenever another process gets the baton."""
        variables = self._variables
        if leaving is not None:
            state = leaving.torch_state
            if state is not None:
                state.init_method = variables["_default_pg_init_method"]
                state.excepthook = sys.excepthook
                state.default_dtype = _get_default_dtype()
            leaving.argv = sys.argv
            leaving.streams = sys.stdout, sys.stderr
            leaving.random_states = self.random.save()
        if entering is None:
            assert self._host is not None
            self._load(self._host)
            sys.argv = self._argv
            sys.stdout, sys.stderr = self._streams
            return
        sys.argv = entering.argv
        sys.stdout, sys.stderr = entering.streams or self._streams
        self._load(entering.torch_state)
        self.random.load(entering.random_states)

    def _load(self, state: RankState) -> None:
        variables = self._variables
        variables["_world"] = state.world
        variables["_default_pg_init_method"] = state.init_method
        sys.excepthook = state.excepthook
        if _get_default_dtype() is not state.default_dtype:
            torch.set_default_dtype(state.default_dtype)
        if state.debug_level is not self._debug_level:
            self._debug_level = state.debug_level
            _c.set_debug_level(state.debug_level)
        if state.backends is not self._backends:
            self._load_backends(state.backends)

    def _load_backends(self, own: dict[str, Any] | None) -> None:
        backend = c10d.Backend
        for name in self._backends or ():
            if name not in self._shared_backends:
                delattr(backend, name)
        for name, value in {**self._shared_backends, **(own or {})}.items():
            setattr(backend, name, value)
        self._backends = own

    def _register_backend(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register(*args: Any, **kwargs: Any) -> None:
            process = current_process()
            if process is None or process.torch_state is None:
                original(*args, **kwargs)
                return
            state: RankState = process.torch_state
            if state.backends is None:
                state.backends = {name: value.copy() for name, value in self._shared_backends.items()}
                self._load_backends(state.backends)
            known = set(vars(c10d.Backend))
            original(*args, **kwargs)
            state.backends |= {name: value for name, value in vars(c10d.Backend).items() if name not in known}

        return register

    def _set_debug_level(self, level: Any) -> None:
        process = current_process()
        if process is not None and process.torch_state is not None:
            process.torch_state.debug_level = level
            self._debug_level = level
        _c.set_debug_level(level)

    def _set_debug_level_from_env(self, original: Callable[[], None]) -> Callable[[], None]:
        def set_level() -> None:
            if current_process() is None:
                original()
                return
            said = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()  # C++ would read the host's
            if said not in ("OFF", "INFO", "DETAIL"):
                raise ValueError("The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.")
            self._set_debug_level(getattr(_registry.DebugLevel, said))

        return set_level

    # -- factories -----------------------------------------------------------------------------------------------

    def _make_group(
        self, store: Any, rank: int, size: int, timeout: timedelta, personality: Personality
    ) -> SimProcessGroup:
        process = current_process()
        assert process is not None
        limit_ns = round(timeout.total_seconds() * 1e9)
        member = connect(process, self._network, store, rank, size, limit_ns, personality, strict=self._strict)
        return SimProcessGroup(member, store, size, timeout)

    def _gloo_group(
        self, store: Any, rank: int, size: int, options: Any = None, timeout: timedelta | None = None
    ) -> SimProcessGroup:
        if isinstance(options, timedelta):
            timeout = options
        elif options is not None:
            timeout = options._timeout
        personality = SIM if self._backend == "sim" else GLOO
        return self._make_group(store, rank, size, _DEFAULT_TIMEOUT if timeout is None else timeout, personality)

    def _sim_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        if current_process() is None:
            raise SimdistError("the 'sim' backend exists only inside simulated ranks")
        return self._make_group(store, rank, size, timeout, SIM)

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
        from simdist.c10d._tcp_store import open_tcp_store

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
        )

    def _file_store(self, path: str, world_size: int = -1) -> SimStore:
        server = self.servers.setdefault(("file", str(path)), StoreServer(str(path)))
        return SimStore(server, kind="file")

    def _hash_store(self) -> SimStore:
        # A real one lives inside one process, so every rank has its own.
        return SimStore(StoreServer("hash"), kind="hash")


def _prefix_store(prefix: str, store: Any) -> Any:
    if not isinstance(store, SimStore):
        raise SimdistError(
            f"a real {type(store).__name__}, made outside the simulation, was passed to a simulated rank; "
            "make the store inside the rank's function, or use init_method='env://'"
        )
    return SimPrefixStore(prefix, store)


def _device(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if current_process() is None else Device()

    return create


def _register_builtin_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def register(reducer: Any, kind: Any) -> Any:
        if current_process() is None:
            return original(reducer, kind)
        # The built-in hooks read a future's value in C++, as a list that only a C++ work can hold. These compute
        # the same.
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        half = kind == _registry.BuiltinCommHookType.FP16_COMPRESS
        hook = default_hooks.fp16_compress_hook if half else default_hooks.allreduce_hook
        return _registry._register_comm_hook(reducer, None, hook)

    return register


def _logging_data(original: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def logging_data(self: Any) -> dict[str, Any]:
        data = original(self)
        if current_process() is not None:
            # What C++ could not know: the backend's real name, and the rank's own environment.
            data["backend_name"] = str(data.get("backend_name", "")).removeprefix("simdist:")
            names = ["MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"]
            if data["backend_name"] == "gloo":
                names += ["GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"]
                data["gloo_num_threads"] = 2
            for name in names:
                data[name.lower()] = os.environ.get(name, "N/A")
        return data

    return logging_data


def _future_wait(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def wait(future: Any) -> Any:
        process = current_process()
        if process is not None and not torch._C.Future.done(future):
            wait_for_futures(process)
        return original(future)

    return wait


def _wait_all(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_all(futures: list[Any]) -> list[Any]:
        if current_runtime() is None:
            result: list[Any] = original(futures)
            return result
        return [future.wait() for future in futures]

    return wait_all


def _collect_all(original: Callable[..., Any]) -> Callable[..., Any]:
    def collect_all(futures: list[Any]) -> Any:
        process = current_process()
        if process is None or not any(isinstance(future, SimFuture) for future in futures):
            return original(futures)
        joint = SimFuture(process)
        process.torch_state.futures[joint] = None
        left = len(futures)

        def one_less(_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                joint.set_result(list(futures))

        for future in futures:
            future.add_done_callback(one_less)
        return joint

    return collect_all
