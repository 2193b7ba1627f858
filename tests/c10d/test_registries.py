"""Each rank has its own registrations with torch: every rank may register something, and finds only its own."""

from __future__ import annotations

import dataclasses
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributions import Normal, kl_divergence
from torch.fx import _pytree as fx_pytree
from torch.nn.utils import parametrize
from torch.utils import _pytree
from torch.utils.data import IterDataPipe, functional_datapipe
from torch.utils.data.datapipes.iter import IterableWrapper

import simdist
from simdist.c10d.surface.state._registries import Registry as Tables
from simdist.process import current_runtime
from tests.c10d.worlds import values

trees: Any = _pytree
flattening: Any = fx_pytree
jit: Any = torch._jit_internal
torch_: Any = torch
optimizer: Any = sys.modules["torch.optim.optimizer"]
kl: Any = sys.modules["torch.distributions.kl"]
handlers: Any = sys.modules["torch.distributed.rendezvous"]


class Pair:
    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other


class Mine(Normal):
    pass


@dataclasses.dataclass
class Point:
    x: int
    y: int


def rank() -> int:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()


def type_as_tree() -> Any:
    scale = rank() + 1
    trees.register_pytree_node(
        Pair, lambda pair: ([pair.one * scale, pair.other], None), lambda leaves, _: Pair(*leaves)
    )
    dist.barrier()
    return trees.tree_leaves(Pair(1, 2))


def type_in_traced_programs() -> Any:
    scale = rank() + 1
    flattening.register_pytree_flatten_spec(Pair, lambda pair, _: [pair.one * scale, pair.other])
    dist.barrier()
    return flattening.SUPPORTED_NODES[Pair](Pair(1, 2), None)


def dataclass_as_tree() -> Any:
    fields = ["x", "y"] if rank() else ["y"]
    trees.register_dataclass(Point, field_names=fields, drop_field_names=["x"] if not rank() else [])
    dist.barrier()
    return trees.tree_leaves(Point(1, 2))


def pipe_of_data() -> Any:
    scale = rank() + 1

    @functional_datapipe("scaled_by_rank")
    class Scaled(IterDataPipe[int]):
        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[int]:
            return (each * scale for each in self.source)

    dist.barrier()
    pipe: Any = IterableWrapper([1, 2])
    return list(pipe.scaled_by_rank())


def declared(x: int) -> int:  # type: ignore[empty-body]
    pass


def overloads_of_a_function() -> Any:
    own = rank()
    for _ in range(own + 1):
        jit._overload(declared)
    dist.barrier()
    return len(jit._get_fn_overloads(jit._qualified_name(declared)))


def place_of_saved_tensors() -> Any:
    own = rank()
    torch_.serialization.register_package(5, lambda _: None, lambda *_: None)
    dist.barrier()
    return own, [each[0] for each in torch_.serialization._package_registry].count(5)


def handler_of_rendezvous() -> Any:
    own = rank()
    handlers.register_rendezvous_handler("mine", lambda url, **_: iter([(None, own, 2)]))
    dist.barrier()
    return next(iter(torch_.distributed.rendezvous("mine://")))[1]


def divergence() -> Any:
    own = rank()
    kl.register_kl(Mine, Mine)(lambda p, q: torch.tensor(float(own)))
    dist.barrier()
    return kl_divergence(Mine(0.0, 1.0), Mine(0.0, 1.0)).item()


def hooks_of_optimizers() -> Any:
    calls: list[int] = []
    own = rank()
    handle = optimizer.register_optimizer_step_post_hook(lambda *_: calls.append(own))
    dist.barrier()
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.1).step()
    dist.barrier()
    handle.remove()
    return calls


class Doubled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def cached_weights() -> Any:
    layer = torch.nn.Linear(1, 1)
    parametrize.register_parametrization(layer, "weight", Doubled())
    original: Any = layer.parametrizations["weight"].original  # type: ignore[index,union-attr]
    with torch.no_grad():
        original.fill_(1.0)
    own = rank()
    with parametrize.cached():
        dist.barrier()
        if own == 1:
            time.sleep(1)  # rank 0 has left its own context
        found = [layer.weight.item()]
    with torch.no_grad():
        original.fill_(2.0)
    if own == 0:
        found.append(layer.weight.item())
        original.detach().fill_(3.0)
    found.append(layer.weight.item())
    return found


def changes_of_saved_tensors() -> Any:
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        x = torch.ones(1, requires_grad=True)
        y = x.clone()
        z = y * y
        rank()
        dist.barrier()
        y.mul_(3)
        torch.autograd.backward(z)
    assert x.grad is not None
    return x.grad.item()


def conversion_of_modules() -> Any:
    own = rank()
    torch.__future__.set_swap_module_params_on_conversion(own == 1)
    dist.barrier()
    return torch.__future__.get_swap_module_params_on_conversion()


def validation() -> Any:
    own = rank()
    torch_.distributions.Distribution.set_default_validate_args(own == 1)
    dist.barrier()
    return torch_.distributions.Distribution._validate_args


@pytest.fixture(autouse=True)
def the_hosts() -> Iterator[None]:
    before = hosts_tables()
    yield
    assert hosts_tables() == before


def hosts_tables() -> list[Any]:
    return [
        [kind in tables.SUPPORTED_NODES for tables in (trees, flattening) for kind in (Pair, Point)],
        list(torch_.serialization._package_registry),
        dict(handlers._rendezvous_handlers),
        dict(kl._KL_REGISTRY),
        torch_.distributions.Distribution._validate_args,
    ]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "in two worlds"])
