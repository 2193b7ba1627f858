"""The attributes and methods that torch reads of a group and of a backend, apart from communication.

The group is a Python subclass of `dist.ProcessGroup`. It also has the methods of a backend object, because there is no
C++ backend behind it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch

from simdist.c10d.surface._compat import ProcessGroup, is_duration, said_by, whole_ms
from simdist.errors import UnsupportedError
from simdist.inside.torch import c10d_bindings
from simdist.process import SimProcess, current_process, current_runtime, variable_of
from simdist.records import new_group

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member
    from simdist.c10d.surface._store import SimStore

__all__ = ["Device", "DeviceLike", "GroupBackend", "GroupOptions", "close_when_dropped", "create_default_device"]
__all__ += ["REAL_GLOO", "create_device", "lazy_by_default"]

DeviceLike: TypeAlias = torch.device | str | int
"""The types that torch accepts as a device."""

REAL_GLOO: Any = c10d_bindings.ProcessGroupGloo  # ranks see another class in its place
_RealOptions: Any = REAL_GLOO._Options


class GroupOptions:
    """Stands in for `ProcessGroupGloo._Options`."""

    def __init__(self, timeout: timedelta = timedelta(minutes=30), backend: str = "gloo") -> None:
        self._limit = timeout
        self._threads = 2
        self._devices: list[Device] = []
        self.backend = backend
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""

    @property
    def _timeout(self) -> timedelta:
        return self._limit

    @_timeout.setter
    def _timeout(self, timeout: timedelta | float) -> None:
        if not is_duration(timeout):
            raise said_by(_RealOptions._timeout.fset, _RealOptions(), timeout)
        self._limit = whole_ms(timeout)


class Device:
    """Stands in for `ProcessGroupGloo.Device`. The simulated network has one kind of device, with one option.

    With `lazy_init`, a rank waits for the others before its first operation, instead of when it makes the group. None
    means the environment's value.

    Raises:
        RuntimeError: the environment's value is neither yes nor no.
    """

    def __init__(self, lazy_init: bool | None = None) -> None:
        if lazy_init is None:
            lazy_init = _is_lazy(os.environ.get(_LAZY, "0"))
        self.lazy = lazy_init


_LAZY = "TORCH_GLOO_LAZY_INIT"
_YES = ("y", "yes", "1", "t", "true")
_NO = ("n", "no", "0", "f", "false")


def _is_lazy(said: str) -> bool:
    word = said.lower()
    if word not in (*_YES, *_NO):
        raise RuntimeError(f"Invalid value for environment variable: {_LAZY}")
    return word in _YES


def lazy_by_default(process: SimProcess) -> bool:
    """True if the default device is lazy.

    Raises:
        RuntimeError: the environment's value is neither yes nor no.
    """
    said = variable_of(process, _LAZY)
    return said is not None and _is_lazy(said)


def create_device(hostname: str = "", interface: str = "", lazy_init: bool | None = None) -> Device:
    """Stands in for `ProcessGroupGloo.create_device`; every host name and interface means the simulated network.

    Raises:
        ValueError: neither is given.
    """
    if not (isinstance(hostname, str) and isinstance(interface, str) and isinstance(lazy_init, bool | None)):
        raise said_by(REAL_GLOO.create_device, hostname, interface, lazy_init)
    if not hostname and not interface:
        raise ValueError("Specify either `hostname` or `interface` argument.")
    return Device(lazy_init)


def create_default_device(lazy_init: bool | None = None) -> Device:
    """Stands in for `ProcessGroupGloo.create_default_device`."""
    if not isinstance(lazy_init, bool | None):
        raise said_by(REAL_GLOO.create_default_device, lazy_init)
    return Device(lazy_init)


class GroupBackend(ProcessGroup):  # type: ignore[misc]  # Any in the compat module
    """One rank's handle on a group."""

    # If a subclass of a C++ class has a `__dict__`, attribute access is slow; so most attributes have slots.
    __slots__ = (
        "__dict__",
        "_arguments",
        "_backend",
        "_calls_under_way",
        "_communicator",
        "_description",
        "_member",
        "_name",
        "_size",
        "_store",
        "_timeout_ns",
        "options",
    )

    asks_for_modes: tuple[str, ...] = ()  # see `_modes.visible`
    on_leave: Callable[[], None] | None = None  # removes the group from a list of its owner
    recorded_as: Any = None  # the flight record's stand-in for the group, to be renamed with it

    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False
    supports_time_estimate = _supports_time_estimate = False

    # The attributes of the class `ProcessGroupGloo` other than its methods.
    Device = Device
    Options = c10d_bindings.Backend.Options
    _Options = GroupOptions
    create_device = staticmethod(create_device)
    create_default_device = staticmethod(create_default_device)

    def __init__(
        self, member: Member, store: SimStore, size: int, timeout: timedelta, options: GroupOptions | None = None
    ) -> None:
        super().__init__(member.rank, size)
        self._member = member
        self._communicator = member.communicator
        self._backend = member.communicator.backend
        self._arguments = self._backend.arguments
        self._store = store
        self._size = size
        self._timeout_ns = round(timeout.total_seconds() * 1e9)
        self._calls_under_way: list[Any] = []  # calls inside torch's dispatcher: see `_modes`
        self._name = ""
        self._description = ""
        self.options: Any = GroupOptions(timeout, self._backend.name)
        if options is not None:
            self.options.global_ranks_in_group = list(options.global_ranks_in_group)
            self.options.group_name = self._name = options.group_name
            if self._backend.threads < sys.maxsize:
                self.options._threads = member.threads = options._threads

    # -- identity ------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        """Return the caller's rank. C++'s method looks for a Python override each time, in thousands of steps."""
        return self._member.rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def name(self) -> str:
        """Return the backend's name."""
        return self._backend.name

    def supports_tensor_alloc(self, device: DeviceLike) -> bool:
        """Return False: no backend has memory of its own here."""
        return False

    @property
    def mem_allocator(self) -> object:
        """Refuse, as a backend that has no memory of its own.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"Backend {self._backend.name} does not support getMemAllocator")

    def getBackendName(self) -> str:
        """Return the name for C++. With "gloo", DDP's logger would need a C++ ProcessGroupGloo."""
        return f"simdist:{self._backend.name}"

    def _get_backend_name(self) -> str:
        return self._backend.name

    def _get_backend(self, device: DeviceLike) -> GroupBackend:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def bound_device_id(self) -> torch.device | None:
        """None: CPU groups are bound to no device."""
        return None

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        if device is not None:
            raise UnsupportedError(f"a simulated {self.name()} group cannot be bound to {device}")

    @property
    def is_bare(self) -> bool:
        """True for a backend outside of any group: its methods do not go through torch's dispatcher."""
        return not self._name

    @property
    def group_name(self) -> str:
        """Torch's name of the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = str(name)
        if self.recorded_as is not None:
            self.recorded_as._name = self._name

    def getGroupName(self) -> str:
        """Return `group_name`; for C++."""
        return self._name

    setGroupName = _set_group_name

    @property
    def group_desc(self) -> str:
        """The user's description of the group."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = str(description)
        if self.recorded_as is not None:
            self.recorded_as._description = self._description
        if self._member.rank == 0:
            communicator = self._member.communicator
            simulation = communicator.simulation
            simulation.bus.record(
                new_group(simulation.now_ns, -1, communicator.name, communicator.world_ranks, self._description)
            )

    def getGroupDesc(self) -> str:
        """Return `group_desc`; for C++."""
        return self._description

    setGroupDesc = _set_group_desc

    def get_group_store(self) -> SimStore:
        """Return the store at which the group met. Its backends keep their keys there, with their device as prefix."""
        store: Any = self._store
        found: SimStore = store.underlying_store if getattr(store, "prefix", "") in ("cpu/", "cuda/") else store
        return found

    def __repr__(self) -> str:
        mine, caller = self._member.process, current_process()
        whose = ""
        if caller is not None and caller is not mine:
            whose = f", which belongs to rank {mine.rank}, not to {caller.rank}: isolate the module that keeps it"
        return f"<simdist {self.name()} group {self._name!r} rank {self.rank()} of {self._size}{whose}>"

    # -- groups made from this one -------------------------------------------------------------------------------

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[DeviceLike] | None = None,
    ) -> GroupBackend | None:
        """Return a group of some ranks of this group; all its ranks call this, and the others get None."""
        from simdist.c10d.surface import _offspring  # most programs do not need it

        return _offspring.split_group(self, ranks, timeout, opts, group_name, group_desc, device_types)

    def merge_remote_group(
        self,
        store: SimStore,
        size: int,
        timeout: timedelta = timedelta(minutes=30),
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> GroupBackend | None:
        """Return one group of the ranks of several groups; all of them call this, with a common store."""
        from simdist.c10d.surface import _offspring

        return _offspring.merge_remote_group(self, store, size, timeout, group_name, group_desc)

    def count_children(self) -> int:
        """Return how many groups without their own description were split off before, and count one more."""
        number: int = self.__dict__.get("children", 0)
        self.children = number + 1
        return number

    # -- settings ------------------------------------------------------------------------------------------------

    def _get_sequence_number_for_group(self) -> int:
        return self._member.number

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: Gloo and NCCL begin with 0, and this call does not reset their count."""

    def _set_default_timeout(self, timeout: timedelta | float) -> None:
        self.options._timeout = timeout
        self._timeout_ns = round(self.options._timeout.total_seconds() * 1e9)

    set_timeout = _set_default_timeout

    def _set_default_backend(self, backend_type: object) -> None:
        """Does nothing: the group is its own backend."""

    def _register_backend(self, device: object, backend_type: object, backend: object = None) -> None:
        """Does nothing: the group is its own backend."""

    def _has_hooks(self) -> bool:
        return False

    def eager_connect_single_device(self, device: DeviceLike) -> None:
        """Does nothing: the connections are there."""

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:
        """Does nothing: there is no symmetric memory."""

    # -- its end -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Does nothing, as Gloo's: the connections last until the group is destroyed."""

    def abort(self) -> None:
        """Does nothing, like `shutdown`."""

    def leave(self) -> None:
        """Close the group's connections. Called when torch forgets the group (`destroy_process_group`)."""
        self._communicator.leave(self._member)
        if self.on_leave is not None:
            self.on_leave()


_TURN_NS = 10_000_000  # measured, on loopback


def close_when_dropped(group: GroupBackend) -> None:
    """Close the connections of a group that only the program holds, when the program drops the group.

    Like the destructor of ProcessGroupGloo (torch 2.13), this happens after the operations in flight, and one more turn
    of the loop that polls the sockets.
    """
    group._member.process.when_dropped(group, _close, group._member)
    runtime = current_runtime()
    assert runtime is not None
    runtime.collect_in_rounds()  # garbage collection drops a group in a cycle, and its peers see that


def _close(member: Member) -> None:
    if member.left or not member.process.running:
        return
    last = next(reversed(member.pending), None)
    if last is None:
        simulation = member.communicator.simulation
        simulation.call_at(simulation.now_ns + _TURN_NS, functools.partial(member.communicator.leave, member))
    else:
        last.after = [*(last.after or ()), functools.partial(_close, member)]


# -- methods since torch 2.14, if this torch has them -----------------------------------------------------------------

_LACKING = {  # methods, and torch's names of them in the error of a backend that lacks them (Backend.hpp)
    "_end_time_estimate": "time estimation",
    "_start_time_estimate": "time estimation",
    "gather_into_tensor": "gather_single",
    "gather_single": "gather_single",
    "new_window": "new_window",
    "register_abort_hook": "registerAbortHook",
    "unregister_abort_hook": "unregisterAbortHook",
}
_HOOKS = "wrap the functions of torch.distributed that the program calls"
_MADE_ANEW = "destroy the group and make it anew"
_NOT_SIMULATED = {  # methods, and what to use instead
    "allreduce_sparse": "use all_reduce, which takes sparse tensors",
    "get_reconfigure_handle": _MADE_ANEW,
    "merge": "use merge_remote_group",
    "reconfigure": _MADE_ANEW,
    "register_post_hook": _HOOKS,
    "register_pre_hook": _HOOKS,
    "split": "use split_group",
    "unregister_post_hook": _HOOKS,
    "unregister_pre_hook": _HOOKS,
}


def _lacking(said: str) -> Callable[..., NoReturn]:
    def refuse(self: GroupBackend, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"Backend {self.name()} does not support {said}")

    return refuse


def _not_simulated(name: str, way: str) -> Callable[..., NoReturn]:
    def refuse(self: GroupBackend, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(f"ProcessGroup.{name} is not simulated; {way}")

    return refuse


for _name, _said in _LACKING.items():
    if hasattr(ProcessGroup, _name) or hasattr(c10d_bindings.Backend, _name):
        setattr(GroupBackend, _name, _lacking(_said))
for _name, _way in _NOT_SIMULATED.items():
    if hasattr(ProcessGroup, _name) or hasattr(c10d_bindings.Backend, _name):
        setattr(GroupBackend, _name, _not_simulated(_name, _way))
