"""Where in C++ sources a text of torch, Gloo or NCCL comes from: the file and the line, which logs and errors show.

Lines move from version to version. A place has a line for each of `_SEEN`, or a single one that is the same in all; a
newer torch counts as the newest of these. The lines were read in the machine code of libtorch_cpu and libtorch_cuda of
the wheels for CUDA (2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0): each call that logs or raises gets its line as a number,
next to the address of its text. Texts that a program can cause without a GPU were compared with real output.
The folder in which torch was built is taken from a library of the installed torch.

Doubts: `PAIR_REFUSED`, `PAIR_UNCONNECTED` and `MESH_FAILED` were seen with 2.13 and 2.14 only. `STORE_READ_VECTOR` was
seen with 2.13 only; in all versions the lines before and after it are the same.
`WORKS_UNWAITED` was seen with 2.11 to 2.14.
`CALL_FAILED` is where a communicator is made; torch names a line of its own for each other call of NCCL.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import torch

from simdist.inside._facts import fact
from simdist.inside.torch._cuda import is_built_for_cuda

__all__ = ["RECORDER_HEADER", "Place", "newest", "this_version"]

RECORDER_HEADER = "FlightRecorder.hpp"
"""The file to which torch's texts send their readers."""

_SEEN = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))  # versions of torch, oldest first: columns of the lines below
_CUDA_FOLDERS = {(2, 11): "/pytorch", (2, 13): "/__w/pytorch/pytorch"}  # in which wheels for CUDA are built, since when
_LIBRARIES = ("libc10.so", "libc10.dylib")
_SOURCE = b"/c10/core/CPUAllocator.cpp\0"  # the end of a name that each of them contains

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
_FUTURE = "torch/csrc/jit/python/pybind_utils.h"


def this_version() -> tuple[int, ...]:
    """The first two numbers of the installed torch's version."""
    return tuple(int(part) for part in str(torch.__version__).split(".")[:2])


def newest(known: Iterable[tuple[int, int]], version: tuple[int, ...]) -> tuple[int, int]:
    """The newest of the `known` versions, oldest first, that is not newer than `version`; else the oldest."""
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


# Found at import, in a millisecond, and not when a text is made: then files may be those of a simulated disk.
_COLUMN, _FOUND = _SEEN.index(newest(_SEEN, this_version())), _folder()
_CUDA_FOLDER = _CUDA_FOLDERS[newest(_CUDA_FOLDERS, this_version())]
_BUILT_IN = _FOUND or _CUDA_FOLDER
_BUILT_FOR_CUDA_IN = _BUILT_IN if is_built_for_cuda() else _CUDA_FOLDER