@pytest.mark.parametrize(
    ("program", "values"),
    [
        (type_as_tree, [[1, 2], [2, 2]]),
        (type_in_traced_programs, [[1, 2], [2, 2]]),
        (dataclass_as_tree, [[2], [1, 2]]),
        (pipe_of_data, [[1, 2], [2, 4]]),
        (overloads_of_a_function, [1, 2]),
        (place_of_saved_tensors, [(0, 1), (1, 1)]),
        (divergence, [0.0, 1.0]),
        (validation, [False, True]),
        (hooks_of_optimizers, [[0], [1]]),
        (cached_weights, [[2.0, 4.0, 6.0], [2.0, 4.0]]),
        (changes_of_saved_tensors, [2.0, 2.0]),
        (conversion_of_modules, [False, True]),
    ],
)
def test_each_rank_has_what_it_registered(program: Callable[[], Any], values: list[Any], times: int) -> None:
    for _ in range(times):
        result = simdist.run(program, world_size=2)

        result.raise_for_failure()
        assert result.values == values


def test_each_rank_may_register_a_rendezvous() -> None:
    assert values(handler_of_rendezvous, 2) == [0, 1]


def test_registering_twice_on_a_rank_is_refused_in_torchs_words() -> None:
    def twice() -> None:
        for _ in range(2):
            type_as_tree()

    result = simdist.run(twice, world_size=2)

    assert [str(each.exception) for each in result.ranks] == [f"{Pair} is already registered as pytree node."] * 2


def test_what_a_module_registers_when_it_is_imported_is_there_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers.py").write_text(
        "from torch.utils import _pytree\n"
        "from torch.distributions import Normal, register_kl\n"
        "class Box:\n    def __init__(self, inside): self.inside = inside\n"
        "class Other(Normal): pass\n"
        "parts, whole = lambda box: ([box.inside], None), lambda leaves, _: Box(*leaves)\n"
        "_pytree.register_pytree_node(Box, parts, whole, serialized_type_name='box')\n"
        "register_kl(Other, Other)(lambda p, q: 'imported')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> Any:
        type_as_tree()
        divergence()
        if rank() == 0:
            import registers  # type: ignore[import-not-found]
        dist.barrier()
        import registers

        other = registers.Other(0.0, 1.0)
        return trees.tree_leaves(registers.Box(3)), trees.tree_leaves(Pair(1, 2)), kl_divergence(other, other)

    result = simdist.run(program, world_size=2)
    module: types.ModuleType = sys.modules.pop("registers")

    result.raise_for_failure()
    assert result.values == [([3], [1, 2], "imported"), ([3], [2, 2], "imported")]
    assert trees.tree_leaves(vars(module)["Box"](4)) == [4]
    trees._deregister_pytree_node(vars(module)["Box"])
    del kl._KL_REGISTRY[vars(module)["Other"], vars(module)["Other"]]


class Registry:
    """Stands in for `optree`, which is rarely installed."""

    def __init__(self) -> None:
        self.types: dict[type, Any] = {}

    def register(self, cls: type, flatten_fn: Any, unflatten_fn: Any, **_: Any) -> None:
        if cls in self.types:
            raise ValueError(f"PyTree type {cls} is already registered")
        self.types[cls] = flatten_fn, unflatten_fn

    def unregister_pytree_node(self, cls: type, *, namespace: str) -> None:
        assert namespace == "torch"
        del self.types[cls]


def test_types_are_trees_of_each_rank_in_the_registry_of_cxx_too(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    module: Any = types.ModuleType("torch.utils._cxx_pytree")
    module._private_register_pytree_node, module.optree = registry.register, registry
    monkeypatch.setitem(sys.modules, "torch.utils._cxx_pytree", module)
    monkeypatch.setattr(torch_.utils, "_cxx_pytree", module, raising=False)
    for name in ("_cxx_pytree_exists", "_cxx_pytree_imported"):
        monkeypatch.setattr(trees, name, True)

    def program() -> Any:
        type_as_tree()
        flatten, unflatten = registry.types[Pair]
        refused = ""
        try:
            module._private_register_pytree_node(Pair, None, None)
        except ValueError as error:
            refused = str(error)
        return flatten(Pair(1, 2))[0], unflatten([3, 4], None).one, refused

    for _ in range(2):
        result = simdist.run(program, world_size=2)

        result.raise_for_failure()
        refused = f"PyTree type {Pair} is already registered"
        assert result.values == [([1, 2], 3, refused), ([2, 2], 3, refused)]
    assert registry.types == {}


def test_what_a_module_decorates_stays_what_it_is() -> None:
    # A decorator of torch's used to give back a partial, which kept the world for as long as torch's module.
    def body() -> tuple[bool, bool]:
        def register(name: str) -> Callable[[Any], Any]:
            def decorate(function: Any) -> Any:
                table[name] = function
                return function

            return decorate

        def rule() -> None: ...

        table: dict[str, Any] = {}
        runtime = current_runtime()
        assert runtime is not None
        decorate = Tables("table", [table]).write_for_all(runtime, register, "rule")
        return decorate(rule) is rule, table == {"rule": rule}

    assert simdist.run(body, world_size=1).values == [(True, True)]
