"""Operators of other libraries: those in C++ that a build for the CPU has run on virtual devices, too."""

from __future__ import annotations

import importlib.machinery
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from simdist.inside.torch import forget_operators
from tests.device.worlds import cuda, on_devices, values

_bindings: Any = torch._C
_in_cpp = _bindings._dispatch_library  # which no rank replaces
_ops: Any = torch.ops


def made_by(dispatch_library: Callable[..., Any], space: str = "simdist_tests") -> Any:
    """What the dispatcher takes for a library in C++: it goes by the file where the kernels were registered."""
    made = dispatch_library("FRAGMENT", space, "", "kernels.cpp", 1)
    made.define("add_one(Tensor self, Tensor other) -> Tensor", "", [])
    made.define("add_one_(Tensor(a!) self) -> Tensor(a!)", "", [])
    made.define("both(Tensor self) -> (Tensor, Tensor)", "", [])
    made.define("composed(Tensor self) -> Tensor", "", [])
    made.impl("composed", "CompositeImplicitAutograd", lambda self: self * 2)
    made.impl("composed", "CPU", lambda self: self * 3)
    made.impl("add_one", "CPU", lambda self, other: self + other.sum() + 1)
    made.impl("add_one_", "CPU", lambda self: self.add_(1))
    made.impl("both", "CPU", lambda self: (self - 1, self + 1))
    _ops.loaded_libraries.add("kernels.cpp")  # as `torch.ops.load_library` does
    return made


def end(made: Any, space: str = "simdist_tests") -> None:
    _ops.loaded_libraries.discard("kernels.cpp")
    made.reset()
    forget_operators([f"{space}::{name}" for name in ("add_one", "add_one_", "both", "composed")])


@pytest.fixture
def library() -> Iterator[Any]:
    made = made_by(_bindings._dispatch_library)
    yield made
    end(made)


def added(space: str = "simdist_tests") -> list[Any]:
    operators = getattr(_ops, space)
    tensor = torch.zeros(2, device="cuda:1")
    made = operators.add_one(tensor, torch.ones(3))
    changed = operators.add_one_(tensor)
    both = operators.both(tensor)
    devices = {str(each.device) for each in (made, changed, *both)}
    return [made.tolist(), changed is tensor, tensor.tolist(), [each.tolist() for each in both], devices]


ADDED = [[4.0, 4.0], True, [1.0, 1.0], [[0.0, 0.0], [2.0, 2.0]], {"cuda:1"}]


def test_its_operators_run_on_devices(library: Any) -> None:
    assert values(added) == [ADDED]


def test_one_that_is_composed_of_others_stays_so_on_devices(library: Any) -> None:
    def body() -> list[float]:
        tensor = torch.ones(2, device="cuda", requires_grad=True)
        _ops.simdist_tests.composed(tensor).sum().backward()
        assert tensor.grad is not None
        return tensor.grad.tolist()

    assert values(body) == [[2.0, 2.0]]


def loads_it() -> None:
    _ops.load_library("library")


def imports_it() -> None:
    loader = importlib.machinery.ExtensionFileLoader("library", "library.so")
    loader.exec_module(types.ModuleType("library"))


@pytest.mark.parametrize("load", [loads_it, imports_it])
def test_so_do_those_of_a_library_that_a_rank_loads(
    load: Callable[[], None], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader: Any = importlib.machinery.ExtensionFileLoader
    executes = loader.exec_module

    def registers(*_: object) -> None:
        request.getfixturevalue("library")

    def registers_library(self: Any, module: types.ModuleType) -> None:
        registers() if module.__name__ == "library" else executes(self, module)

    monkeypatch.setattr(type(torch.ops), "load_library", registers)
    monkeypatch.setattr(loader, "exec_module", registers_library)

    def body() -> list[Any]:
        load()
        return added()

    assert values(body) == [ADDED]


def test_those_that_a_rank_has_loaded_run_in_the_next_world_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made, space = [], "simdist_tests_of_a_rank"
    monkeypatch.setattr(type(torch.ops), "load_library", lambda *_: made.append(made_by(_in_cpp, space)))

    def loads() -> list[Any]:
        loads_it()
        return added(space)

    def does_not() -> list[Any]:
        return added(space)

    try:
        assert [values(loads), values(does_not)] == [[ADDED], [ADDED]]
    finally:
        end(made[0], space)


def in_python(key: str) -> Callable[[torch.Tensor], torch.Tensor]:
    @torch.library.custom_op(f"simdist_tests::of_{key}", mutates_args=(), device_types=key)
    def operator(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1

    return operator


@on_devices
def test_what_python_registers_for_the_cpu_alone_is_refused_as_on_a_gpu() -> None:
    tensor = torch.zeros(2, device=cuda(1))

    assert in_python("cuda")(tensor).tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError, match=r"Could not run 'simdist_tests::of_cpu' with arguments from"):
        in_python("cpu")(tensor)
