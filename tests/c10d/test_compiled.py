"""Each rank has its own compiled code: a value that dynamo takes for constant on one rank does not affect others."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._dynamo import eval_frame
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.cluster import build
from simdist.errors import UnsupportedError
from tests.c10d.worlds import values

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's warnings about itself


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler, so that no test compiles less because another one ran before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def whose(x: torch.Tensor) -> torch.Tensor:
    """Add the rank, or a hundred if there is no group."""
    return x + (dist.get_rank() if dist.is_initialized() else 100)


def in_group(function: Any, *tensors: torch.Tensor) -> Callable[[], list[float]]:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        found = [function(tensor.clone()).sum().item() for tensor in tensors]
        dist.barrier()
        return found + [function(tensor.clone()).sum().item() for tensor in tensors]

    return body


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_rank_is_the_rank_s_own(backend: str) -> None:
    compiled = torch.compile(whose, backend=backend)

    found = values(in_group(compiled, torch.zeros(1)), 2)

    assert found == [[0.0, 0.0], [1.0, 1.0]]


def test_neither_the_host_nor_an_earlier_world_lends_its_code() -> None:
    compiled = torch.compile(whose, backend="eager")

    before = compiled(torch.zeros(1)).item()
    first = values(in_group(compiled, torch.zeros(1)), 2)
    second = values(in_group(compiled, torch.zeros(1)), 9)
    after = compiled(torch.zeros(1)).item()

    assert (before, after) == (100, 100)
    assert first == [[0.0, 0.0], [1.0, 1.0]]
    assert second == [[float(rank)] * 2 for rank in range(9)]  # more than dynamo allows one process to compile


def test_each_rank_compiles_as_often_as_a_process_does() -> None:
    compiles = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return graph.forward

    compiled = torch.compile(whose, backend=count, dynamic=False)
    shapes = [torch.zeros(size) for size in (2, 3, 4)]

    values(in_group(compiled, *shapes), 2)

    assert compiles == 2 * len(shapes)


def test_ddp_compiles_and_trains_as_it_does_uncompiled() -> None:
    def train(compile_it: bool) -> list[torch.Tensor]:
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1)
        )
        model = DistributedDataParallel(layers)
        called: Any = torch.compile(model, backend="eager") if compile_it else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            data = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            called(data).square().sum().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    compiled, plain = (simdist.run(train, world_size=2, args=(flag,)) for flag in (True, False))
    compiled.raise_for_failure()

    for rank in range(2):
        for mine, theirs in zip(compiled.values[rank], plain.values[rank], strict=True):
            assert torch.equal(mine, theirs)


def test_collectives_in_compiled_code_reach_the_group() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")

        @torch.compile(backend="eager")
        def step(x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            everyone = torch.empty(2 * len(x))
            dist.all_gather_into_tensor(everyone, x + dist.get_rank())
            return everyone

        result: list[float] = step(torch.ones(2)).tolist()
        return result

    assert values(body, 2) == [[2.0, 2.0, 3.0, 3.0]] * 2


def test_compiled_code_asks_a_group_of_several_backends_for_its_rank() -> None:
    def body() -> float:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        compiled = torch.compile(lambda x, group: x + group.rank() + group.size(), backend="eager", fullgraph=True)
        return float(compiled(torch.zeros(1), dist.group.WORLD).item())

    assert values(body, 2, cluster=build(2, devices_per_host=2)) == [2.0, 3.0]


def test_nothing_of_it_is_left() -> None:
    from torch._dynamo import convert_frame, trace_rules
    from torch._dynamo import eval_frame as python_side

    compiled = torch.compile(whose, backend="eager")
    watched = [
        (eval_frame, "set_eval_frame_isolate_recompiles_id"),
        (python_side, "set_eval_frame_isolate_recompiles_id"),
        (convert_frame, "compile_lock"),
        (convert_frame, "_get_total_cache_entry_count"),
        (trace_rules, "SKIP_DIRS"),
        (trace_rules, "SKIP_DIRS_RE"),
    ]
    before = [getattr(owner, name) for owner, name in watched]

    values(in_group(compiled, torch.zeros(1)), 2)

    assert [getattr(owner, name) for owner, name in watched] == before
    assert eval_frame.get_eval_frame_isolate_recompiles_id() == -1
    assert eval_frame._get_total_cache_entry_count(whose.__code__) == 0


def test_what_dynamo_logs_counts_from_0_on_each_rank_and_in_each_world() -> None:
    def main() -> list[str]:
        dist.init_process_group("gloo")
        for _ in range(2):
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        convert = importlib.import_module("torch._dynamo.convert_frame")
        return [str(convert.FRAME_COUNTER), str(sorted(convert.FRAME_COMPILE_COUNTER.values()))]

    torch.compile(lambda x: x - 1, backend="eager")(torch.ones(1))
    convert = importlib.import_module("torch._dynamo.convert_frame")
    before = convert.FRAME_COUNTER

    worlds = [simdist.run(main, world_size=2) for _ in range(2)]

    assert worlds[0].values == worlds[1].values
    assert worlds[0].digest == worlds[1].digest
    assert before == convert.FRAME_COUNTER > 0


@pytest.mark.skipif(not hasattr(torch._dynamo.eval_frame, "_in_optimized_module"), reason="torch 2.13 asks for it")
def test_only_the_rank_that_is_inside_a_compiled_module_is() -> None:
    inside = torch._dynamo.eval_frame._is_in_optimized_module
    seen: list[tuple[int, bool]] = []

    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            return x

    def body() -> bool:
        dist.init_process_group("gloo")
        if dist.get_rank() == 2:
            dist.all_reduce(torch.zeros(1))
            seen.append((2, inside()))
        else:
            torch.compile(Sums(), backend="eager")(torch.ones(1))
        return inside()

    assert values(body, 3) == [False, False, False]
    assert seen == [(2, False)]
    assert not inside()


def test_compiled_messages_go_one_by_one_and_in_batches_as_over_real_gloo() -> None:
    def shift(sent: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        to, by = (rank + 1) % size, (rank - 1) % size
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, first, by)]):
            work.wait()
        works = dist.isend(first, to), dist.irecv(second, by)
        for each in works:
            each.wait()  # type: ignore[union-attr]  # None is for ranks outside the group
        return first + second

    def body() -> list[float]:
        dist.init_process_group("gloo")
        settings: Any = torch._dynamo.config
        settings.enable_p2p_compilation = True
        tensors = torch.full((2,), 10.0 ** dist.get_rank()), torch.zeros(2), torch.zeros(2)
        found: list[float] = torch.compile(shift, backend="eager", fullgraph=True)(*tensors).tolist()
        return found

    assert values(body, 3) == [[110.0, 110.0], [101.0, 101.0], [11.0, 11.0]]


def test_a_batch_of_messages_names_an_operation_that_it_does_not_have() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        torch.compile(torch.neg, backend="eager")(torch.zeros(1))
        ops: Any = torch.ops._c10d_functional
        with pytest.raises(RuntimeError, match="Unsupported async op broadcast"):
            ops.batch_p2p_ops(["broadcast"], [0], [0], [torch.ones(1)], "0")
        with pytest.raises(RuntimeError):  # torch's own check, without a text
            ops.batch_p2p_ops(["isend"], [0], [], [torch.ones(1)], "0")

    values(body, 1)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Compute something in one graph."""
    return (x * 2).sum()


