"""ProcessGroupNCCL's log lines of level INFO, which TORCH_CPP_LOG_LEVEL=INFO shows (torch 2.13).

Lines with addresses of C++ objects or C++ stacks are left out. The destructor's lines appear right after the group is
destroyed, or when the program ends, even if the program still has references to the group.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from simdist.c10d.backends.nccl._log import log, shows
from simdist.inside.torch import NCCL, Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember

__all__ = ["Informer"]


class Informer:
    """Logs the events of one group of a rank. It reads the log level each time, because the variable may change."""

    def __init__(self, group: WatchedMember) -> None:
        self._group = group
        self._process = group.nccl.process

    def say(self, text: str, place: Place, *, prefixed: bool = True) -> None:
        """Log `text` behind the group's prefix."""
        if shows(self._process, "I"):
            log(self._process, "I", f"{self._group._prefix()}{text}" if prefixed else text, place)

    def made(self, size: int) -> None:
        """Log that the group was made; the first group of a process also logs the environment."""
        if not shows(self._process, "I"):
            return
        group, environment = self._group, self._group.environment
        if environment.blocking_wait:
            self.say(
                "TORCH_NCCL_BLOCKING_WAIT is enabled, NO watchdog thread is created.", Place.MADE_WITH_BLOCKING_WAIT
            )
        elif environment.handling_raised:
            self.say(
                "TORCH_NCCL_DESYNC_DEBUG and TORCH_NCCL_ASYNC_ERROR_HANDLING must both be enabled. Enabling "
                "TORCH_NCCL_ASYNC_ERROR_HANDLING.",
                Place.MADE_WITH_HANDLING,
            )
        deterministic = torch.are_deterministic_algorithms_enabled() and "NCCL_ALGO" not in os.environ
        if deterministic and group.nccl.once("deterministic"):  # torch then sets NCCL_ALGO
            self.say(
                "torch deterministic mode is enabled, disabling NVLS algorithm in NCCL which can lead to "
                "non-deterministic reduction.",
                Place.MADE_DETERMINISTIC,
                prefixed=False,
            )
        if group.uid == 0:
            self._report_threads()
        options = group.options
        parent = options.split_from
        address = "0" if parent is None else hex((parent.uid + 1) << 12)  # any address will do
        self.say(
            f"ProcessGroupNCCL initialization options: size: {size}, global rank: {group.nccl.global_rank}, "
            f"TIMEOUT(ms): {round(options._timeout.total_seconds() * 1e3)}, USE_HIGH_PRIORITY_STREAM: "
            f"{bool(options.is_high_priority_stream):d}, SPLIT_FROM: {address}, "
            f"SPLIT_COLOR: {options.split_color}, PG Name: {options.group_name}",
            Place.MADE_WITH_OPTIONS,
        )
        if group.uid == 0:
            debug = group.nccl.variables().text("OFF", "TORCH_DISTRIBUTED_DEBUG")
            self.say(
                f"ProcessGroupNCCL environments: NCCL version: {NCCL}, TORCH_NCCL_ASYNC_ERROR_HANDLING: "
                f"{environment.handling}, TORCH_NCCL_ENABLE_TIMING: {environment.timing:d}, TORCH_NCCL_BLOCKING_WAIT: "
                f"{environment.blocking_wait:d}, TORCH_DISTRIBUTED_DEBUG: {debug}, "
                f"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK: {environment.registers_tensors:d}, "
                f"TORCH_NCCL_TRACE_BUFFER_SIZE: {environment.recorded}, TORCH_NCCL_NAN_CHECK: "
                f"{environment.nan_check:d}, TORCH_NCCL_CUDA_EVENT_CACHE: {environment.caches_events:d}",
                Place.MADE_IN_ENVIRONMENT,
            )

    def _report_threads(self) -> None:
        environment = self._group.environment
        self.say(
            "HeartbeatMonitor environments: TORCH_NCCL_ENABLE_MONITORING (Whether to kill program when no watchdog "
            f"heartbeat detected): {environment.monitored:d}, TORCH_NCCL_DUMP_ON_TIMEOUT: "
            f"{environment.dump_on_timeout:d}, TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC: "
            f"{environment.pause_ns // 4_000_000}, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: "
            f"{environment.heartbeat_ns // 1_000_000_000}, TORCH_NCCL_COORD_CHECK_MILSEC: "
            f"{environment.check_ns // 1_000_000}, TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN: "
            f"{environment.reports_stacks:d}",
            Place.MONITOR_SAYS_HOW,
        )
        self.say(
            f"PGNCCL Watchdog environments: TORCH_NCCL_RETHROW_CUDA_ERRORS: {environment.rethrows:d}, "
            f"TORCH_NCCL_PROPAGATE_ERROR: {environment.propagates:d}, TORCH_NCCL_DESYNC_DEBUG: {environment.desync:d}",
            Place.WATCHDOG_SAYS_HOW,
        )

    def joined(self) -> None:
        """Log the end of the watchdog's thread."""
        if not self._group.environment.blocking_wait:
            self.say("ProcessGroupNCCL watchdog thread joined.", Place.WATCHDOG_JOINED)

    def monitor_joined(self) -> None:
        """Log the end of the monitor's thread."""
        if not self._group.environment.blocking_wait:
            self.say("ProcessGroupNCCL heart beat monitor thread joined.", Place.MONITOR_JOINED)
