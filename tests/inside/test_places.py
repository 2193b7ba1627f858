"""Texts name the files of torch, Gloo and NCCL like the installed torch, with the lines of its version."""

from __future__ import annotations

import re

import pytest
import torch

from simdist.inside.torch import Place, _places, core_bindings
from tests.builds import VERSION

FILE = re.compile(r'torch/csrc/[^"]*":\d+')


COLUMN = [(2, 11), (2, 12), (2, 13), (2, 14), (2, 15)].index(VERSION) if VERSION < (2, 15) else 4


def test_a_place_in_a_log_is_a_file_and_the_line_of_the_torch_that_is_here() -> None:
    assert str(Place.WORK_TIMED_OUT) == f"ProcessGroupNCCL.cpp:{(689, 757, 730, 741, 738)[COLUMN]}"
    assert str(Place.OLD_TRUTH) == "Utils.hpp:166"
    assert Place.PAIR_CLOSED.path.endswith(f"/pair.cc:{(547, 547, 553, 561, 561)[COLUMN]}")


def test_each_place_has_one_line_or_one_for_each_version_that_has_the_text() -> None:
    ended = {place.name: len(place.value) - 1 for place in Place if len(place.value) - 1 not in (1, 5)}

    assert ended == {"MONITOR_HAS_NO_STORE": 3, "RECORD_STREAMS_IS_OLD": 4}
    assert Place.MONITOR_HAS_NO_STORE.is_there == (VERSION < (2, 14))
    assert Place.RECORD_STREAMS_IS_OLD.is_there == (VERSION < (2, 15))
    assert Place.OLD_TRUTH.is_there


def test_nccl_is_that_of_a_torch_for_cuda() -> None:
    place = Place.CALL_FAILED

    assert place.path_for_cuda.startswith("/pytorch/torch/" if VERSION < (2, 13) else "/__w/pytorch/pytorch/torch/")
    assert torch.version.cuda is None or place.path_for_cuda == place.path


def test_an_assertion_reads_as_torchs_own_with_the_folder_it_was_built_in() -> None:
    with pytest.raises(RuntimeError) as real:
        core_bindings._functorch.current_level()
    said = Place.NO_OPERATION.asserts("maybe_layer.has_value()", "")

    assert FILE.sub("", said) == FILE.sub("", str(real.value))


def test_gloo_is_built_with_torch() -> None:
    folder = Place.NO_OPERATION.path.partition("/torch/csrc/")[0]

    assert Place.RANK_IS_TOO_LARGE.path == f"{folder}/third_party/gloo/gloo/context.cc:23"


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.11.0", (2, 13)), ("2.13.0+cpu", (2, 13)), ("2.14.1", (2, 13)), ("2.15.0", (2, 15)), ("3.0.0", (2, 15))],
)
def test_lines_are_those_of_the_newest_known_version_that_is_not_newer(
    version: str, known: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)

    assert _places.newest([(2, 13), (2, 15)], _places.this_version()) == known
