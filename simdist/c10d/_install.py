"""Torch's process-wide state, made per rank for the length of a world.

Names that build groups and stores (`ProcessGroupGloo`, `TCPStore`, ...) are replaced where torch looks them up; on a
rank they make simulated ones, on every other thread the real ones. State that torch reads directly (the default dtype,
the debug level) is swapped when the baton changes hands; `_world` and the C++ group registry are a thread's own.

Three kinds of state, by how torch reads them:
- Names that Python looks up each time it makes something: replaced by classes whose metaclass checks who calls
  (`class_on_ranks`). `isinstance` and attributes go through to the real class, so that code which only checks them sees
  no difference, including the host's own.
- Variables that any code reads: swapped in `switch`, at each hand-over, and only where the two sides differ, because
  `switch` is hot.
- State that torch keeps per thread, or can (`_set_thread_isolation_mode`): nothing has to be done at a hand-over.

Invariants:
- One world at a time is installed, `_present`; outside of `install` and `uninstall` nothing of torch is replaced. All
  replacements are made through one `Patches`, so they are undone in the opposite order in any case.
- On a thread that is no rank everything is as without simdist, even while a world runs.
- After a `switch` torch has the state of the process that holds the baton, or the host's if the host holds it; the
  state of all others is in their `RankState`. Changes that a rank makes by torch's own functions are read back when it
  leaves.
- Classes for replaced names are made once in a process (`functools.cache`): worlds start by the thousand.

Doubts: `_set_thread_isolation_mode` is private to torch. If a rank changes the debug level by a C++ call without our
function, the host's level is restored at the end, but other ranks see the change at the next hand-over.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from simdist.c10d import _makers, _replacements
from simdist.c10d._makers import Makers
from simdist.c10d._rank_state import RankState
from simdist.c10d.calls import _unseen
from simdist.c10d.surface import _composed, _functional_outputs, _host_stores, _memory, _options
from simdist.c10d.surface._store_server import StoreServer
from simdist.c10d.surface.state import (
    _flags,
    _generators,
    _meshes,
    _operators,
    _optimized,
    _rank_tables,
    _rank_world,
    _registries,
    _saved_files,
    _scopes,
    _warned_once,
    _workers,
)
from simdist.c10d.surface.state._backend_tables import BackendTables
from simdist.c10d.surface.state._compiled import CompiledCode
from simdist.c10d.surface.state._rank_world import WorldPerThread
from simdist.c10d.watch import _flight_record, _profiling
from simdist.c10d.watch._results import note_results
from simdist.c10d.watch._strict import watch_strictly
from simdist.cluster import Network
from simdist.errors import SimdistError
from simdist.inside.torch import c10d_bindings, c10d_module, get_debug_level, group_world
from simdist.kernel import Bus
from simdist.process import Patches, Runtime, SimProcess, call_all, current_process, variable_of

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import DebugLevel

__all__ = ["TorchState"]

_get_default_dtype = torch.get_default_dtype
_set_debug_level_of_torch = c10d_bindings.set_debug_level
# Its functions have `group=dist.group.WORLD` as a default: imported on a rank, they would keep that rank's group.
importlib.import_module("torch.distributed.nn.functional")

_DEBUG = "TORCH_DISTRIBUTED_DEBUG"


class TorchState:
    """Installs the replacements, and swaps states.

    Example:
        >>> state = TorchState(network, backend="gloo")
        >>> state.install(simulation.bus)
        >>> slots.add(state.switch)     # keeps ranks apart from here on
        >>> state.uninstall()
    """

    def __init__(
        self, network: Network, *, backend: str, strict: bool = False, results: bool = False, values: str = "all"
    ) -> None:
        self._backend = backend
        self._strict = strict
        self._results = results
        self._patches = Patches()
        self._host: RankState | None = None
        self._threads = 1
        self._debug_level: DebugLevel | None = None  # the one that C++ has now
        self._backends = BackendTables()
        self._variables = vars(c10d)
        self._compiled = CompiledCode()
        self._flags: Any = ()  # the host's settings for all of torch
        self._warns_always = False  # whether the host is shown all warnings of torch
        self._forward: object = None  # the module whose forward pass the host was in
        self._has_devices = bool(network.cluster.devices_per_host)
        self._makers = Makers(network, backend=backend, strict=strict, values=values)
        self.servers = self._makers.servers
        self.backends = self._makers.backends

    # -- life ----------------------------------------------------------------------------------------------------

    def install(self, bus: Bus, *, flags_apart: bool = False) -> None:
        """Make torch's names simulated on ranks; watchers use the world's bus.

        With `flags_apart` each rank has its own settings for all of torch.
        """
        global _present
        self._flags = _flags.remember()
        self._forward = _scopes.save_forward()
        self._threads = torch.get_num_threads()
        host = RankState(get_debug_level(), torch.get_default_dtype())
        host.init_method = c10d_module._default_pg_init_method
        self._warns_always = _warned_once.begin()
        host.shown_once = None if self._warns_always else set()
        self._debug_level = host.debug_level
        self._host = host  # from here on there is something to undo
        _present = self
        _makers.serve(self._makers)
        if flags_apart:
            _flags.separate(self._patches)
        _memory.bus = bus
        if self._strict:
            watch_strictly(bus)
        if self._results:
            note_results(bus)
        torch.set_num_threads(1)
        c10d_bindings._set_thread_isolation_mode(True)
        self._patches.replace(c10d, "_world", WorldPerThread(group_world()))
        self._patches.replace(c10d, "_backend", c10d_module._backend)  # torch writes it, but never reads it
        _functional_outputs.install(self._patches, has_devices=self._has_devices)
        self._patches.install(_ALWAYS)
        self._backends.install(self._patches, _makers.make_simulated_group, default=self._backend)
        _meshes.install(self._patches)
        self._compiled.install(self._patches)
        if self._has_devices:
            from simdist.c10d import _ddp_times, _nccl_names

            _ddp_times.install(self._patches)
            _nccl_names.install(self._patches, _makers.make_nccl_group)

    def uninstall(self) -> None:
        """Put everything back, also after an `install` that failed.

        Raises:
            BaseException: the error of the first step that failed; all others are taken too.
        """
        global _present
        if self._host is None:
            return
        _present = _memory.bus = None
        _unseen.inference_tensors = False  # a world with inference tensors finds them itself
        _makers.serve(None)
        call_all(
            lambda: self._backends.load(None),
            self._patches.undo,
            lambda: _flags.restore(self._flags),
            _flags.forget_imports,
            _optimized.forget,
            lambda: _warned_once.end(self._warns_always),
            lambda: _scopes.load_forward(self._forward),
            self._compiled.uninstall,
            self._backends.uninstall,
            lambda: c10d_bindings._set_thread_isolation_mode(False),
            lambda: torch.set_num_threads(self._threads),
            lambda: self.switch(None, None),
            self._restore_debug_level,
            self._forget_servers,
        )

    def _forget_servers(self) -> None:
        for server in self.servers.values():
            if isinstance(server, StoreServer):
                server.forget()
        self.servers.clear()

    def _restore_debug_level(self) -> None:
        assert self._host is not None
        if get_debug_level() != self._host.debug_level:  # a rank may have called C++ directly
            _set_debug_level_of_torch(self._host.debug_level)

    def new_rank(self, debug: str | None = None) -> RankState:
        """Return the state of a fresh process; `debug` is its TORCH_DISTRIBUTED_DEBUG, unless that is the host's own.

        Raises:
            SimdistError: torch does not know such a debug level; a real process could not import it.
        """
        assert self._host is not None
        level = self._host.debug_level if debug is None else _level_named(debug)
        if level is None:
            raise SimdistError(f"TORCH_DISTRIBUTED_DEBUG is {debug!r}; expected OFF, INFO or DETAIL")
        state = RankState(level, self._host.default_dtype)
        if self._host.shown_once is None:
            state.shown_once = None
        return state

    def begin_thread(self, process: SimProcess) -> None:
        """Register the rank's groups on a thread that it started: C++ keeps their names per thread.

        The thread finds the groups that the rank has now, and not those that the rank makes later.
        """
        if process.torch_state.world.seen_by:
            for group, name in list(group_world().pg_names.items()):
                c10d_bindings._register_process_group(name, group)

    def follow(self, runtime: Runtime) -> None:
        """From now on make the state of processes that ranks start, and heed a debug level that a rank sets in time."""
        runtime.child_begins.append(self.begin_child)
        runtime.variable_listeners[os.fsencode(_DEBUG)] = functools.partial(self._note_debug_variable, runtime)

    def _note_debug_variable(self, runtime: Runtime, process: SimProcess) -> None:
        """Take the debug level that a program sets before it imports torch, which reads it then and never again."""
        if runtime.isolation is None or runtime.isolation.uses("torch"):
            return
        level = _level_of(process)
        if level is not None:
            self.set_debug_level(process, level)

    def begin_child(self, parent: SimProcess, child: SimProcess, forked: bool) -> None:
        """Make a child process's state, on the rank that starts it: a forked one knows its parent's groups."""
        _workers.separate_workers()
        mine: RankState = parent.torch_state
        level = mine.debug_level if forked else _level_of(child)  # a spawned process imports torch anew
        assert self._host is not None
        dtype = torch.get_default_dtype() if forked else self._host.default_dtype
        state = child.torch_state = RankState(mine.debug_level if level is None else level, dtype)
        if forked:
            _rank_tables.inherit(parent, child)
            state.world.begin_as(mine.world)
            state.init_method = self._variables["_default_pg_init_method"]
            state.backends = mine.backends
            state.shown_once = None if mine.shown_once is None else set(mine.shown_once)

    # -- switching -----------------------------------------------------------------------------------------------

    def switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Swap the process-wide state: the kernel calls this whenever another process gets the baton."""
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

    def set_debug_level(self, process: SimProcess, level: DebugLevel) -> None:
        """Set the debug level of the rank that runs."""
        if process.torch_state is not None:
            process.torch_state.debug_level = level
            self._debug_level = level
        _set_debug_level_of_torch(level)