class Place(Enum):
    """A line of a source file; as text it is the file's name without its folders, a colon and the line.

    If later versions of torch do not have the text, it has lines for the earlier ones only.
    """

    # ProcessGroupNCCL: works.
    WORK_FAILED = _NCCL, 612, 672, 645, 657, 654
    WORK_TIMED_OUT = _NCCL, 689, 757, 730, 741, 738
    TIMEOUT_RAISED = _NCCL, 692, 760, 733, 744, 741
    WORK_STACK = _NCCL, 733, 801, 774, 785, 782
    WORK_HAS_NO_STACK = _NCCL, 736, 804, 777, 788, 785
    WORK_LEAVES_GARBAGE = _NCCL, 750, 818, 791, 802, 799
    WORK_TAKES_DOWN = _NCCL, 764, 832, 805, 816, 813
    WORK_BLOCKED_TOO_LONG = _NCCL, 821, 889, 862, 873, 870
    WORK_CHECKED = _NCCL, 2770, 2866, 2843, 2861, 2868
    CALL_FAILED = _NCCL_UTILS, 93, 93, 92, 92, 91
    CALL_TIMED_OUT = _NCCL_UTILS, 197, 197, 193, 193, 192
    HOOK_IS_OLD = _NCCL, 1217, 1289, 1252, 1272, 1265
    # Its watchdog, the report on the progress of each rank, and errors of other ranks.
    WATCHDOG_SAYS_HOW = _NCCL, 2058, 2136, 2113, 2131, 2130
    WATCHDOG_ENDED = _NCCL, 2119, 2197, 2174, 2192, 2192
    WATCHDOG_JOINED = _NCCL, 2088, 2166, 2143, 2161, 2161
    WATCHDOG_FOUND = _NCCL, 2303, 2395, 2372, 2390, 2391
    DESYNC_REPORT = _NCCL, 2495, 2591, 2573, 2591, 2598
    DESYNC_FAILED = _NCCL, 2500, 2596, 2578, 2596, 2603
    TRACE_STORE_GONE = _TRACE, 45
    TRACE_HAS_NO_CALL = _TRACE, 235, 235, 235, 238, 238
    TRACE_HAS_ENDED = _TRACE, 240, 240, 240, 243, 243
    SIGNAL_NOT_READ = _NCCL, 2150, 2228, 2205, 2223, 2224
    SIGNAL_READ = _NCCL, 2185, 2263, 2240, 2258, 2259
    SIGNAL_SENT = _NCCL, 2623, 2719, 2701, 2719, 2726
    SIGNAL_NOT_SENT = _NCCL, 2626, 2722, 2704, 2722, 2729
    # Its monitor, and dumps.
    MONITOR_SAYS_HOW = _NCCL, 1725, 1797, 1774, 1791, 1789
    MONITOR_SLEPT = _NCCL, 2014, 2088, 2065, 2083, 2081
    MONITOR_HAS_NO_STORE = _NCCL, 1826, 1899, 1876
    MONITOR_SAW_SIGNAL = _NCCL, 1849, 1922, 1899, 1917, 1915
    MONITOR_FOUND = _NCCL, 1914, 1987, 1964, 1982, 1980
    MONITOR_DUMPED = _NCCL, 1951, 2024, 2001, 2019, 2017
    MONITOR_SPARES = _NCCL, 2039, 2117, 2094, 2112, 2110
    MONITOR_TERMINATES = _NCCL, 1653, 1725, 1702, 1719, 1717
    MONITOR_JOINED = _NCCL, 1754, 1826, 1803, 1820, 1818
    PIPE_OPENED = _NCCL_HEADER, 222, 216, 217, 220, 216
    PIPE_READ = _NCCL, 1907, 1980, 1957, 1975, 1973
    DUMP_FIRST = _NCCL, 2636, 2732, 2714, 2732, 2739
    DUMP_EXTRA = _NCCL, 1468, 1540, 1499, 1516, 1514
    DUMP_PREPARED = _NCCL, 1628, 1700, 1677, 1694, 1692
    DUMP_BEGUN = _NCCL, 1641, 1713, 1690, 1707, 1705
    DUMP_WRITTEN = _RECORDER, 40
    DUMP_ENDED = _NCCL, 1644, 1716, 1693, 1710, 1708
    # How it is created and destroyed.
    MADE_WITH_BLOCKING_WAIT = _NCCL, 939, 1008, 980, 1003, 996
    MADE_WITH_HANDLING = _NCCL, 944, 1013, 985, 1008, 1001
    MADE_DETERMINISTIC = _NCCL, 960, 1029, 1001, 1024, 1017
    MADE_WITH_OPTIONS = _NCCL, 988, 1057, 1027, 1050, 1043
    MADE_IN_ENVIRONMENT = _NCCL, 999, 1068, 1038, 1061, 1054
    RECORD_STREAMS_IS_OLD = _NCCL, 932, 1001, 973, 996
    CONNECTED_EAGERLY = _NCCL, 1031, 1100, 1068, 1091, 1084
    CONNECTED_WITHOUT_BLOCKING = _NCCL, 1068, 1137, 1102, 1125, 1118
    CONNECTED_BY_STORE = _NCCL, 3146, 3242, 3204, 3226, 3233
    CONNECTED_BY_ROOTS = _NCCL, 3111, 3207, 3178, 3200, 3207
    DEBUG_SHOWN = _NCCL, 3180, 3276, 3234, 3256, 3263
    OTHER_DEVICE = _NCCL, 2970, 3066, 3043, 3061, 3068
    MESSAGES_SERIALIZED = _NCCL, 4051, 4172, 4130, 4164, 4170
    MESSAGES_IN_PAIRS = _NCCL, 4094, 4215, 4173, 4207, 4213
    DEVICE_GUESSED = _NCCL, 5188, 5324, 5276, 5310, 5332
    NOT_DESTROYED = _NCCL, 1575, 1647, 1624, 1641, 1639
    ABORT_LAUNCHED = _NCCL, 1492, 1564, 1523, 1540, 1538
    ABORTED = _NCCL, 1500, 1572, 1531, 1548, 1546
    DESTROY_BEGUN = _NCCL, 1515, 1587, 1546, 1563, 1561
    DESTROY_FLUSHED = _NCCL, 1542, 1614, 1573, 1590, 1588
    DESTROY_WATCHED = _NCCL, 1553, 1625, 1584, 1601, 1599
    DESTROY_ENDED = _NCCL, 1561, 1633, 1592, 1609, 1607
    DESTRUCTOR = _NCCL, 1566, 1638, 1597, 1614, 1612
    # Variables of the environment.
    OLD_STRING = _UTILS, 112
    OLD_NUMBER = _UTILS, 137
    OLD_TRUTH = _UTILS, 166
    NO_FLAG = "c10/util/env.cpp", 89, 89, 89, 112, 112
    # Stores.
    STORE_SENT = _STORE, 106
    STORE_READ_VECTOR = _STORE, 115
    STORE_READ = _STORE, 125
    STORE_READ_IN_TIME = _STORE, 138
    SOCKET_SENT = _UTILS, 653, 653, 758, 761, 757
    SOCKET_READ = _UTILS, 682, 682, 787, 790, 786
    # Futures.
    CALLBACK_FAILED = _FUTURE, 216, 215, 215, 215, 215
    # Gloo, and torch around it.
    RANK_IS_NEGATIVE = f"{_GLOO}/context.cc", 22
    RANK_IS_TOO_LARGE = f"{_GLOO}/context.cc", 23
    TIMEOUT_IS_NEGATIVE = f"{_GLOO}/context.cc", 62
    RECEIVE_TIMED_OUT = f"{_GLOO}/transport/tcp/unbound_buffer.cc", 78
    SEND_TIMED_OUT = f"{_GLOO}/transport/tcp/unbound_buffer.cc", 129
    PAIR_REFUSED = f"{_GLOO}/transport/tcp/pair.cc", 152
    PAIR_UNCONNECTED = f"{_GLOO}/transport/tcp/pair.h", 311
    PAIR_CLOSED = f"{_GLOO}/transport/tcp/pair.cc", 547, 547, 553, 561, 561
    PAIR_RESET = f"{_GLOO}/transport/tcp/pair.cc", 538, 538, 537, 545, 545
    PAIR_OVERRUN = f"{_GLOO}/transport/tcp/pair.cc", 456, 456, 456, 464, 464
    PAIR_IS_ITSELF = f"{_GLOO}/transport/tcp/pair.cc", 789, 789, 801, 809, 809
    PARTS_ARE_UNEVEN = f"{_GLOO}/alltoall.cc", 29
    PARTS_DIFFER = f"{_GLOO}/alltoall.cc", 30
    OWN_PART_DIFFERS = f"{_GLOO}/alltoallv.cc", 138
    MESH_FAILED = _GLOO_GROUP, 67, 67, 67, 68, 68
    NO_OPTIONS_OF_GLOO = _GLOO_GROUP, 749, 749, 749, 791, 792
    NO_OPERATION = _GROUP, 55, 57, 59, 91, 91
    WORKS_UNWAITED = _GROUP, 362, 363, 390, 448, 448

    def __init__(self, file: str, *lines: int) -> None:
        self._file = file
        self._line = lines[min(_COLUMN, len(lines) - 1)]
        self.is_there = len(lines) == 1 or len(lines) > _COLUMN
        """True if the installed torch has the text."""

    def __str__(self) -> str:
        return f"{self._file.rpartition('/')[2]}:{self._line}"

    @property
    def path(self) -> str:
        """The file and the line, with the folder in which the installed torch was built."""
        return f"{_BUILT_IN}/{self._file}:{self._line}"

    @property
    def path_for_cuda(self) -> str:
        """Likewise, with the folder in which a torch for CUDA was built: the installed one, or another one."""
        return f"{_BUILT_FOR_CUDA_IN}/{self._file}:{self._line}"

    def asserts(self, condition: str, text: str, *, for_cuda: bool = False) -> str:
        """torch's message if one of its own conditions does not hold."""
        file, _, line = (self.path_for_cuda if for_cuda else self.path).rpartition(":")
        return f'{condition} INTERNAL ASSERT FAILED at "{file}":{line}, please report a bug to PyTorch. {text}'


@fact(
    "torch.places",
    what="a library of torch's names the folder in which it was built",
    source="c10/core/CPUAllocator.cpp, in libc10",
    seen="2.11, 2.12, 2.13, 2.14, 2.15",
    feature=f"errors and logs name files as if torch had been built in {_CUDA_FOLDER}",
)
def _folder_is_known() -> str:
    return "" if _FOUND.startswith("/") else f"it says {_FOUND!r}"
