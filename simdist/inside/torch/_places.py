"""Where in C++ sources a text of torch, Gloo or NCCL comes from: the file and the line, which logs and errors show.

Lines move from version to version. A place has one for each of `_SEEN`, or fewer, where those of later versions are
not known: the last one stands for them, as for versions that are not among them. Of 2.14, what a program can bring
about without a GPU was looked at: Gloo's own but `PAIR_OVERRUN`, and stores. The folder in which torch was built is
taken from a library of the torch that is here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import torch

from simdist.inside._facts import fact
from simdist.inside.torch._cuda import is_built_for_cuda

__all__ = ["RECORDER_HEADER", "Place"]

RECORDER_HEADER = "FlightRecorder.hpp"
"""The file to which torch's texts send their readers."""

_SEEN = ((2, 13), (2, 14))  # versions of torch, oldest first: columns of the lines below
_CUDA_FOLDERS = {(2, 13): "/pytorch", (2, 14): "/__w/pytorch/pytorch"}  # in which wheels for CUDA are built, since when
_LIBRARIES = ("libc10.so", "libc10.dylib")
_SOURCE = b"/c10/core/CPUAllocator.cpp\0"  # the end of a name that stands in each of them

_NCCL = "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_NCCL_HEADER = "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
_NCCL_UTILS = "torch/csrc/distributed/c10d/NCCLUtils.cpp"
_UTILS = "torch/csrc/distributed/c10d/Utils.hpp"
_TRACE = "torch/csrc/distributed/c10d/TraceUtils.h"
_RECORDER = "torch/csrc/distributed/c10d/FlightRecorder.cpp"
_STORE = "torch/csrc/distributed/c10d/TCPStore.cpp"
_GROUP = "torch/csrc/distributed/c10d/ProcessGroup.cpp"
_GLOO_GROUP = "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
_GLOO = "third_party/gloo/gloo"