_present: TorchState | None = None  # of the one world that is active


def _level_named(name: str) -> DebugLevel | None:
    """The debug level; None if there is none of this name."""
    found: DebugLevel | None = c10d_bindings.DebugLevel.__members__.get(name.upper())
    return found


def _level_of(process: SimProcess) -> DebugLevel | None:
    """The debug level that torch takes from a process's environment; None if it knows no such level."""
    said = variable_of(process, _DEBUG)
    return _level_named("OFF" if said is None else said)


def _of_rank(original: Callable[[DebugLevel], None]) -> Callable[[DebugLevel], None]:
    def set_debug_level(level: DebugLevel) -> None:
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
        level = _level_of(process)  # C++ would read the host's
        if level is None:
            raise ValueError("The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.")
        _present.set_debug_level(process, level)

    return set_debug_level_from_env


def _install_levels(patches: Patches) -> None:
    for module in (dist, c10d_bindings):
        patches.wrap(module, "set_debug_level", _of_rank)
        patches.wrap(module, "set_debug_level_from_env", _of_rank_from_env)


def _of_host(original: Callable[[bool], None]) -> Callable[[bool], None]:
    def _set_thread_isolation_mode(enable: bool) -> None:
        if current_process() is None:
            original(enable)  # on a rank it stays: torch's threaded test cases end with False

    return _set_thread_isolation_mode


def _keep_groups_apart(patches: Patches) -> None:
    patches.wrap(c10d_bindings, "_set_thread_isolation_mode", _of_host)


_ALWAYS = (
    _keep_groups_apart,
    _makers.install,
    _composed.install,
    _install_levels,
    _flags.install,
    _scopes.install,
    _host_stores.install,
    _profiling.install,
    _operators.install,
    _options.install,
    _registries.install,
    _rank_tables.install,
    _rank_world.install,
    _saved_files.install,
    _flight_record.install,
    _replacements.install,
    _generators.install,
    _workers.install,
    _warned_once.install,
    _optimized.install,
)
