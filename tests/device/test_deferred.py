"""Kernels that read tensors which a collective still fills: the host goes on, and they run when the data is there."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional as F  # the usual name
from torch.overrides import TorchFunctionMode

import simdist
from simdist.cluster import build
from simdist.device.kernels._deferred import Deferred

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Tensor = torch.Tensor
LATE_S = 2.0
functional: Any = F
dlpack: Any = torch.utils.dlpack


def begin() -> int:
    """Join a group over NCCL and make its communicator; the second rank then sleeps."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        time.sleep(LATE_S)
    return dist.get_rank()


def reduced(*values: float) -> Tensor:
    """Return a tensor whose sum over the ranks is under way; its values are copied from the host without waiting."""
    tensor = torch.tensor(values or (1.0, 2.0, 3.0, 4.0)).pin_memory().to("cuda", non_blocking=True)
    work: Any = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return tensor


def run(body: Callable[[], Any], **settings: Any) -> list[Any]:
    result = simdist.run(body, world_size=2, backend="nccl", **settings)
    for rank in result.ranks:
        if rank.exception is not None:
            raise rank.exception
    result.raise_for_failure()
    return result.values


def elapsed(since: float) -> float:
    return round(time.monotonic() - since, 3)


def test_the_host_goes_on_and_the_event_is_not_over() -> None:
    def body() -> Any:
        begin()
        at = time.monotonic()
        tensor = reduced()
        tensor /= 2
        end = torch.cuda.Event()
        end.record()
        ahead = end.query(), elapsed(at)
        return *ahead, tensor.tolist(), elapsed(at), end.query()

    values = [1.0, 2.0, 3.0, 4.0]
    assert run(body) == [(False, 0.0, values, LATE_S, True), (False, 0.0, values, 0.0, True)]


# Functions of a tensor whose data is not there yet, which return tensors.
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda t: (t * 2 + 1) / t - t,
    "in place": lambda t: t.mul_(3).add_(t),
    "a view changes": lambda t: (t.view(2, 2)[1].zero_(), t)[1],
    "a product": lambda t: t.view(2, 2) @ t.view(2, 2).T,
    "several results": lambda t: torch.sort(t, descending=True),
    "lists": lambda t: torch._foreach_mul([t, t + 1], 2.0),
    "lists in place": lambda t: (torch._foreach_add_([t], [t * 2]), t)[1],
    "joined": lambda t: torch.cat([t, torch.ones(1, device="cuda")]),
    "another type": lambda t: t.to(torch.float16).to(torch.int64),
    "copied": lambda t: torch.zeros(4, device="cuda").copy_(t),
    "strided": lambda t: t.view(2, 2).t().contiguous().clone(),
    "indices": lambda t: t[torch.tensor([3, 0], device="cuda")],
    "comparison": lambda t: torch.where(t > 4, t, -t),
    "reductions": lambda t: (t.sum(), t.max(), t.mean(), torch.linalg.vector_norm(t)),
    "softmax": lambda t: functional.softmax(t, 0),
    "a layer": lambda t: functional.layer_norm(t, [4]),
    "a loss": lambda t: functional.mse_loss(t, torch.ones(4, device="cuda")),
    "a mask": lambda t: t[t > 4],
    "numbers drawn": lambda t: functional.dropout(t, 0.0),
    "conditions": lambda t: torch.ones(1, device="cuda") * bool((t > 1).all()),
    "an output": lambda t: torch.add(t, 1, out=torch.empty(4, device="cuda")),
    "growing": lambda t: torch.add(t, 1, out=torch.empty(0, device="cuda")),
    "halves": lambda t: functional.avg_pool3d(t.view(1, 1, 1, 2, 2).half(), (1, 2, 2)),
    "convolution": lambda t: functional.conv2d(t.view(1, 1, 2, 2), torch.ones(1, 1, 2, 2, device="cuda")),
    "from the host": lambda t: (t.copy_(torch.full((4,), 5.0)), t + 1)[1],
    "a number of the host": lambda t: t * torch.tensor(3.0),
}


