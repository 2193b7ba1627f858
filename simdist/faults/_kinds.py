"""The kinds that come with simdist, by the names that scenario files and events have for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simdist.faults._fault import Fault
from simdist.faults.kinds._bad_values import BadValues
from simdist.faults.kinds._bit_flip import BitFlip
from simdist.faults.kinds._bit_rot import BitRot
from simdist.faults.kinds._clock_skew import ClockSkew
from simdist.faults.kinds._crash import Crash
from simdist.faults.kinds._device_error import DeviceError
from simdist.faults.kinds._device_wrong import DeviceWrong
from simdist.faults.kinds._disk_full import DiskFull
from simdist.faults.kinds._hang import Hang
from simdist.faults.kinds._hold import Hold
from simdist.faults.kinds._host_crash import HostCrash
from simdist.faults.kinds._io_error import IoError
from simdist.faults.kinds._isolate import Isolate
from simdist.faults.kinds._link_delay import LinkDelay
from simdist.faults.kinds._link_loss import LinkLoss
from simdist.faults.kinds._link_slow import LinkSlow
from simdist.faults.kinds._lost_sync import LostSync
from simdist.faults.kinds._partition import Partition
from simdist.faults.kinds._raise import Raise
from simdist.faults.kinds._short_write import ShortWrite
from simdist.faults.kinds._signal import Signal
from simdist.faults.kinds._slow_disk import SlowDisk
from simdist.faults.kinds._slow_rank import SlowRank
from simdist.faults.kinds._store_away import StoreAway
from simdist.faults.kinds._store_delay import StoreDelay
from simdist.faults.kinds._store_lost import StoreLost
from simdist.faults.kinds._wrong_result import WrongResult

__all__ = ["KINDS"]

_CLASSES = (
    *(Crash, HostCrash, Hang, Signal, Raise, SlowRank, ClockSkew),
    *(LinkDelay, LinkLoss, LinkSlow, Partition, Isolate, Hold, StoreDelay, StoreAway, StoreLost),
    *(IoError, ShortWrite, SlowDisk, DiskFull, BitRot, LostSync, BitFlip),
    *(BadValues, WrongResult, DeviceError, DeviceWrong),
)
KINDS: Mapping[str, type[Fault]] = MappingProxyType({kind.kind: kind for kind in _CLASSES})
