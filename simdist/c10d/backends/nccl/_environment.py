"""The variables that ProcessGroupNCCL reads when it is made (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simdist.errors import UnsupportedError

__all__ = ["Environment"]

_YES = ("y", "yes", "1", "t", "true")
_NO = ("n", "no", "0", "f", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a rank's environment says of watchdogs, dumps and waits."""

    handling: int = 3  # TORCH_NCCL_ASYNC_ERROR_HANDLING: 0 none, 1 tear down, 2 clean up only, 3 skip the clean-up
    blocking_wait: bool = False
    dump_on_timeout: bool = True
    monitored: bool = True  # the monitor may end the process
    heartbeat_ns: int = 480_000_000_000
    check_ns: int = 1_000_000_000  # how often the monitor looks for a signal to dump
    pause_ns: int = 60_000_000_000  # of a watchdog that has found something, before it acts
    dump_prefix: str = ""  # of the file; nothing is written if nobody names one
    record_size: int = 2000
    nan_check: bool = False
    desync: bool = False  # a timeout tells how far each rank has come
    timing: bool = False  # works know what they took
    propagates: bool = False  # an error is told to the other ranks
    rethrows: bool = True  # what ends a watchdog ends the process
    extra_dump: bool = False  # an abort dumps too
    dumps_stacks: bool = True
    dumps_active_only: bool = False
    dynamic_prefix: bool = False  # that of the file is read at each dump
    connect_limit_ns: int = 0  # for the ranks that make a communicator, if they do not block; 0: they do
    tells_of_serialized: bool = True  # messages outside of batches, in a group that was bound to a device

    @classmethod
    def read(cls, environ: Mapping[str, str], warn: Callable[[str], None]) -> Environment:
        """What `environ` says; `warn` is told of names that torch has given up.

        Raises:
            RuntimeError: a value is none, in torch's words.
        """

        def text(*names: str) -> tuple[str, str | None]:
            for name in names:
                if name in environ:
                    if name != names[0]:
                        warn(f"Environment variable {name} is deprecated; use {names[0]} instead")
                    return name, environ[name]
            return names[0], None

        def number(default: int, *names: str) -> int:
            name, said = text(*names)
            if said is None:
                return default
            try:
                return int(said)
            except ValueError:
                raise RuntimeError(f"Invalid value for environment variable: {name}") from None

        def truth(default: bool, *names: str) -> bool:
            name, said = text(*names)
            if said is None:
                return default
            if said.lower() not in (*_YES, *_NO):
                raise RuntimeError(f"Invalid value for environment variable: {name}")
            return said.lower() in _YES

        blocking = truth(False, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
        handling = number(3, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
        detail = environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
        desync = truth(False, "TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG") or detail
        if truth(False, "TORCH_NCCL_AVOID_RECORD_STREAMS"):
            warn(
                "Warning: TORCH_NCCL_AVOID_RECORD_STREAMS is the default now, this environment variable is thus "
                "deprecated. (function operator())"
            )
        if environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
            raise UnsupportedError(
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE: pipes that ask for dumps are not simulated; call "
                "torch._C._distributed_c10d._dump_nccl_trace(), or let a timeout dump with TORCH_FR_DUMP_TEMP_FILE"
            )
        nonblocking = truth(False, "TORCH_NCCL_USE_COMM_NONBLOCKING")
        connect_ns = number(1800, "TORCH_NCCL_NONBLOCKING_TIMEOUT") * 1_000_000_000
        record_size = number(2000, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        _, prefix = text("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
        return cls(
            handling=3 if desync and not handling else handling,
            blocking_wait=blocking,
            dump_on_timeout=truth(True, "TORCH_NCCL_DUMP_ON_TIMEOUT") and record_size > 0,
            monitored=truth(True, "TORCH_NCCL_ENABLE_MONITORING"),
            heartbeat_ns=number(480, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") * 1_000_000_000,
            check_ns=number(1000, "TORCH_NCCL_COORD_CHECK_MILSEC") * 1_000_000,
            pause_ns=4 * number(15000, "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC") * 1_000_000,
            dump_prefix=prefix or "",
            record_size=max(0, record_size),
            desync=desync,
            timing=truth(False, "TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING") or desync,
            propagates=truth(False, "TORCH_NCCL_PROPAGATE_ERROR"),
            rethrows=truth(True, "TORCH_NCCL_RETHROW_CUDA_ERRORS"),
            extra_dump=truth(False, "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"),
            dumps_stacks=truth(True, "TORCH_INCLUDE_STACK_TRACE"),
            dumps_active_only=truth(False, "TORCH_INCLUDE_ONLY_ACTIVE"),
            dynamic_prefix=truth(False, "TORCH_FR_DUMP_DYNAMIC_FILE_NAME"),
            connect_limit_ns=connect_ns if nonblocking else 0,
            nan_check=truth(False, "TORCH_NCCL_NAN_CHECK"),
            tells_of_serialized=truth(True, "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"),
        )
