"""The kinds that come with simdist, by the names that scenario files and events have for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simdist.faults._fault import Fault
from simdist.faults.kinds.disks._bit_rot import BitRot
from simdist.faults.kinds.disks._disk_full import DiskFull
from simdist.faults.kinds.disks._io_error import IoError
from simdist.faults.kinds.disks._lost_sync import LostSync
from simdist.faults.kinds.disks._short_write import ShortWrite
from simdist.faults.kinds.disks._slow_disk import SlowDisk
from simdist.faults.kinds.network._hold import Hold
from simdist.faults.kinds.network._isolate import Isolate
from simdist.faults.kinds.network._link_delay import LinkDelay
from simdist.faults.kinds.network._link_loss import LinkLoss
from simdist.faults.kinds.network._link_slow import LinkSlow
from simdist.faults.kinds.network._partition import Partition
from simdist.faults.kinds.network._store_away import StoreAway
from simdist.faults.kinds.network._store_delay import StoreDelay
from simdist.faults.kinds.network._store_lost import StoreLost
from simdist.faults.kinds.network._store_stale import StoreStale
from simdist.faults.kinds.processes._clock_skew import ClockSkew
from simdist.faults.kinds.processes._crash import Crash
from simdist.faults.kinds.processes._hang import Hang
from simdist.faults.kinds.processes._host_crash import HostCrash
from simdist.faults.kinds.processes._raise import Raise
from simdist.faults.kinds.processes._signal import Signal
from simdist.faults.kinds.processes._slow_rank import SlowRank
from simdist.faults.kinds.values._bad_values import BadValues
from simdist.faults.kinds.values._bit_flip import BitFlip
from simdist.faults.kinds.values._device_error import DeviceError
from simdist.faults.kinds.values._device_wrong import DeviceWrong
from simdist.faults.kinds.values._wrong_result import WrongResult

__all__ = ["KINDS"]

_CLASSES = (
    *(Crash, HostCrash, Hang, Signal, Raise, SlowRank, ClockSkew),
    *(LinkDelay, LinkLoss, LinkSlow, Partition, Isolate, Hold, StoreDelay, StoreAway, StoreLost, StoreStale),
    *(IoError, ShortWrite, SlowDisk, DiskFull, BitRot, LostSync, BitFlip),
    *(BadValues, WrongResult, DeviceError, DeviceWrong),
)
KINDS: Mapping[str, type[Fault]] = MappingProxyType({kind.kind: kind for kind in _CLASSES})
