"""Texts name the files of torch, Gloo and NCCL as the torch does that is here, and lines by its version."""

from __future__ import annotations

import re

import pytest
import torch

from simdist.inside.torch import Place, _places, core_bindings
from tests.builds import VERSION

FILE = re.compile(r'torch/csrc/[^"]*":\d+')


def test_a_place_in_a_log_is_a_file_and_a_line() -> None:
    assert str(Place.WORK_TIMED_OUT) == "ProcessGroupNCCL.cpp:693"
    assert str(Place.OLD_TRUTH) == "Utils.hpp:166"


def test_a_line_that_moved_is_that_of_the_torch_that_is_here() -> None:
    assert Place.PAIR_CLOSED.path.endswith("/pair.cc:561" if VERSION >= (2, 14) else "/pair.cc:553")


def test_nccl_names_its_files_from_its_sources_on() -> None:
    assert Place.PEER_SILENT.in_sources == "transport/net_ib/p2p.cc:651"


def test_nccl_is_that_of_a_torch_for_cuda() -> None:
    place = Place.CALL_FAILED

    assert place.path_for_cuda.endswith("/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94")
    assert torch.version.cuda is None or place.path_for_cuda == place.path


def test_an_assertion_reads_as_torchs_own_and_names_the_folder_in_which_torch_was_built() -> None:
    with pytest.raises(RuntimeError) as real:
        core_bindings._functorch.current_level()
    said = Place.NO_OPERATION.asserts("maybe_layer.has_value()", "")

    assert FILE.sub("", said) == FILE.sub("", str(real.value))


def test_gloo_is_built_with_torch() -> None:
    folder = Place.NO_OPERATION.path.removesuffix("/torch/csrc/distributed/c10d/ProcessGroup.cpp:59")

    assert Place.RANK_IS_TOO_LARGE.path == f"{folder}/third_party/gloo/gloo/context.cc:23"


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.11.0", (2, 13)), ("2.13.0+cpu", (2, 13)), ("2.14.1", (2, 13)), ("2.15.0", (2, 15)), ("3.0.0", (2, 15))],
)
def test_lines_are_those_of_the_newest_known_version_that_is_not_newer(
    version: str, known: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)

    assert _places._newest([(2, 13), (2, 15)]) == known
