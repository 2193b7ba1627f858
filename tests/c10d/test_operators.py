"""Operators that a rank defines with `torch.library` belong to it alone, and are gone when the world has ended."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values

ops: Any = torch.ops
library: Any = torch.library
kept: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    kept.clear()
    assert not hasattr(ops.simdist_tests, "scale")


def rank() -> int:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def decorated() -> Any:
    factor = rank() + 1

    def times(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    scale = library.custom_op("simdist_tests::scale", times, mutates_args=())
    scale.register_fake(lambda x: torch.empty(factor))
    scale.register_autograd(lambda ctx, grad: grad * 10 * factor)
    dist.barrier()
    x = torch.ones(1, requires_grad=True)
    result = ops.simdist_tests.scale(x)
    dist.barrier()
    result.backward()
    assert x.grad is not None
    return result.item(), x.grad.item(), ops.simdist_tests.scale(torch.ones(1, device="meta")).numel()


def in_a_library(kind: str) -> Callable[[], Any]:
    def program() -> Any:
        own = rank()
        made = library.Library("simdist_tests", kind)
        kept.append(made)
        made.define("scale(Tensor x) -> Tensor")
        made.impl("scale", lambda x: x * (own + 1), "CPU")
        dist.barrier()
        return ops.simdist_tests.scale(torch.ones(1)).item()

    return program


def decomposed() -> Any:
    own = rank()
    library.define("simdist_tests::scale", "(Tensor x) -> Tensor")
    decomp: Any = importlib.import_module("torch._decomp")
    decomp.register_decomposition(ops.simdist_tests.scale)(lambda x: x * (own + 1))
    dist.barrier()
    return decomp.decomposition_table[ops.simdist_tests.scale.default](torch.ones(1)).item()


def decomposed_for_the_compiler() -> Any:
    own = rank()
    library.define("simdist_tests::scale", "(Tensor x) -> Tensor")
    decomp: Any = importlib.import_module("torch._inductor.decomposition")
    decomp.register_decomposition([ops.simdist_tests.scale])(lambda x: x * (own + 1))  # torchao does so
    dist.barrier()
    return decomp.decompositions[ops.simdist_tests.scale.default](torch.ones(1)).item()


def by_functions() -> Any:
    own = rank()
    library.define("simdist_tests::scale", "(Tensor x) -> Tensor")
    library.impl("simdist_tests::scale", "cpu", lambda x: x * (own + 1))
    dist.barrier()
    return ops.simdist_tests.scale(torch.ones(1)).item()


@pytest.mark.parametrize(
    ("program", "values"),
    [
        (decorated, [(1.0, 10.0, 1), (2.0, 20.0, 2)]),
        (in_a_library("DEF"), [1.0, 2.0]),
        (in_a_library("FRAGMENT"), [1.0, 2.0]),
        (by_functions, [1.0, 2.0]),
        (decomposed, [1.0, 2.0]),
        (decomposed_for_the_compiler, [1.0, 2.0]),
    ],
    ids=["custom_op", "DEF", "FRAGMENT", "define", "decomposition", "inductor"],
)
def test_each_rank_calls_what_it_defined_in_one_world_and_the_next(program: Callable[[], Any], values: Any) -> None:
    for _ in range(2):
        result = simdist.run(program, world_size=2)

        result.raise_for_failure()
        assert result.values == values


def test_a_rank_that_defines_one_twice_is_refused_in_torchs_words() -> None:
    def program() -> None:
        rank()
        for _ in range(2):
            library.define("simdist_tests::scale", "(Tensor x) -> Tensor")

    result = simdist.run(program, world_size=2)

    words = "Tried to register an operator (simdist_tests::scale(Tensor x) -> Tensor) with the same name"
    assert [words in str(each.exception) for each in result.ranks] == [True, True]


def test_a_namespace_is_defined_once_on_each_rank() -> None:
    def program() -> None:
        rank()
        kept.extend(library.Library("simdist_tests", "DEF") for _ in range(2))

    result = simdist.run(program, world_size=2)

    assert ["Only a single TORCH_LIBRARY" in str(each.exception) for each in result.ranks] == [True, True]


def test_a_namespace_that_a_rank_destroys_can_be_defined_again() -> None:
    def program() -> list[float]:
        me = rank()
        found = []
        for factor in (2.0, 3.0):
            made = library.Library("simdist_tests", "DEF")
            made.define("scale(Tensor x) -> Tensor")
            made.impl("scale", lambda x, factor=factor: x * factor, "CPU")
            dist.barrier()
            found.append(ops.simdist_tests.scale(torch.ones(1)).item())
            if me == 0:
                dist.barrier()
            made._destroy()
            if me == 1:  # rank 0's is gone, and this one is not
                dist.barrier()
        return found

    assert values(program, 2) == [[2.0, 3.0]] * 2


def test_other_schemas_of_one_name_are_refused() -> None:
    def program() -> None:
        kind = "Tensor" if rank() else "int"
        library.define("simdist_tests::scale", f"({kind} x) -> Tensor")

    result = simdist.run(program, world_size=2)

    assert result.ranks[0].exception is None
    assert str(result.ranks[1].exception) == (
        "rank 1 defines the operator simdist_tests::scale as 'scale(Tensor x) -> Tensor', and another rank as "
        "'scale(int x) -> Tensor': ranks share torch's table of operators; use names of their own"
    )


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_an_operator_of_torchs_own_changes_only_where_a_rank_has_said_so() -> None:
    def program() -> Any:
        if rank() == 0:
            mine = library.Library("aten", "IMPL")
            kept.append(mine)
            mine.impl("erfinv", lambda x: x + 41, "CPU")
        dist.barrier()
        return torch.ones(1).mul(0).erfinv().item()

    assert values(program, 2) == [41.0, 0.0]
    assert torch.zeros(1).erfinv().item() == 0.0


def test_a_library_that_a_rank_lets_go_of_takes_only_its_own_kernel_along() -> None:
    def program() -> Any:
        own = rank()
        with library._scoped_library("simdist_tests", "FRAGMENT") as made:
            made.define("scale(Tensor x) -> Tensor")
            made.impl("scale", lambda x: x * (own + 1), "CPU")
            dist.barrier()
            if own == 1:
                time.sleep(1)  # rank 0 has gone on
            return ops.simdist_tests.scale(torch.ones(1)).item()

    assert values(program, 2) == [1.0, 2.0]


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_that_a_rank_passes_by_is_back_when_its_library_is_gone() -> None:
    def program() -> list[bool]:
        found = []
        with library._scoped_library("aten", "IMPL") as scoped:
            scoped.impl("add.Tensor", library.fallthrough_kernel, "CPU")
            found.append("[ fallthrough" in torch._C._dispatch_dump("aten::add.Tensor").split("\nCPU", 1)[1][:200])
        found.append("[ fallthrough" in torch._C._dispatch_dump("aten::add.Tensor").split("\nCPU", 1)[1][:200])
        return found

    assert values(program, 1) == [[True, False]]


def test_a_script_may_define_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "defines.py").write_text(
        "import os, torch\n"
        "lib = torch.library.Library('simdist_tests', 'DEF')\n"
        "lib.define('scale(Tensor x) -> Tensor')\n"
        "@torch.library.impl(lib, 'scale', 'CPU')\n"
        "def scale(x): return x * (int(os.environ['RANK']) + 1)\n"
        "def main(): return torch.ops.simdist_tests.scale(torch.ones(1)).item()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> Any:
        import defines  # type: ignore[import-not-found]

        return defines.main()

    assert values(program, 2, isolate=True) == [1.0, 2.0]
