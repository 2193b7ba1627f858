"""`ProcessGroupNCCL.Options` and its `config` (torch 2.13, NCCL 2.29.7)."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, SupportsIndex, SupportsInt

import torch

from simdist.c10d.surface._compat import is_duration, whole_ms
from simdist.inside.torch import BackendOptions

__all__ = ["DEFAULT_TIMEOUT", "NcclConfig", "NcclOptions", "Splittable"]

DEFAULT_TIMEOUT = timedelta(minutes=10)
_UNSET = -2147483648  # NCCL_CONFIG_UNDEF_INT
_NUMBERS = (
    *("blocking", "cga_cluster_size", "min_ctas", "max_ctas", "split_share", "traffic_class", "collnet_enable"),
    *("cta_policy", "shrink_share", "nvls_ctas", "n_channels_per_net_peer", "nvlink_centric_sched"),
)


class NcclConfig:
    """How a communicator is made; NCCL chooses the fields that are not set."""

    blocking: int
    cga_cluster_size: int
    min_ctas: int
    max_ctas: int
    split_share: int

    def __init__(self) -> None:
        for name in _NUMBERS:
            object.__setattr__(self, name, _UNSET)
        self.net_name: str | None = None
        self.comm_name: str | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if name in _NUMBERS:
            if isinstance(value, float) or not isinstance(value, SupportsInt | SupportsIndex):
                raise TypeError(f"(): incompatible function arguments: {name} takes an int, not {type(value).__name__}")
            value = int(value)  # as pybind11 converts: False is 0
        if name not in (*_NUMBERS, "net_name", "comm_name"):
            raise AttributeError(f"'NCCLConfig' object has no attribute {name!r}")
        object.__setattr__(self, name, value)


class Splittable(Protocol):
    """A group from whose communicator that of another group is split off."""

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the group was made for."""

    def count_split(self, index: int) -> None:
        """Count a split of a device's communicator."""


class NcclOptions(BackendOptions):
    """Stands in for `ProcessGroupNCCL.Options`."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", DEFAULT_TIMEOUT)
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NcclConfig()
        self.split_from: Splittable | None = None
        self.split_color = -2  # NCCL_SPLIT_NOCOLOR - 1: not split

    @property
    def timeout(self) -> timedelta:
        """The time after which the watchdog ends the process for an unfinished work of the group."""
        return whole_ms(self._timeout) if is_duration(self._timeout) else DEFAULT_TIMEOUT

    def __copy__(self) -> NcclOptions:
        made = NcclOptions(self.is_high_priority_stream)
        made.__dict__.update(self.__dict__)
        made._timeout, made.group_name = self._timeout, self.group_name
        made.global_ranks_in_group = list(self.global_ranks_in_group)
        return made

    def __deepcopy__(self, memo: dict[int, object]) -> NcclOptions:
        made = self.__copy__()
        made.config = NcclConfig()
        made.config.__dict__.update(self.config.__dict__)
        return made