def stopped(x: torch.Tensor, *, far: bool) -> torch.Tensor:
    """Compute something in two graphs."""
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2 if far else x


def learned() -> Any:
    """Return the graphs that dynamo compiles as shapes change, and its counts."""
    import torch._dynamo.utils as reported

    graphs: list[Any] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        shapes = [tuple(map(str, each.shape)) if isinstance(each, torch.Tensor) else str(each) for each in inputs]
        graphs.append((str(torch._guards.CompileContext.current_compile_id()), shapes))
        return graph

    compiled, parts = torch.compile(doubled, backend=backend), torch.compile(stopped, backend=backend)
    for size in (3, 4, 5, 3):
        compiled(torch.ones(size))
    for size in (2, 6):
        parts(torch.ones(size), far=size > 3)
    counted = dict(reported.counters["stats"]), sum(reported.counters["graph_break"].values())
    kept = len(reported.guard_failures), len(reported.graph_break_reasons), reported.op_count
    torch._dynamo.reset()
    compiled(torch.ones(7))
    return graphs, counted, kept


# The result in a separate process (torch 2.13, Python 3.11 to 3.13).
ALONE = (
    [
        *(("0/0", [("3",)]), ("0/1", ["s77", ("4",)])),
        *(("1/0", [("2",)]), ("1/1", ["s77", ("6",)])),
        ("0/0", [("7",)]),
    ],
    ({"calls_captured": 6, "unique_graphs": 4}, 2),
    (2, 2, 6),
)