def normed(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the result of a batch norm, and the statistics that it updates."""
    mean, variance = torch.zeros(2, device="cuda"), torch.ones(2, device="cuda")
    return functional.batch_norm(tensor.view(2, 2), mean, variance, training=True), mean, variance


def drawn(tensor: Tensor, draw: Callable[[Tensor], Any]) -> tuple[Tensor, ...]:
    """Return the drawn numbers, and those drawn next."""
    torch.cuda.manual_seed(1)
    made = draw(tensor)
    return made, torch.rand(2, device="cuda")


def own_generator() -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device()]


def differentiated(tensor: Tensor, function: Callable[[Tensor], Any]) -> Any:
    leaf = tensor.view(1, 1, 2, 2).requires_grad_()
    function(leaf).square().sum().backward()
    return leaf.grad


def attention(tensor: Tensor) -> Any:
    return functional.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=True)


# Layers of networks whose kernels are not the CPU's, or draw numbers.
LAYERS: dict[str, Callable[[Tensor], Any]] = {
    "cross entropy": lambda t: functional.cross_entropy(t.view(2, 2), torch.zeros(2, dtype=torch.int64, device="cuda")),
    "softmax in another type": lambda t: functional.softmax(t.half(), 0, dtype=torch.float32),
    "gradient of a softmax": lambda t: differentiated(t, lambda each: functional.log_softmax(each, 3)),
    "attention": lambda t: attention(t.view(1, 1, 2, 2)),
    "gradient of attention": lambda t: differentiated(t, attention),
    "batch norm": normed,
    "gradient of a batch norm": lambda t: differentiated(t, lambda each: normed(each)[0]),
    "batch norm that learns nothing": lambda t: functional.instance_norm(t.view(1, 2, 2)),
    "dropout": lambda t: drawn(t, lambda each: functional.dropout(each, 0.5)),
    "drawn in place": lambda t: drawn(t, lambda each: each.normal_()),
    "drawn by what is there": lambda t: drawn(t, lambda each: torch.bernoulli(each / 100)),
    "drawn by a generator": lambda t: drawn(t, lambda each: each.uniform_(generator=own_generator())),
    "slopes that are drawn": lambda t: drawn(t, lambda each: functional.rrelu(-each, training=True)),
    "an assertion": lambda t: (torch._assert_async((t > 0).all()), t * 2)[1],
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_layers_and_drawn_numbers_hold_up_nobody(name: str) -> None:
    def body() -> float:
        begin()
        at = time.monotonic()
        made = LAYERS[name](reduced())
        ahead = elapsed(at)
        assert made is not None
        return ahead

    assert run(body) == [0.0, 0.0]


def test_a_world_that_ends_before_its_operations_leaves_no_tensor() -> None:
    def body() -> None:
        begin()
        _ = reduced() * 2

    run(body)
    gc.freeze()  # collections skip all older objects, such as those of torch
    try:
        run(body)
        gc.collect()

        assert not any(type(each) is Tensor for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_statistics_of_a_batch_norm_are_read_when_they_are_there() -> None:
    def body() -> tuple[list[float], float]:
        begin()
        at = time.monotonic()
        _, mean, _ = normed(reduced())
        return [round(each, 3) for each in mean.tolist()], elapsed(at)

    assert run(body) == [([0.4, 0.6], LATE_S), ([0.4, 0.6], 0.0)]


def _into_pinned(tensor: Tensor) -> Tensor:
    return torch.zeros(4, pin_memory=True).copy_(tensor, non_blocking=True)


@pytest.mark.parametrize("copy", [_into_pinned, lambda tensor: tensor.to("cpu", non_blocking=True)])
def test_a_copy_to_the_host_without_blocking_is_made_once_data_is_there(
    copy: Callable[[Tensor], Tensor],
) -> None:
    def body() -> Any:
        rank = begin()
        at = time.monotonic()
        tensor = reduced()
        made = copy(tensor)
        tensor.zero_()
        end = torch.cuda.Event()
        end.record()
        early = made.tolist() if rank == 0 else None
        ahead = elapsed(at)
        end.synchronize()
        return early, ahead, made.tolist(), elapsed(at), made.is_pinned()

    values = [2.0, 4.0, 6.0, 8.0]
    assert run(body) == [([0.0] * 4, 0.0, values, LATE_S, True), (None, 0.0, values, 0.0, True)]


@pytest.mark.parametrize("name", [*CALLS, *LAYERS])
def test_kernels_that_were_kept_compute_what_others_do(name: str) -> None:
    def body() -> list[Any]:
        begin()
        given = torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda") * 2
        found = []
        for tensor in (reduced(), given):
            made = {**CALLS, **LAYERS}[name](tensor)
            found.append([each.tolist() for each in (made if isinstance(made, (tuple, list)) else [made])])
            shapes = [(each.shape, each.stride(), each.dtype) for each in made] if isinstance(made, tuple) else []
            found.append(shapes)
        return found

    for kept, kept_like, usual, usual_like in run(body):
        assert kept == usual
        assert kept_like == usual_like


def test_what_is_read_is_what_was_there() -> None:
    def body() -> Any:
        begin()
        first, second = reduced(), reduced(10.0, 20.0, 30.0, 40.0)
        more = first + second
        first.zero_()
        second.copy_(first)
        return more.tolist(), first.tolist(), second.tolist()

    assert run(body) == [([22.0, 44.0, 66.0, 88.0], [0.0] * 4, [0.0] * 4)] * 2


def test_a_collective_takes_what_a_kept_kernel_makes() -> None:
    def body() -> Any:
        begin()
        at = time.monotonic()
        half = reduced() / 2
        dist.all_reduce(half)
        gathered = torch.empty(8, device="cuda")
        dist.all_gather_into_tensor(gathered, half)
        ahead = elapsed(at)
        return ahead, gathered.tolist()

    assert run(body) == [(0.0, [2.0, 4.0, 6.0, 8.0] * 2)] * 2


def test_memory_that_the_program_gives_up_is_free_at_once() -> None:
    def body() -> int:
        begin()
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor)
        before = torch.cuda.memory_allocated()
        for _ in range(5):
            tensor * 2
        kept = tensor + 1
        del tensor
        return torch.cuda.memory_allocated() - before if kept.shape else 0

    assert run(body) == [0, 0]


def test_more_kernels_than_a_launch_queue_takes_hold_up_the_host() -> None:
    def body() -> Any:
        begin()
        at = time.monotonic()
        tensor = reduced()
        for _ in range(1000):
            tensor += 1
        ahead = elapsed(at)
        for _ in range(100):
            tensor += 1
        return ahead, elapsed(at), tensor[0].item()

    assert run(body) == [(0.0, LATE_S, 1102.0), (0.0, 0.0, 1102.0)]


@pytest.mark.parametrize("distributed", [False, True])
def test_a_cast_of_autocast_never_waits_in_a_full_launch_queue(distributed: bool) -> None:
    def tensor(*shape: int) -> Tensor:
        made = torch.ones(shape, device="cuda")
        if distributed:
            made = DTensor.from_local(made, init_device_mesh("cuda", (2,)), [Replicate()])
        return made

    def local_of(tensor: Any) -> Tensor:
        return cast("Tensor", tensor.to_local() if distributed else tensor)

    def body() -> list[float]:
        begin()
        weight, data = nn.Parameter(tensor(2, 2)), tensor(1, 2)
        local = local_of(weight.data)
        if dist.get_rank() == 0:
            dist.all_reduce(local)
            for _ in range(1024):
                local.mul_(1)
        with torch.autocast("cuda", torch.bfloat16):  # its lock is one of the whole process
            made = F.linear(data, weight)
        if dist.get_rank() == 1:
            dist.all_reduce(local)
        return cast("list[float]", local_of(made).flatten().tolist())

    assert run(body, stall_s=5) == [[4.0, 4.0], [2.0, 2.0]]


def test_a_kept_kernel_follows_its_last_writer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    look = Deferred.look

    def counted(deferred: Deferred) -> None:
        counts.append(sum(len(claimants) for _, claimants, _ in deferred._before))
        look(deferred)

    def body() -> Any:
        begin()
        tensor = reduced()
        for _ in range(300):
            tensor += 1
        return tensor[0].item()

    monkeypatch.setattr(Deferred, "look", counted)

    assert run(body) == [302.0] * 2
    assert len(counts) > 300
    assert max(counts) == 1  # of up to 300 claims before it


def test_an_error_in_a_kept_kernel_is_the_devices() -> None:
    def body() -> str:
        rank = begin()
        index = reduced(1.0, 2.0, 3.0, 9.0).long()
        if rank == 0:
            torch.zeros(4, device="cuda")[index]
        with pytest.raises(IndexError) as caught:
            torch.cuda.synchronize() if rank == 0 else torch.zeros(4, device="cuda")[index]
        return str(caught.value)

    assert all("out of bounds" in said for said in run(body))


def test_a_step_of_training_waits_nowhere() -> None:
    def body() -> Any:
        rank = begin()
        torch.manual_seed(0)
        make: Any = nn.parallel.DistributedDataParallel
        model = make(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda(), broadcast_buffers=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def train(steps: int) -> None:
            for step in range(steps):
                loss = model(torch.full((2, 4), float(rank + step), device="cuda")).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        train(12)  # in the first steps DDP makes its buckets anew, and its logger waits for the times of its events
        torch.cuda.synchronize()
        if rank == 1:
            time.sleep(LATE_S)
        at = time.monotonic()
        train(3)
        ahead = elapsed(at)
        weights = [round(each.detach().sum().item(), 4) for each in model.parameters()]
        return ahead, elapsed(at) >= LATE_S, weights

    (*first, weights), (*second, others) = run(body)
    assert (first, second) == ([0.0, True], [0.0, False])
    assert weights == others


def test_kernels_after_a_late_collective_overlap_those_of_another_stream() -> None:
    def body() -> Any:
        begin()
        at = time.monotonic()
        side = torch.cuda.Stream()
        tensor = reduced()
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_755_000_000)  # a second
        tensor *= 2
        side.synchronize()
        on_side = elapsed(at)
        torch.cuda.synchronize()
        return on_side, elapsed(at)

    assert run(body) == [(1.0, LATE_S), (1.0, 1.0)]


def test_who_waits_for_ever_is_reported_with_what() -> None:
    def body() -> None:
        rank = begin()
        if rank == 0:
            (reduced() + 1).tolist()
        time.sleep(10_000)

    result = simdist.run(body, world_size=2, backend="nccl", cluster=build(2, devices_per_host=2))

    assert "all_reduce" in str(result)
    assert result.ranks[0].status == "killed"


class Seen(TorchFunctionMode):
    """Records which functions of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def seen_by_a_mode(device: str, gradient: Tensor, *, sparse: bool) -> tuple[list[str], float]:
    """Return the functions that a mode sees in a backward pass, and an element of the gradient."""
    parameter = torch.ones(4, 4, device=device, requires_grad=True)
    by = torch.sparse.mm(torch.eye(4, device=device).to_sparse(), parameter) if sparse else parameter * 3
    edges = [torch.autograd.graph.get_gradient_edge(each) for each in (torch.tanh(by), parameter)]
    with Seen() as seen, torch.device("meta"):
        # As in pipelines: torch shows a call with edges to no mode, so C++ calls the kernels with all modes active.
        (found,) = torch.autograd.grad((edges[0],), (edges[1],), grad_outputs=(gradient.reshape(4, 4),))
    return seen.names, float(found[0, 0])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_mode_of_the_program_sees_no_kernel_at_work(sparse: bool) -> None:
    def body() -> tuple[list[str], float]:
        begin()
        return seen_by_a_mode("cuda", reduced(*[1.0] * 16), sparse=sparse)

    assert run(body) == [seen_by_a_mode("cpu", torch.full((16,), 2.0), sparse=sparse)] * 2


def test_a_slice_of_a_storage_waits_for_what_fills_the_storage() -> None:
    def train() -> list[Any]:
        begin()
        whole = torch.tensor([1.0, 2.0, 3.0, 4.0]).pin_memory().to("cuda", non_blocking=True)
        storage = whole.untyped_storage()
        part = torch.empty(0, device="cuda").set_(storage[4:12])
        inner = torch.empty(0, device="cuda").set_(storage[4:12][4:8])
        dist.all_reduce(whole)
        doubled = part * 2
        part.add_(1)
        dist.all_reduce(part)
        return [doubled.tolist(), inner.tolist(), part.tolist(), whole.tolist()]

    assert run(train) == [[[8.0, 12.0], [14.0], [10.0, 14.0], [2.0, 10.0, 14.0, 8.0]]] * 2


def test_a_slice_of_a_storage_is_read_before_it_is_changed() -> None:
    def train() -> list[float]:
        begin()
        whole = torch.tensor([1.0, 2.0, 3.0, 4.0]).pin_memory().to("cuda", non_blocking=True)
        part = torch.empty(0, device="cuda").set_(whole.untyped_storage()[4:12])
        sums = torch.empty(4, device="cuda")
        dist.all_gather_into_tensor(sums, part)
        whole.zero_()
        return sums.tolist()

    assert run(train) == [[2.0, 3.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize(
    "exchange",
    [dlpack.from_dlpack, lambda tensor: dlpack.from_dlpack(dlpack.to_dlpack(tensor))],
    ids=["tensor", "capsule"],
)
def test_a_tensor_over_a_capsule_waits_for_what_fills_its_memory(exchange: Callable[[torch.Tensor], Any]) -> None:
    def train() -> list[Any]:
        begin()
        held = torch.cuda.memory_allocated()
        whole = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).pin_memory().to("cuda", non_blocking=True)
        same, column = exchange(whole), exchange(whole[:, 1])
        dist.all_reduce(whole)
        found = [same.tolist(), column.tolist(), column.untyped_storage().nbytes(), column.stride()]
        column.zero_()
        found.append(whole.tolist())
        del whole, same
        held_by_a_part = torch.cuda.memory_allocated() > held
        del column
        return [*found, held_by_a_part, torch.cuda.memory_allocated() == held]

    filled = [[2.0, 4.0], [6.0, 8.0]], [4.0, 8.0], 12, (2,), [[2.0, 0.0], [6.0, 0.0]]
    assert run(train) == [[*filled, True, True]] * 2


def test_kernels_that_read_the_same_memory_copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[object] = []
    copy_inputs = Deferred.copy_inputs

    def noted(self: Deferred, block: Any) -> None:
        copied.append(block)
        copy_inputs(self, block)

    monkeypatch.setattr(Deferred, "copy_inputs", noted)

    def train() -> list[Any]:
        begin()
        read = torch.tensor([1.0, 2.0]).pin_memory().to("cuda", non_blocking=True)
        total = reduced(1.0, 2.0)
        found = [total * read, total + read, total - read]
        return [each.tolist() for each in found]

    assert run(train) == [[[2.0, 8.0], [3.0, 6.0], [1.0, 2.0]]] * 2
    assert copied == []
