"""One rank's ProcessGroupNCCL without its calls: identity, communicators, timeouts, and its end."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl._environment import Environment, JoiningEnvironment
from simdist.c10d.backends.nccl._errors import CONNECTING_NS, nccl_error, refused
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._options import NcclConfig, NcclOptions
from simdist.c10d.backends.nccl._timing import Hook
from simdist.c10d.backends.nccl._work import NcclWork
from simdist.c10d.backends.nccl.kernels._preferences import Preferences, preferences
from simdist.c10d.backends.nccl.watch._debug_lines import show_version
from simdist.c10d.backends.nccl.watch._information import Informer
from simdist.c10d.backends.nccl.watch._monitor import Monitor
from simdist.c10d.backends.nccl.watch._rank import nccl_of
from simdist.c10d.backends.nccl.watch._remote_errors import RemoteErrors
from simdist.c10d.backends.nccl.watch._transport import problem_of_networks
from simdist.c10d.backends.nccl.watch._watchdog import Watchdog
from simdist.c10d.backends.nccl.watch._watched import WatchedMember
from simdist.c10d.engine._streamed import Connection, StreamCommunicator
from simdist.c10d.surface._compat import is_duration, whole_ms
from simdist.c10d.surface._identity import GroupBackend
from simdist.device import devices_of_this_process
from simdist.inside.torch import NCCL, NcclPlace, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from simdist.c10d.backends.nccl._timing import WorkInfo
    from simdist.c10d.calls._futures import SimFuture
    from simdist.c10d.calls._member import Member
    from simdist.c10d.surface._identity import DeviceLike
    from simdist.c10d.surface._store import SimStore

__all__ = ["NcclMember"]

Tensor = torch.Tensor
_UNBATCHED = "An unbatched P2P op (send/recv) was called on this ProcessGroup with size {}.  In "
_TWO_RANKS = "lazy initialization mode, this will result in a new 2-rank NCCL communicator to be created."
_SERIALIZED = (
    "eager initialization mode, unbatched P2P ops are treated as independent collective ops, and are thus serialized "
    "with all other ops on this ProcessGroup, including other P2P ops. To avoid serialization, either create "
    "additional independent ProcessGroups for the P2P ops or use batched P2P ops. You can squash this warning by "
    "setting the environment variable TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING to false."
)


class NcclMember(WatchedMember):
    """A rank's end of a group: its communicators, and the state for its watchdog and its recorder."""

    supports_splitting = True
    supports_coalescing = True
    supports_shrinking = True
    supports_time_estimate = _supports_time_estimate = True  # torch 2.15 asks for the second

    Options = NcclOptions
    NCCLConfig = NcclConfig

    _communicator: StreamCommunicator

    def __init__(self, member: Member, store: SimStore, size: int, options: NcclOptions) -> None:
        super().__init__(member, store, size, options.timeout)
        self.options = options
        self._name = str(options.group_name)
        self._nccl = nccl_of(member.process)
        self.environment = Environment.read(self._nccl.variables())
        self._uid = len(self._nccl.groups)
        self._nccl.groups.append(self)
        self._nccl.recorder.enter(self)
        self.watchdog = Watchdog(self, self._nccl)
        self.monitor: Monitor | None = None
        if not self.environment.blocking_wait:
            self.monitor = Monitor(self, self._nccl)
            self._nccl.monitor = self._nccl.monitor or self.monitor
        member.process.end_listeners[self._on_end] = None
        self.closed = False  # it was shut down, or the program has aborted it
        self._is_joined = False  # the end of its watchdog was waited for
        self.results: dict[NcclWork, list[SimFuture]] = {}  # futures of the results of works
        self.timing = self.environment.timing  # the durations of works are measured
        self.hook: Hook | None = None  # called for each finished work
        self._begun: list[NcclWork] = []  # collectives among which the last one that has begun is found
        self._ended_ns = 0  # when the last work ended
        self._enqueued = self._completed = -1  # the numbers of the last call, and of the last finished call
        self._operations = 0  # calls, including each call in a block
        self._error = "SUCCESS"
        self._extra_ns = self._extra_taken_ns = 0  # added to timeouts; and the part that launched works give back
        self._splits = 0
        self._ids = 0  # how often it has asked for the id of a communicator of all ranks, successfully or not
        self.is_split = options.split_from is not None  # its communicator is split off another, and has no id
        if options.split_from is not None:
            bound = options.split_from.bound_device_id
            assert bound is not None
            options.split_from.count_split(bound.index)
        self._connections: dict[str, Connection] = {}  # by device, or by the two ranks
        self._bound: torch.device | None = None
        self.preferences: Preferences | None = None  # from NCCL's variables, if any is set
        self._used: list[int] = []  # devices, in the order of their first use
        self._numbers = 0, 0  # collectives and messages so far
        self.errors: dict[Connection, str] = {}  # errors of communicators that NCCL has reported, with torch's texts
        self.dead: dict[Connection, str] = {}  # aborted communicators, and the reason, if one was given
        self.informer = Informer(self)
        self.informer.made(size)
        self.remote_errors: RemoteErrors | None = None
        if self.monitor is not None:
            self.monitor.begin(store)
            if self.environment.propagates:
                self.remote_errors = RemoteErrors(self, member.process, store)

    # -- identity ------------------------------------------------------------------------------------------------

    def _get_backend(self, device: DeviceLike) -> GroupBackend:
        if torch.device(device).type != "cuda":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")]

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the program passed to `init_process_group`."""
        return self._bound

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound = device

    def _get_sequence_number_for_group(self) -> int:
        return self._numbers[0]

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: numbers begin when the group is made."""

    def _set_default_timeout(self, timeout: timedelta | float) -> None:
        if not is_duration(timeout):
            raise TypeError(
                f"_set_default_timeout(): incompatible function arguments: expected a duration, got {timeout!r}"
            )
        self.options._timeout = whole_ms(timeout)
        self._timeout_ns = round(self.options._timeout.total_seconds() * 1e9)

    set_timeout = _set_default_timeout

    def _is_initialized(self) -> bool:
        return bool(self._connections)

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """Return the NCCL version that torch was built with."""
        return NCCL.number

    get_runtime_nccl_version = get_build_nccl_version

    # -- communicators -------------------------------------------------------------------------------------------

    def eager_connect_single_device(self, device: DeviceLike) -> None:
        """Make the communicator of a device now, instead of in the first call."""
        self.informer.say(
            f"Eagerly connecting nccl backend with device {torch.device(device)}", Place.CONNECTED_EAGERLY
        )
        self._connection(torch.device(device).index)

    def _connection(self, index: int) -> Connection:
        """Return the communicator of all ranks with this rank's device; the first call waits for the others."""
        if self.closed:
            self._require_alive()
        if self._bound is not None and self._bound.index != index:
            bound = self._bound.index
            self._warn(
                "E", f"Tensor found on device cuda:{index} but backend constrained to cuda:{bound}", Place.OTHER_DEVICE
            )
            raise dist.DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group"
            )
        known = self._connections.get(str(index))
        if known is not None:
            return known if known not in self.dead else self._living(known)
        number, self._ids = self._ids, self._ids + 1
        return self._connect(str(index), f"{number}", range(self._size), index)

    def _pair(self, peer: int, index: int) -> Connection:
        """Return the communicator for messages to a peer outside of a block; in an eager group, that of all ranks."""
        if self._bound is not None:
            if self.environment.reports_serialized and self._nccl.once("eager messages"):
                self._warn("W", f"{_UNBATCHED.format(self._size)}{_SERIALIZED}", Place.MESSAGES_SERIALIZED)
            return self._connection(index)
        self._require_alive()
        if self._nccl.once("lazy messages"):
            log(
                self._member.process,
                "W",
                f"Warning: {_UNBATCHED.format(self._size)}{_TWO_RANKS}",
                Place.MESSAGES_IN_PAIRS,
            )
        low, high = sorted((self.rank(), peer))
        key = f"{low}:{high}"
        known = self._connections.get(key)
        return self._living(known) if known is not None else self._connect(key, key, sorted({low, high}), index)

    def connect(self, index: int) -> None:
        """Make the communicator of a device."""
        self._connection(index)

    def primary_device(self) -> int | None:
        """Return the device of the first communicator of all ranks; None if there is none."""
        return next((int(key) for key in self._connections if ":" not in key), None)

    def _comm_ptr(self) -> int:
        """Return an address of the current device's communicator, which matters only in being unique; 0: none."""
        index = torch.cuda.current_device()
        return (self._uid + 1) << 16 | index << 8 if str(index) in self._connections else 0

    def connected_devices(self) -> list[str]:
        """Return the devices with a communicator of all ranks."""
        return [key for key in self._connections if ":" not in key]

    def guessed_device(self) -> int:
        """Return the device for a call that has no tensor and names no device."""
        if self._bound is not None:
            return int(self._bound.index)
        if self._used:
            return min(self._used)
        return int(self._nccl.global_rank % max(1, len(devices_of_this_process().accounts)))

    def count_split(self, index: int) -> None:
        """Split the communicator of a device; all ranks do so, equally often."""
        self._splits += 1
        self._connection(index).meet(self._member)

    def comm_split_count(self) -> int:
        """Return how many groups were split off."""
        return self._splits

    def perform_nocolor_split(self, device: DeviceLike) -> None:
        """Take part in a split without becoming a member of the new group."""
        self.count_split(torch.device(device).index)

    def _connect(self, mine: str, key: str, ranks: Iterable[int], index: int) -> Connection:
        ranks = list(ranks)
        variables, is_pair = self._nccl.variables(), ":" in key
        joining = JoiningEnvironment.read(variables, self.options.config.blocking, len(ranks), is_pair=is_pair)
        if not self._connections:
            self.informer.say(f"Using non-blocking mode: {joining.limit_ns > 0:d}", Place.CONNECTED_WITHOUT_BLOCKING)
        self.options.config.blocking = 0 if joining.limit_ns else 1
        makers = {} if self.is_split and not is_pair else joining.makers(key, ranks)
        if self.rank() in makers:
            name = f"{self._communicator.name}/{makers[self.rank()]}".encode()
            self._store.announce(makers[self.rank()], hashlib.sha512(name).digest() * 2)  # ncclUniqueId has 128 bytes
        self.require_devices()
        devices = devices_of_this_process()
        streams = devices.streams
        # Not through `account_of`: C++ makes communicators without Python's `torch.cuda`, and a mesh sees which of the
        # two comes first.
        device = devices.accounts[index].device
        show_version(self._member.process, ranks.index(self.rank()), index)
        problem = problem_of_networks(self._member.process, self.options.config)
        if problem:
            raise nccl_error("ncclInvalidUsage", problem, NcclPlace.NO_NETWORK)
        begin_ns = self._communicator.simulation.now_ns
        server, task = self._store.server, self._communicator.simulation.check()
        if server.stopped and makers and self.rank() not in makers:
            server.wait_for_answer(self._member.process)
        server.connected[task] = None
        try:
            self._read_ids(key, makers)
            made = self._communicator.connection(
                *(key, ranks, self._member, index, device, streams),
                limit_ns=self._timeout_ns,  # waits at the store have the group's timeout
                rest_ns=joining.limit_ns,
                makers=makers,
                ask=lambda: self._store.require_server(self._member.process, "get"),
            )
        finally:
            server.connected.pop(task, None)
        if makers:
            took_ms = (self._communicator.simulation.now_ns - begin_ns) / 1e6
            how, place = "broadcast unique ID", Place.CONNECTED_BY_STORE
            if joining.roots:
                how, place = "all-gather unique IDs", Place.CONNECTED_BY_ROOTS
            self.informer.say(f"ProcessGroupNCCL {how} through store took {took_ms:g} ms", place)
        variables.truth(False, "TORCH_NCCL_HIGH_PRIORITY")
        self.informer.say(f"NCCL_DEBUG: {variables.text('N/A', 'NCCL_DEBUG')}", Place.DEBUG_SHOWN)
        if len(ranks) > 1:
            self.preferences = preferences(self.options.config)
            algorithm: Any = self._communicator.streamed
            algorithm.heed(self.rank(), self.preferences)
        self._connections[mine] = made
        self._nccl.recorder.configure(self, self._communicator.ranks)
        if index not in self._used:
            self._used.append(index)
        return made

    def _read_ids(self, key: str, makers: Mapping[int, str]) -> None:
        """Read an ncclUniqueId from a store that may hold one of an earlier group under the same key.

        Raises:
            DistBackendError: its maker has not set a new one in time, and no process listens at the old address.
        """
        server, simulation = self._store.server, self._communicator.simulation
        if not server.outlived and not self._communicator.again:
            return
        names = {maker: self._store._name(name) for maker, name in makers.items() if maker != self.rank()}

        def is_old() -> bool:
            known = self._communicator.connections.get(key)
            joined = () if known is None else known.ends
            return any(maker not in joined and name in server.data for maker, name in names.items())

        if is_old():
            simulation.sleep(self._communicator.backend.connect_ns)  # the time in which the maker makes a new one
            if is_old():
                simulation.sleep(CONNECTING_NS)
                raise refused()

    def require_devices(self) -> None:
        """Check that the devices of the process work.

        Raises:
            AcceleratorError: they are broken; with CUDA's text, because torch calls CUDA before NCCL.
        """
        failure = devices_of_this_process().streams.failure
        if failure is not None:
            raise failure()

    def lose_devices(self, error: BaseException) -> None:
        """Break the devices of the process: their kernels never end, and the watchdog meets the error."""
        for connection in self._connections.values():
            connection.stall(self.rank())
        self.watchdog.lose_devices(error)

    def _require_alive(self) -> None:
        if self.closed:
            raise self._was_aborted("")

    def _living(self, connection: Connection) -> Connection:
        if connection in self.dead:
            raise self._was_aborted(self.dead[connection])
        return connection

    def _was_aborted(self, reason: str) -> BaseException:
        why = f" Original reason for failure was: {reason}" if reason else ""
        return dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}. {why}")

    # -- durations -----------------------------------------------------------------------------------------------

    def _enable_collectives_timing(self) -> None:
        self.timing = True

    def _register_on_completion_hook(self, hook: Callable[[WorkInfo], None]) -> None:
        self.hook = Hook(self, hook)

    def _wait_for_pending_works(self) -> None:
        """Wait until all works are over, all hooks were called, and the watchdog has seen the end."""
        self._drain()
        simulation = self._communicator.simulation
        seen_ns = self.watchdog.tick_after(self._ended_ns)
        if seen_ns > simulation.now_ns:
            simulation.sleep(seen_ns - simulation.now_ns)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._extra_ns += round(timeout.total_seconds() * 1e9)

    def _verify_work_timeout(self, work: NcclWork, timeout: timedelta) -> bool:
        return work.timeout_ns == round(timeout.total_seconds() * 1e9)

    def _on_end(self, _: object) -> None:
        self.watchdog.stop()
        if self.monitor is not None:
            self.monitor.stop()
        if self.remote_errors is not None:
            self.remote_errors.stop()
