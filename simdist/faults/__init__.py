"""Faults: what can go wrong, when, and the injector that makes it happen.

A fault is a class: `Crash`, `HostCrash`, `Hang`, `Signal`, `Raise`, `SlowRank`, `ClockSkew`, `LinkDelay`, `LinkLoss`,
`LinkSlow`, `Partition`, `Isolate`, `Hold`, `StoreDelay`, `StoreAway`, `StoreLost`, `StoreStale`, `IoError`,
`ShortWrite`, `SlowDisk`, `DiskFull`, `BitRot`, `LostSync`, `BitFlip`, `BadValues`, `WrongResult`, `DeviceError`,
`DeviceWrong`, or one of the user's, from the bases `RankFault`, `OperationDelay`, `LinkFault`, `StoreFault`,
`DiskFault` and `Fault`.
Each has a file in `kinds`, each base one here. A kind's class holds everything about it: fields, problems in a world,
the simulated and the real arm, words. No other part of simdist knows a kind; its base says where a fault can strike.

Open `_fault.py` first: it is the contract. `_trigger.py` decides when a rank is struck, the same for both arms.
`_injector.py` with `_entry.py` is the simulated arm, `simdist.hardware` the real one; `_stage.py` lists what either
lets a fault do; `_fields.py` checks fields; `_operations.py` has the names of operations; `_problems.py` finds what is
wrong with faults.
"""

from typing import TYPE_CHECKING

from simdist._lazy import lazily
from simdist.faults._disk_fault import DiskFault
from simdist.faults._draws import draws_for, numbers_for
from simdist.faults._fault import Fault, Machine, Problem, Surroundings
from simdist.faults._fields import OFFSET, OPERATION, PART, RANK, SHARE, SHORT_KEYS, fields_of, file_key, ranks_in
from simdist.faults._kinds import KINDS
from simdist.faults._lasting import LastingFault
from simdist.faults._link_fault import LinkEffect, LinkFault
from simdist.faults._operation_delay import OperationDelay
from simdist.faults._operations import ALIASES, EFFECTS, OPERATIONS, STORAGE, STORE, effects_of, operations_of
from simdist.faults._problems import FaultProblem, problems_among, problems_of
from simdist.faults._rank_fault import Payload, RankFault
from simdist.faults._stage import Stage, StruckRank
from simdist.faults._store_fault import StoreFault
from simdist.faults._trigger import Trigger, Watch, Watches, When
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

__all__ = [
    "ALIASES",
    "EFFECTS",
    "KINDS",
    "OFFSET",
    "OPERATION",
    "OPERATIONS",
    "PART",
    "RANK",
    "SHARE",
    "SHORT_KEYS",
    "STORAGE",
    "STORE",
    "BadValues",
    "BitFlip",
    "BitRot",
    "ClockSkew",
    "Crash",
    "DeviceError",
    "DeviceWrong",
    "DiskFault",
    "DiskFull",
    "Fault",
    "FaultProblem",
    "Hang",
    "Hold",
    "HostCrash",
    "Injector",
    "IoError",
    "Isolate",
    "LastingFault",
    "LinkDelay",
    "LinkEffect",
    "LinkFault",
    "LinkLoss",
    "LinkSlow",
    "LostSync",
    "Machine",
    "OperationDelay",
    "Partition",
    "Payload",
    "Problem",
    "Raise",
    "RankFault",
    "ShortWrite",
    "Signal",
    "SlowDisk",
    "SlowRank",
    "Stage",
    "StoreAway",
    "StoreDelay",
    "StoreFault",
    "StoreLost",
    "StoreStale",
    "StruckRank",
    "Surroundings",
    "Trigger",
    "Watch",
    "Watches",
    "When",
    "WrongResult",
    "draws_for",
    "effects_of",
    "fields_of",
    "file_key",
    "numbers_for",
    "operations_of",
    "problems_among",
    "problems_of",
    "ranks_in",
]

if TYPE_CHECKING:
    from simdist.faults._injector import Injector

# It needs torch, which files and command lines are checked without.
__getattr__ = lazily(__name__, {"Injector": "_injector"})
