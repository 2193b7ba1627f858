"""The NCCL of each version of torch: its number, its lines, and how its warnings name them."""

from __future__ import annotations

import pytest

from simdist.inside.torch import NCCL, NcclPlace, nccl_build_of
from tests import builds


@pytest.mark.parametrize(
    ("version", "number", "cuda", "device", "card"),
    [
        ((2, 11), "2.28.9", "13.0", "init.cc:904", "transport/net_ib.cc:2543"),
        ((2, 12), "2.29.7", "13.2", "init.cc:974", "transport/net_ib/p2p.cc:651"),
        ((2, 13), "2.29.7", "13.2", "init.cc:974", "transport/net_ib/p2p.cc:651"),
        (
            (2, 14),
            "2.30.7",
            "13.3",
            "init.cc:1057 (initTransportsRank)",
            "transport/net_ib/p2p.cc:688 (ncclIbLogCompletionWithError)",
        ),
        (
            (2, 99),
            "2.30.7",
            "13.3",
            "init.cc:1057 (initTransportsRank)",
            "transport/net_ib/p2p.cc:688 (ncclIbLogCompletionWithError)",
        ),
    ],
)
def test_a_version_of_torch_has_its_own_nccl(
    version: tuple[int, int], number: str, cuda: str, device: str, card: str
) -> None:
    build = nccl_build_of(version)

    assert (str(build), build.cuda) == (number, cuda)
    assert NcclPlace.SAME_DEVICE.shown_by(build) == device
    assert NcclPlace.PEER_SILENT.shown_by(build) == card


def test_warnings_are_those_of_the_nccl_of_the_torch_that_is_here() -> None:
    assert str(NCCL) == builds.NCCL
    assert NcclPlace.NO_PREFIX.shown == NcclPlace.NO_PREFIX.shown_by(NCCL)


def test_each_place_has_a_line_for_each_version() -> None:
    assert {len(place.value) for place in NcclPlace} == {5}
