"""Operators of libraries: what a build for the CPU has in C++ runs on devices, as that of a build for CUDA would."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.device.worlds import values

SOURCE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

static torch::stable::Tensor copied(const torch::stable::Tensor& given) { return torch::stable::clone(given); }

STABLE_TORCH_LIBRARY(SPACE, library) { library.def("copied(Tensor given) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(SPACE, CPU, library) { library.impl("copied", TORCH_BOX(&copied)); }
"""


NUMBERS = itertools.count()  # a library stays loaded, and each has operators of its own


def compiled(folder: Path) -> tuple[str, str]:
    """A library of one operator in C++, which only the CPU has a kernel for; and the namespace of the operator."""
    space = f"simdist_test_{next(NUMBERS)}"
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler")
    source, library = folder / "library.cpp", folder / f"{space}.so"
    source.write_text(SOURCE)
    home = Path(str(torch.__file__)).parent
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-DSPACE={space}", f"-I{home / 'include'}", str(source)]
    command += [f"-I{home / 'include/torch/csrc/api/include'}", f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    subprocess.run([*command, "-o", str(library)], check=True, capture_output=True)
    return str(library), space


def test_an_operator_of_a_library_that_a_rank_loads_runs_on_devices(tmp_path: Path) -> None:
    library, space = compiled(tmp_path)

    def body() -> tuple[str, list[float]]:
        torch.ops.load_library(library)
        copy = getattr(torch.ops, space).copied(torch.ones(2, device="cuda:1"))
        return str(copy.device), copy.tolist()

    assert values(body, world_size=2) == [("cuda:1", [1.0, 1.0])] * 2


def test_so_does_that_of_one_that_was_loaded_before(tmp_path: Path) -> None:
    library, space = compiled(tmp_path)
    torch.ops.load_library(library)

    def body() -> str:
        return str(getattr(torch.ops, space).copied(torch.ones(2, device="cuda")).device)

    assert values(body) == ["cuda:0"]


def test_an_operator_of_python_has_the_devices_that_it_names() -> None:
    def body() -> None:
        @torch.library.custom_op("simdist_test_of_python::copied", mutates_args=(), device_types="cpu")
        def copied(given: torch.Tensor) -> torch.Tensor:
            return given.clone()

        copied(torch.ones(2, device="cuda"))

    with pytest.raises(NotImplementedError, match="'CUDA' backend"):
        values(body)
