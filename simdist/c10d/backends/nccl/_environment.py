"""The variables that ProcessGroupNCCL reads: when a group is made, when it connects, and when it dumps (torch 2.13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simdist.c10d.backends.nccl._variables import Variables, stoi
from simdist.errors import UnsupportedError
from simdist.inside.torch import Place

__all__ = ["DumpEnvironment", "Environment", "JoiningEnvironment"]

_HOOK = "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
_AVOIDS_RECORD_STREAMS = (
    "TORCH_NCCL_AVOID_RECORD_STREAMS is the default now, this environment variable is thus deprecated."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A rank's variables for watchdogs, dumps and waits, read when a group is made."""

    handling: int = 3  # TORCH_NCCL_ASYNC_ERROR_HANDLING: 0 none, 1 tear down, 2 clean up only, 3 skip the clean-up
    blocking_wait: bool = False
    dump_on_timeout: bool = True
    monitored: bool = True  # the monitor may end the process
    heartbeat_ns: int = 480_000_000_000
    check_ns: int = 1_000_000_000  # how often the monitor looks for a signal to dump
    pause_ns: int = 60_000_000_000  # how long a watchdog sleeps between finding a failure and acting on it
    nan_check: bool = False
    desync: bool = False  # a timeout reports how far each rank has come
    timing: bool = False  # the durations of works are measured
    propagates: bool = False  # an error is reported to the other ranks
    rethrows: bool = True  # an error that ends a watchdog also ends the process
    reports_serialized: bool = True  # warn of messages outside of batches, in a group bound to a device
    # Only logged, at level INFO.
    handling_raised: bool = False  # handling was 0, and was raised because desync debug needs it
    registers_tensors: bool = False
    recorded: int = 2000  # calls that the flight recorder keeps
    caches_events: bool = True
    reports_stacks: bool = True

    @property
    def cleans_up(self) -> bool:
        """True if a failure aborts the communicators."""
        return self.handling not in (0, 3)

    @property
    def tears_down(self) -> bool:
        """True if a failure ends the process."""
        return self.handling not in (0, 2)

    @classmethod
    def read(cls, said: Variables) -> Environment:
        """Read the variables, and check them in torch's order.

        Raises:
            RuntimeError: a value is invalid; with torch's text.
        """
        blocking = said.truth(False, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
        handling = said.number(3, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
        nan_check = said.truth(False, "TORCH_NCCL_NAN_CHECK")
        caches_events = said.truth(True, "TORCH_NCCL_CUDA_EVENT_CACHE")
        recorded = said.number(2000, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        detail = said.text("", "TORCH_DISTRIBUTED_DEBUG").upper() == "DETAIL"
        desync = said.truth(False, "TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG") or detail
        timing = said.truth(False, "TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING") or desync
        if Place.RECORD_STREAMS_IS_OLD.is_there and said.truth(False, "TORCH_NCCL_AVOID_RECORD_STREAMS"):
            said.warn("record streams", _AVOIDS_RECORD_STREAMS, Place.RECORD_STREAMS_IS_OLD)
        reports_serialized = said.truth(True, "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING")
        raised = desync and not handling and not blocking
        found = cls(
            handling=3 if raised else handling,
            handling_raised=raised,
            caches_events=caches_events,
            recorded=recorded,
            blocking_wait=blocking,
            heartbeat_ns=said.number(480, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") * 1_000_000_000,
            pause_ns=4 * said.number(15000, "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC") * 1_000_000,
            check_ns=said.number(1000, "TORCH_NCCL_COORD_CHECK_MILSEC") * 1_000_000,
            dump_on_timeout=said.truth(True, "TORCH_NCCL_DUMP_ON_TIMEOUT"),
            monitored=said.truth(True, "TORCH_NCCL_ENABLE_MONITORING"),
            desync=desync,
            timing=timing,
            rethrows=said.truth(True, "TORCH_NCCL_RETHROW_CUDA_ERRORS"),
            propagates=said.truth(False, "TORCH_NCCL_PROPAGATE_ERROR"),
            nan_check=nan_check,
            reports_serialized=reports_serialized,
            reports_stacks=said.truth(True, "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"),
            registers_tensors=said.truth(False, f"TORCH_{_HOOK}", _HOOK),
        )
        said.truth(False, "ENABLE_INTRA_NODE_COMM")
        return found


@dataclass(frozen=True, slots=True)
class JoiningEnvironment:
    """A rank's variables when a communicator is made.

    Example:
        >>> JoiningEnvironment(0, 3).makers("0", range(10))
        {0: 'UniqueNCCLID:0', 4: 'UniqueNCCLID:1', 7: 'UniqueNCCLID:2'}
    """

    limit_ns: int  # in non-blocking mode, for all ranks to arrive; 0: blocking mode
    roots: int  # how many ranks make an ncclUniqueId; 0: one, without a number

    @classmethod
    def read(cls, said: Variables, blocking: int, size: int, *, is_pair: bool) -> JoiningEnvironment:
        """Read the variables for a communicator of `size` ranks.

        `blocking` is from the group's config, and overrides the variable.

        Raises:
            RuntimeError: a value is invalid; with torch's text.
            ValueError: likewise.
            UnsupportedError: with this value, real ranks die or behave unpredictably.
        """
        nonblocking = blocking == 0 if blocking in (0, 1) else said.flag("TORCH_NCCL_USE_COMM_NONBLOCKING")
        ranks_per_root = said.number(128, "TORCH_NCCL_RANKS_PER_ROOT")
        if ranks_per_root < 1:
            raise UnsupportedError(
                f"TORCH_NCCL_RANKS_PER_ROOT={ranks_per_root}: torch divides by it and ends the process; it takes 1 or "
                "more (128 by default)"
            )
        reports_id = said.truth(True, "TORCH_NCCL_BCAST_UNIQUEID")
        many = size > ranks_per_root and not is_pair
        if not reports_id and size > 1 and not many:
            raise UnsupportedError(
                "TORCH_NCCL_BCAST_UNIQUEID=0: without an ncclUniqueId from rank 0 each rank connects to what is in its "
                "memory by chance; leave it out"
            )
        seconds = said.text("", "TORCH_NCCL_NONBLOCKING_TIMEOUT") if nonblocking else ""
        limit_s = stoi(seconds) if seconds else 1800
        return cls(limit_s * 1_000_000_000 if nonblocking else 0, -(-size // ranks_per_root) if many else 0)

    def makers(self, key: str, ranks: Sequence[int]) -> dict[int, str]:
        """Return the ranks that make an ncclUniqueId, each with the key of its id in the store."""
        if not self.roots:
            return {min(ranks): key}
        least, larger = divmod(len(ranks), self.roots)
        return {ranks[root * least + min(root, larger)]: f"UniqueNCCLID:{root}" for root in range(self.roots)}


@dataclass(frozen=True, slots=True)
class DumpEnvironment:
    """A rank's variables when it dumps."""

    stacks: bool = True
    active_only: bool = False

    @classmethod
    def read(cls, said: Variables) -> DumpEnvironment:
        """Read both variables.

        Raises:
            RuntimeError: a value is invalid; with torch's text.
        """
        return cls(said.truth(True, "TORCH_INCLUDE_STACK_TRACE"), said.truth(False, "TORCH_INCLUDE_ONLY_ACTIVE"))
