"""The NCCL that torch's wheels for CUDA 13 require, by version of torch: its number, its texts, lines of its sources.

NCCL 2.28.9 comes with torch 2.11, 2.29.7 with 2.12 and 2.13, and 2.30.7 with 2.14 and 2.15. The lines and the texts
are those of NCCL's sources at these versions, and the versions of CUDA are those that the libraries themselves report.
A newer torch counts as the newest of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from simdist.inside.torch._places import newest, this_version

__all__ = ["NCCL", "NcclBuild", "NcclPlace", "nccl_build_of"]


@dataclass(frozen=True)
class NcclBuild:
    """One version of NCCL, as a wheel has it."""

    number: tuple[int, int, int]
    cuda: str  # what it was built with
    same_device: str  # its text if two ranks have one GPU: with `one`, `other` and `bus`
    connects: str  # its function that connects, which its text names
    no_algorithm: str  # the beginning of its text if a choice of algorithms leaves none
    names_functions: bool = False  # a warning has the function after the line
    can_share_devices: bool = False  # with NCCL_MULTI_RANK_GPU_ENABLE=1

    def __str__(self) -> str:
        return ".".join(map(str, self.number))


_DUPLICATE = "Duplicate GPU detected : rank {one} and rank {other} both on CUDA device {bus:x}"
_NOTHING = "Error : no algorithm/protocol available"
_BUILDS = (
    NcclBuild((2, 28, 9), "13.0", _DUPLICATE, "socketPollConnect", _NOTHING),
    NcclBuild((2, 29, 7), "13.2", _DUPLICATE, "ncclOsSocketPollConnect", _NOTHING),
    NcclBuild(
        (2, 30, 7),
        "13.3",
        "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
        "configuration.",
        "ncclOsSocketPollConnect",
        "No algorithm/protocol available",
        names_functions=True,
        can_share_devices=True,
    ),
)
_OF_TORCH = {(2, 11): 0, (2, 12): 1, (2, 14): 2}  # which of them comes with torch, from this version on


def nccl_build_of(version: tuple[int, ...]) -> NcclBuild:
    """The NCCL of a version of torch, such as (2, 13)."""
    return _BUILDS[_OF_TORCH[newest(_OF_TORCH, version)]]


NCCL = nccl_build_of(this_version())


_FIRST_FILES = {"PEER_SILENT": "transport/net_ib.cc", "CONNECTION_REFUSED": "misc/socket.cc"}  # where 2.28.9 has them


class NcclPlace(Enum):
    """A place at which NCCL warns: the file, the function (of 2.30.7), and the line in each version."""

    SAME_DEVICE = "init.cc", "initTransportsRank", 904, 974, 1057
    SEND_TO_ITSELF = "enqueue.cc", "scheduleP2pTasksToPlan", 1070, 1126, 1160
    NOTHING_LEFT = "enqueue.cc", "topoGetAlgoInfo", 1859, 1971, 2063
    NO_NETWORK = "plugin/net.cc", "ncclNetInit", 379, 326, 349
    NO_SUCH_ROOT = "misc/argcheck.cc", "ArgsCheck", 48, 156, 204
    NO_PREFIX = "graph/tuning.cc", "parseList", 71, 72, 73
    UNKNOWN_NAME = "graph/tuning.cc", "parseList", 104, 105, 109
    UNKNOWN_PREFIX = "graph/tuning.cc", "parseList", 114, 115, 119
    PEER_CLOSED = "misc/socket.cc", "socketProgress", 71, 35, 58
    CONNECTION_REFUSED = "os/linux.cc", "socketConnectCheck", 582, 221, 288
    MESSAGE_CUT = "transport/net_socket.cc", "ncclNetSocketTest", 565, 569, 636
    PEER_SILENT = "transport/net_ib/p2p.cc", "ncclIbLogCompletionWithError", 2543, 651, 688

    def __init__(self, file: str, function: str, *lines: int) -> None:
        self._file = file
        self._function = function
        self._lines = lines

    def shown_by(self, build: NcclBuild) -> str:
        """The place as a warning of this version shows it: "init.cc:974", or "init.cc:1057 (initTransportsRank)"."""
        file = _FIRST_FILES.get(self.name, self._file) if build is _BUILDS[0] else self._file
        place = f"{file}:{self._lines[_BUILDS.index(build)]}"
        return f"{place} ({self._function})" if build.names_functions else place

    @property
    def shown(self) -> str:
        """The place as a warning of this torch's NCCL shows it."""
        return self.shown_by(NCCL)