def test_each_rank_learns_from_its_own_calls_only() -> None:
    def body(apart: int) -> Any:
        dist.init_process_group("gloo")
        time.sleep(apart * dist.get_rank())
        said = learned()
        dist.barrier()
        return said

    for apart in (0, 10):  # together, and one after the other in a second world
        assert values(lambda apart=apart: body(apart), 2) == [ALONE] * 2


def test_a_rank_that_resets_its_compiler_leaves_the_others_theirs() -> None:
    compiled = torch.compile(doubled, backend="eager")

    def body() -> int:
        dist.init_process_group("gloo")
        compiled(torch.ones(3))
        counts: Any = torch._dynamo.utils.counters["stats"]
        dist.barrier()
        if dist.get_rank() == 0:
            torch._dynamo.reset()
        dist.barrier()
        compiled(torch.ones(3))
        return int(counts["unique_graphs"])

    assert values(body, 2) == [2, 1]


def test_a_backward_pass_is_compiled_for_the_rank_that_wants_it() -> None:
    backward: Any = importlib.import_module("torch._dynamo.compiled_autograd")

    def body() -> Any:
        dist.init_process_group("gloo")
        rank, compiled = dist.get_rank(), []

        def compiler(graph: Any) -> Any:
            compiled.append(rank)
            return graph

        def step(size: int) -> None:
            x = torch.ones(size, requires_grad=True)
            loss: Any = (x * 2).sum()
            loss.backward()

        time.sleep(rank)
        if rank == 2:
            step(5)
            return compiled, backward.depth, backward.compiled_autograd_enabled
        with backward._enable(compiler):
            time.sleep(10)  # the other rank enters the context meanwhile, and leaves it later
            step(3 + rank)
            inside = backward.depth, backward.compiled_autograd_enabled
        step(7)
        return compiled, inside, (backward.depth, backward.compiled_autograd_enabled)

    found = values(body, 3)

    assert found[0] == ([0], (1, True), (0, False))
    assert found[1][1:] == ((1, True), (0, False))
    assert found[1][0] == [1]
    assert found[2] == ([], 0, False)
    assert (backward.depth, backward.compiled_autograd_enabled) == (0, False)
    assert torch._C._dynamo.compiled_autograd.set_autograd_compiler(None, False) == (None, False)


def compiled_steps(compiled: list[int], hook: Any = None) -> None:
    """Do three backward passes, which are alike on all ranks."""
    backward: Any = importlib.import_module("torch._dynamo.compiled_autograd")

    def compiler(graph: Any) -> Any:
        compiled.append(dist.get_rank())
        return graph

    with backward._enable(compiler):
        for _ in range(3):
            x: Any = torch.ones(3, requires_grad=True)
            if hook is not None:
                x.register_post_accumulate_grad_hook(hook)
            (x * 2).sum().backward()


def test_each_rank_compiles_a_backward_pass_that_is_alike_on_all() -> None:
    counters = importlib.import_module("torch._dynamo.utils").counters

    def body() -> tuple[list[int], int]:
        dist.init_process_group("gloo")
        compiled: list[int] = []
        time.sleep(dist.get_rank())
        compiled_steps(compiled)
        return compiled, counters["compiled_autograd"]["captures"]

    for _ in range(2):  # a second world begins with nothing
        found = values(body, 3)

        assert [each[0] for each in found] == [[0], [1], [2]]
    assert torch._C._dynamo.compiled_autograd.is_cache_empty()


def test_a_rank_that_forgets_compiled_backwards_leaves_the_others_theirs() -> None:
    backward: Any = importlib.import_module("torch._dynamo.compiled_autograd")

    def body() -> list[int]:
        dist.init_process_group("gloo")
        compiled: list[int] = []
        compiled_steps(compiled)
        dist.barrier()
        if dist.get_rank() == 0:
            backward.reset()
        dist.barrier()
        compiled_steps(compiled)
        return compiled

    assert values(body, 2) == [[0, 0], [1]]


def test_a_compiled_backward_while_another_rank_waits_in_one_is_refused() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        try:
            compiled_steps([], lambda tensor: dist.all_reduce(tensor.grad))
        except UnsupportedError as error:
            return str(error)
        except RuntimeError:
            return "the other one is gone"
        return ""

    assert values(body, 2) == [
        "the other one is gone",
        "rank 1: a compiled backward pass begins while rank 0 waits in its own (torch._dynamo.compiled_autograd); "
        "torch runs one at a time in a process, and simdist's ranks share one, with isolate=True too; run it without "
        "compiled autograd, or on real processes (simdist run --real gloo)",
    ]
