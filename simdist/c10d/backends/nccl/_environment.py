"""The variables that ProcessGroupNCCL reads when it is made (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
        desync = truth(False, "TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG")
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
            nan_check=truth(False, "TORCH_NCCL_NAN_CHECK"),
            tells_of_serialized=truth(True, "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"),
        )
