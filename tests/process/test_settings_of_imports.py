"""What a library that all ranks share sets in its process while one rank imports it, it sets for all of them."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from simdist.process.children import _multiprocessing
from simdist.process.stdlib import _environ

NAME = "library_with_settings"
Import = Callable[[], object]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Import]]:
    """Write a library of which nobody has imported anything; returns what imports it."""

    def write(text: str) -> Import:
        (tmp_path / f"{NAME}.py").write_text(textwrap.dedent(text))
        return lambda: importlib.import_module(NAME)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    sys.modules.pop(NAME, None)


def run(body: Callable[[], Any], **settings: Any) -> list[Any]:
    result = simdist.run(body, world_size=2, isolate=True, share=[NAME], **settings)
    result.raise_for_failure()
    return result.values


def test_variables_of_the_environment_are_set_for_all(
    library: Callable[[str], Import], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_environ, "_of_imports", {})
    imports = library("""
        import os
        os.environ.setdefault("NEW", "1")
        os.environ["NEW"] += "2"
        os.environ["OWN"] = "of the library"
        del os.environ["GONE"]
    """)

    def body() -> list[str | None]:
        rank = os.environ["RANK"]
        if rank == "1":
            os.environ["OWN"] = "of rank 1"
        simdist.step(0)
        imports()
        child = multiprocessing.get_context("fork").Pool(1)
        found = [os.environ.get(name) for name in ("NEW", "OWN", "GONE")]
        assert child.apply(os.getenv, ("NEW",)) == "12"
        child.terminate()
        return found

    for _ in range(2):  # in the first world a rank imports the library
        assert run(body, env={"GONE": "?"}) == [["12", "of the library", None], ["12", "of rank 1", None]]
    assert not {"NEW", "OWN"} & set(os.environ)


def test_the_start_method_is_chosen_for_all(library: Callable[[str], Import], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_multiprocessing, "_chosen_by_import", None)
    imports = library("""
        import multiprocessing
        multiprocessing.set_start_method("spawn")
    """)
    before = multiprocessing.get_start_method(allow_none=True)

    def body() -> tuple[str, str]:
        imports()
        chosen = multiprocessing.get_start_method()
        if os.environ["RANK"] == "0":
            multiprocessing.set_start_method("fork", force=True)
        return chosen, multiprocessing.get_start_method()

    for _ in range(2):
        assert run(body) == [("spawn", "fork"), ("spawn", "spawn")]
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_settings_that_a_rank_has_for_itself_already_are_set_for_all(library: Callable[[str], Import]) -> None:
    imports = library("""
        import torch
        torch.set_printoptions(precision=7)
    """)

    def body() -> tuple[int, int]:
        options = vars(torch._tensor_str)["PRINT_OPTS"]
        if os.environ["RANK"] == "1":
            torch.set_printoptions(precision=2, linewidth=50)  # type: ignore[no-untyped-call]
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        imports()
        torch.distributed.barrier()
        return options.precision, options.linewidth

    before = dict(vars(vars(torch._tensor_str)["PRINT_OPTS"]))
    try:
        assert run(body) == [(7, 80), (7, 50)]
    finally:
        vars(vars(torch._tensor_str)["PRINT_OPTS"]).update(before)


def test_a_setting_that_is_refused_leaves_every_process_its_own(library: Callable[[str], Import]) -> None:
    imports = library("""
        import sys
        try:
            sys.setrecursionlimit(-1)
        except ValueError:
            pass
    """)

    def body() -> list[int]:
        own = sys.getrecursionlimit() + 100 + int(os.environ["RANK"])
        sys.setrecursionlimit(own)
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        imports()
        torch.distributed.barrier()
        return [own, sys.getrecursionlimit()]

    before = sys.getrecursionlimit()
    assert run(body) == [[before + 100] * 2, [before + 101] * 2]
    assert sys.getrecursionlimit() == before