def _newest(known: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The newest of some versions, oldest first, that is no newer than the torch that is here; else the oldest."""
    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    first, *others = known
    return max((each for each in others if each <= version), default=first)


def _folder() -> str:
    """The folder in which torch was built; empty if its library does not name it."""
    for name in _LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / name
        if path.is_file():
            words = path.read_bytes()
            end = words.find(_SOURCE)
            if end >= 0:
                return words[words.rfind(b"\0", 0, end) + 1 : end].decode(errors="replace")
    return ""


# Found here, in a millisecond, and not when a text is made: then files may be those of a simulated disk.
_COLUMN, _FOUND = _SEEN.index(_newest(_SEEN)), _folder()
_CUDA_FOLDER = _CUDA_FOLDERS[_newest(_CUDA_FOLDERS)]
_BUILT_IN = _FOUND or _CUDA_FOLDER
_BUILT_FOR_CUDA_IN = _BUILT_IN if is_built_for_cuda() else _CUDA_FOLDER


class Place(Enum):
    """A line of a source file; as text it is the file's name without its folders, a colon and the line."""

    # ProcessGroupNCCL: works.
    WORK_FAILED = _NCCL, 622
    WORK_TIMED_OUT = _NCCL, 693
    WORK_STACK = _NCCL, 750
    WORK_TAKES_DOWN = _NCCL, 758
    WORK_BLOCKED_TOO_LONG = _NCCL, 826
    WORK_CHECKED = _NCCL, 2683
    CALL_FAILED = _NCCL_UTILS, 94
    CALL_TIMED_OUT = _NCCL_UTILS, 93
    HOOK_IS_OLD = _NCCL, 1302
    HOOK_RAISED = _NCCL, 2640
    # Its watchdog, the report of who has come how far, and errors of other ranks.
    WATCHDOG_SAYS_HOW = _NCCL, 2136
    WATCHDOG_ENDED = _NCCL, 2160
    WATCHDOG_JOINED = _NCCL, 2166
    WATCHDOG_FOUND = _NCCL, 2404
    DESYNC_REPORT = _NCCL, 700
    TRACE_STORE_GONE = _TRACE, 46
    TRACE_HAS_NO_CALL = _TRACE, 236
    TRACE_HAS_ENDED = _TRACE, 241
    SIGNAL_NOT_READ = _NCCL, 2298
    SIGNAL_READ = _NCCL, 2330
    SIGNAL_SENT = _NCCL, 2533
    SIGNAL_NOT_SENT = _NCCL, 2536
    # Its monitor, and dumps.
    MONITOR_SAYS_HOW = _NCCL, 1797
    MONITOR_SLEPT = _NCCL, 2088
    MONITOR_HAS_NO_STORE = _NCCL, 1899
    MONITOR_SAW_SIGNAL = _NCCL, 1682
    MONITOR_TOOK_SIGNAL = _NCCL, 1743
    MONITOR_FOUND_HANG = _NCCL, 1782
    MONITOR_DUMPED = _NCCL, 2026
    MONITOR_SPARES = _NCCL, 1811
    MONITOR_TERMINATES = _NCCL, 1571
    MONITOR_JOINED = _NCCL, 1826
    PIPE_OPENED = _NCCL_HEADER, 218
    PIPE_READ = _NCCL, 1980
    DUMP_FIRST = _NCCL, 2449
    DUMP_EXTRA = _NCCL, 1539
    DUMP_PREPARED = _NCCL, 1533
    DUMP_BEGUN = _NCCL, 1713
    DUMP_WRITTEN = _RECORDER, 88
    DUMP_ENDED = _NCCL, 1716
    # How it is made, and ends.
    MADE_WITH_BLOCKING_WAIT = _NCCL, 1008
    MADE_WITH_HANDLING = _NCCL, 1013
    MADE_DETERMINISTIC = _NCCL, 1029
    MADE_WITH_OPTIONS = _NCCL, 1057
    MADE_IN_ENVIRONMENT = _NCCL, 1068
    RECORD_STREAMS_IS_OLD = _NCCL, 973
    CONNECTED_EAGERLY = _NCCL, 1100
    CONNECTED_WITHOUT_BLOCKING = _NCCL, 1137
    CONNECTED_BY_STORE = _NCCL, 3204
    DEBUG_SHOWN = _NCCL, 3260
    OTHER_DEVICE = _NCCL, 3740
    MESSAGES_SERIALIZED = _NCCL, 3945
    MESSAGES_IN_PAIRS = _NCCL, 3957
    DEVICE_GUESSED = _NCCL, 5021
    NOT_DESTROYED = _NCCL, 1553
    ABORT_LAUNCHED = _NCCL, 1564
    ABORTED = _NCCL, 1572
    DESTROY_BEGUN = _NCCL, 1587
    DESTROY_FLUSHED = _NCCL, 1614
    DESTROY_WATCHED = _NCCL, 1625
    DESTROY_ENDED = _NCCL, 1633
    DESTRUCTOR = _NCCL, 1638
    # Variables of the environment.
    OLD_STRING = _UTILS, 112
    OLD_NUMBER = _UTILS, 137
    OLD_TRUTH = _UTILS, 166
    NO_FLAG = "c10/util/env.cpp", 89
    # Stores.
    STORE_SENT = _STORE, 106
    STORE_READ_VECTOR = _STORE, 115
    STORE_READ = _STORE, 125
    STORE_READ_IN_TIME = _STORE, 138
    SOCKET_SENT = _UTILS, 758, 761
    SOCKET_READ = _UTILS, 787, 790
    # Gloo, and torch around it.
    RANK_IS_NEGATIVE = f"{_GLOO}/context.cc", 22
    RANK_IS_TOO_LARGE = f"{_GLOO}/context.cc", 23
    TIMEOUT_IS_NEGATIVE = f"{_GLOO}/context.cc", 62
    RECEIVE_TIMED_OUT = f"{_GLOO}/transport/tcp/unbound_buffer.cc", 78
    SEND_TIMED_OUT = f"{_GLOO}/transport/tcp/unbound_buffer.cc", 129
    PAIR_CLOSED = f"{_GLOO}/transport/tcp/pair.cc", 553, 561
    PAIR_RESET = f"{_GLOO}/transport/tcp/pair.cc", 537, 545
    PAIR_OVERRUN = "gloo/transport/tcp/pair.cc", 446
    PAIR_IS_ITSELF = f"{_GLOO}/transport/tcp/pair.cc", 801, 809
    PARTS_ARE_UNEVEN = f"{_GLOO}/alltoall.cc", 29
    PARTS_DIFFER = f"{_GLOO}/alltoall.cc", 30
    OWN_PART_DIFFERS = f"{_GLOO}/alltoallv.cc", 138
    NO_OPTIONS_OF_GLOO = _GLOO_GROUP, 749
    NO_OPERATION = _GROUP, 59
    # NCCL itself, 2.29.7.
    SAME_DEVICE = "init.cc", 974
    SEND_TO_ITSELF = "enqueue.cc", 1126
    NOTHING_LEFT = "enqueue.cc", 1971
    NO_NETWORK = "plugin/net.cc", 326
    NO_SUCH_ROOT = "misc/argcheck.cc", 156
    NO_PREFIX = "graph/tuning.cc", 72
    UNKNOWN_NAME = "graph/tuning.cc", 105
    UNKNOWN_PREFIX = "graph/tuning.cc", 115
    PEER_CLOSED = "misc/socket.cc", 35
    MESSAGE_CUT = "transport/net_socket.cc", 569
    PEER_SILENT = "transport/net_ib/p2p.cc", 651

    def __init__(self, file: str, *lines: int) -> None:
        self._file = file
        self._line = lines[min(_COLUMN, len(lines) - 1)]

    def __str__(self) -> str:
        return f"{self._file.rpartition('/')[2]}:{self._line}"

    @property
    def in_sources(self) -> str:
        """As above, from the folder of the sources on."""
        return f"{self._file}:{self._line}"

    @property
    def path(self) -> str:
        """As above, with the folder in which the torch that is here was built."""
        return f"{_BUILT_IN}/{self._file}:{self._line}"

    @property
    def path_for_cuda(self) -> str:
        """As above, with the folder in which a torch for CUDA was built: the one that is here, or another one."""
        return f"{_BUILT_FOR_CUDA_IN}/{self._file}:{self._line}"

    def asserts(self, condition: str, text: str, *, for_cuda: bool = False) -> str:
        """What torch says where a condition of its own does not hold."""
        file, _, line = (self.path_for_cuda if for_cuda else self.path).rpartition(":")
        return f'{condition} INTERNAL ASSERT FAILED at "{file}":{line}, please report a bug to PyTorch. {text}'


@fact(
    "torch.places",
    what="a library of torch's names the folder in which it was built",
    source="c10/core/CPUAllocator.cpp, in libc10",
    seen="2.13, 2.14",
    feature=f"errors and logs name files as if torch had been built in {_CUDA_FOLDER}",
)
def _folder_is_known() -> str:
    return "" if _FOUND.startswith("/") else f"it says {_FOUND!r}"
