"""PyTorch's own tests of DDP over NCCL (test_c10d_nccl.py), the part that follows `test_torch_suite.py`'s, by name.

As there: every test of that part, from several outputs to the sizes of buckets.
`test_torch_suite_errors.py`, `_groups` and `_records` have the tests after them in the file.
"""

from __future__ import annotations

import copy
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # as torch's tests have it
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.c10d.nccl.suite import Case, TwoOutputs, cases, dist, hold, net, own_devices, play, raises

default: Any = default_hooks
power: Any = powerSGD_hook


def ddp(self: Case, module: nn.Module, **settings: Any) -> Any:
    """Wrap a module in DDP, on the rank's device."""
    return DistributedDataParallel(module.to(self.device), device_ids=[self.device], **settings)


def step(self: Case, model: Any) -> None:
    """Do a forward and a backward pass on random data."""
    target = torch.LongTensor([random.randrange(4) for _ in range(4)]).to(self.device)
    nn.CrossEntropyLoss()(model(torch.rand(4, 2)), target).backward()


# -- modules ---------------------------------------------------------------------------------------------------------


def case_multiple_outputs_multiple_backward_grad_is_view(self: Case) -> None:
    self.init()
    model = ddp(self, TwoOutputs(), gradient_as_bucket_view=True)
    target = torch.randint(4, (4,), device=self.device)
    for output in model(torch.rand(4, 2)):
        nn.CrossEntropyLoss()(output, target).backward()


def case_no_grad(self: Case) -> None:
    self.init()
    model = ddp(self, net())
    with torch.no_grad():
        assert isinstance(model(torch.rand(4, 2)), torch.Tensor)
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


def case_accumulate_gradients_module(self: Case, view: bool = False) -> None:
    self.init()
    module = net().to(self.device)
    model = ddp(self, copy.deepcopy(module), gradient_as_bucket_view=view)
    data, target = torch.randn(self.world_size, 2).to(self.device), torch.randn(self.world_size, 4).to(self.device)
    own = slice(self.rank, self.rank + 1)
    with torch.no_grad():
        model.module(data)
    loss: Any = F.mse_loss
    for iteration in range(4):
        loss(module(data), target).backward()
        skips = iteration % 2 == 0
        loss((model.module if skips else model)(data[own]), target[own]).backward()
        for one, other in zip(module.parameters(), model.parameters(), strict=True):
            assert one.grad is not None
            assert torch.allclose(one.grad, other.grad, rtol=1.3e-6, atol=5e-5) is not skips
        torch.manual_seed(1337 + iteration)
        data = data[torch.randperm(self.world_size)]


case_accumulate_gradients_module_with_grad_is_view = partial(case_accumulate_gradients_module, view=True)


def case_failure_recovery(self: Case) -> None:
    self.init()
    module = net()
    model = ddp(self, module)
    for _ in range(6):
        step(self, model)
    del model
    dist.destroy_process_group()
    self.init(store=dist.FileStore(f"{self.file_name}_recovery", self.world_size))
    model = ddp(self, module)
    for _ in range(6):
        step(self, model)


def case_pass_default_pg(self: Case) -> None:
    dist.init_process_group("nccl", init_method=f"file://{self.file_name}", world_size=self.world_size, rank=self.rank)
    dist.destroy_process_group(dist.distributed_c10d._get_default_group())
    assert not dist.is_initialized()


class Layers(nn.Module):
    """Convolutions, each with a layout, a type and a device."""

    def __init__(self, devices: list[torch.device], formats: list[Any], dtypes: list[torch.dtype]) -> None:
        super().__init__()
        self.dtypes, self.devices = dtypes, devices
        sizes = [(8, 16, 3), (16, 8, 3), (8, 4, 1), (4, 8, 1)]
        for place, (inside, outside, kernel) in enumerate(sizes):
            made: Any = nn.Conv2d(inside, outside, kernel, bias=False)
            made = made.to(devices[place]).to(dtype=dtypes[place], memory_format=formats[place])
            setattr(self, f"conv{place}", made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply all of them."""
        for place, dtype in enumerate(self.dtypes):
            x = getattr(self, f"conv{place}")(x.to(self.devices[place]).to(dtype))
        return x


FORMATS = ([torch.contiguous_format] * 4, [torch.channels_last] * 2 + [torch.contiguous_format] * 2)


def grad_layout(self: Case, devices: list[torch.device], ids: Any) -> None:
    self.init()
    torch.manual_seed(0)
    for formats in (*FORMATS, [torch.channels_last] * 4):
        for dtypes in ([torch.float] * 4, [torch.float] * 2 + [torch.half] * 2):
            for megabytes in (0.000001, 25):
                module = Layers(devices, formats, dtypes)
                model = DistributedDataParallel(copy.deepcopy(module), device_ids=ids, bucket_cap_mb=megabytes)
                data = torch.randn(2 * self.world_size, 8, 8, 8, device=devices[0])
                target = torch.randn(2 * self.world_size, 8, 4, 4, device=devices[-1])
                dist.broadcast(data, 0)
                dist.broadcast(target, 0)
                own = slice(2 * self.rank, 2 * self.rank + 2)
                loss: Any = F.mse_loss
                loss(module(data).float(), target).backward()
                loss(model(data[own]).float(), target[own]).backward()
                tolerance = 3e-3 if torch.half in dtypes else 1e-5
                pairs = zip(module.parameters(), model.parameters(), formats, strict=True)
                for one, other, layout in pairs:
                    assert one.grad is not None
                    assert other.grad is not None
                    assert one.grad.is_contiguous(memory_format=layout)
                    assert other.grad.is_contiguous(memory_format=layout)
                    assert torch.allclose(one.grad, other.grad, rtol=tolerance, atol=tolerance)


def case_grad_layout_1devicemodule_1replicaperprocess(self: Case) -> None:
    grad_layout(self, [self.device] * 4, [self.device])


def case_grad_layout_2devicemodule(self: Case) -> None:
    first, second = own_devices(self)[:2]
    grad_layout(self, [first, first, second, second], None)


def case_param_layout_mismatch_error(self: Case) -> None:
    self.init()
    formats = [torch.channels_last if self.rank else torch.contiguous_format] * 4
    module = Layers([self.device] * 4, formats, [torch.float] * 4)
    if self.rank == 0:
        ddp(self, module)
    else:
        raises(RuntimeError, lambda: ddp(self, module), "appears not to match strides of the same param in process 0")


# -- hooks -----------------------------------------------------------------------------------------------------------


class Summand(nn.Module):
    """A parameter that is added: its gradient is a quarter everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        """The sum."""
        return self.p + (x + rank)


def hooked(self: Case, hook: Any, state: Any = None, *, expected: float = 0.25, **settings: Any) -> None:
    """Do a step with a hook."""
    model = ddp(self, Summand(), **settings)
    if isinstance(hook, dist.BuiltinCommHookType):
        model._register_builtin_comm_hook(hook)
    else:
        model.register_comm_hook(state, hook)
    model(torch.tensor(8.0, device=self.device), self.rank).mean().backward()
    for each in model.parameters():
        assert torch.equal(each.grad, torch.full((2, 2), expected, device=self.device))


def case_ddp_comm_hook_future_passing(self: Case) -> None:
    self.init()

    def twice(bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(torch.ones_like(bucket.buffer()))
        return future.then(lambda done: done.value() + torch.ones_like(done.value()))

    hooked(self, lambda state, bucket: twice(bucket), expected=2.0)


def all_reduce_hook(self: Case, **settings: Any) -> None:
    group = self.init()

    def reduced(bucket: Any) -> Any:
        work = group.allreduce([bucket.buffer() / self.world_size])
        return work.get_future().then(lambda done: done.value()[0])

    hooked(self, lambda state, bucket: reduced(bucket), **settings)


case_ddp_comm_hook_allreduce_with_future = all_reduce_hook
case_ddp_comm_hook_allreduce_with_future_grad_is_view = partial(all_reduce_hook, gradient_as_bucket_view=True)
case_ddp_comm_hook_allreduce_with_future_static_graph = partial(all_reduce_hook, static_graph=True)


def case_default_ddp_comm_hooks(self: Case, view: bool = False) -> None:
    group = self.init()
    for hook in (default.allreduce_hook, default.fp16_compress_hook, default.bf16_compress_hook):
        hooked(self, hook, group, gradient_as_bucket_view=view)


case_default_ddp_comm_hooks_is_view = partial(case_default_ddp_comm_hooks, view=True)


def wrapped(self: Case, wrapper: Any, view: bool = False) -> None:
    group = self.init()
    state = power.PowerSGDState(process_group=group)
    for hook, given in ((power.powerSGD_hook, state), (default.allreduce_hook, group)):
        hooked(self, wrapper(hook), given, gradient_as_bucket_view=view)


case_fp16_compress_hook_wrapper = partial(wrapped, wrapper=default.fp16_compress_wrapper)
case_fp16_compress_wrapper_is_view = partial(wrapped, wrapper=default.fp16_compress_wrapper, view=True)
case_bf16_compress_hook_wrapper = partial(wrapped, wrapper=default.bf16_compress_wrapper)
case_bf16_compress_wrapper_is_view = partial(wrapped, wrapper=default.bf16_compress_wrapper, view=True)


def case_builtin_ddp_comm_hooks(self: Case, view: bool = False) -> None:
    self.init()
    for hook in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        hooked(self, hook, gradient_as_bucket_view=view)


case_builtin_ddp_comm_hooks_grad_is_view = partial(case_builtin_ddp_comm_hooks, view=True)


def case_powerSGD_ddp_comm_hook(self: Case, view: bool = False) -> None:  # torch's name
    group = self.init()
    for number in range(8):
        state = power.PowerSGDState(
            process_group=group,
            matrix_approximation_rank=1,
            use_error_feedback=bool(number & 1),
            warm_start=bool(number & 2),
            batch_tensors_with_same_shape=bool(number & 4),
        )
        for hook in (power.powerSGD_hook, power.batched_powerSGD_hook):
            hooked(self, hook, state, gradient_as_bucket_view=view)


case_powerSGD_ddp_comm_hook_grad_is_view = partial(case_powerSGD_ddp_comm_hook, view=True)  # torch's name


def case_comm_hook_allreduce_with_then(self: Case) -> None:
    group = self.init()

    def scaled(bucket: Any) -> Any:
        future = group.allreduce([bucket.buffer() / self.world_size]).get_future()
        return future.then(lambda done: 10 * done.value()[0]).then(lambda done: 0.5 * done.value())

    hooked(self, lambda state, bucket: scaled(bucket), expected=1.25)


# -- parameters and inputs -------------------------------------------------------------------------------------------


class Shares(nn.Module):
    """Adds a parameter that other modules share."""

    def __init__(self, shared: nn.Parameter, factor: float) -> None:
        super().__init__()
        self.a, self.factor = shared, factor

    def forward(self, x: Any) -> Any:
        """The sum."""
        return x + self.a * self.factor


def case_ddp_weight_sharing(self: Case) -> None:
    self.init()
    size = 512 * 512
    for to_none in (False, True):
        for view in (False, True):
            shared = nn.Parameter(torch.randn(size))
            module = nn.Sequential(Shares(shared, self.rank + 1), Shares(shared, self.rank + 1))
            model = ddp(self, module, bucket_cap_mb=1, gradient_as_bucket_view=view)
            for _ in range(3):
                model.zero_grad(set_to_none=to_none)
                model(1).sum().backward()
                (parameter,) = model.parameters()
                mean = 2.0 * (self.world_size * (self.world_size + 1.0) / 2.0) / self.world_size
                assert torch.equal(parameter.grad, torch.full_like(parameter, mean))


def case_ddp_packed_sequence(self: Case) -> None:
    self.init()
    torch.manual_seed(0)
    lstm = nn.LSTM(input_size=4, hidden_size=2, batch_first=True).to(self.device)
    model = ddp(self, copy.deepcopy(lstm))
    lengths = torch.tensor([17, 8, 3])
    embedded = torch.randn(3, 17, 4)
    packed = [nn.utils.rnn.pack_padded_sequence(embedded.clone(), lengths, batch_first=True) for _ in range(2)]
    local: Any = packed[0]
    output, (hidden, cell) = lstm(local.to(self.device))
    output_ddp, (hidden_ddp, cell_ddp) = model(packed[1])
    assert torch.equal(output.data, output_ddp.data)
    assert torch.equal(hidden, hidden_ddp)
    assert torch.equal(cell, cell_ddp)
    output.data.sum().backward()
    output_ddp.data.sum().backward()
    for one, other in zip(lstm.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert torch.allclose(one.grad, other.grad)


def case_channels_last_contig(self: Case) -> None:
    group = self.init()
    tensor = torch.ones((2, 16, 48, 72), device=self.device).to(memory_format=torch.channels_last)
    group.broadcast([tensor]).wait()


class Fourier(nn.Module):
    """Multiplies by complex weights in the frequencies."""

    def __init__(self, high: int, wide: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_complex(torch.randn(channels, high, wide // 2 + 1, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform, multiply, transform back."""
        found: torch.Tensor = torch.fft.irfft2(torch.fft.rfft2(x.float(), norm="ortho") * self.weight, norm="ortho")
        return found


def case_ddp_complex_params(self: Case) -> None:
    self.init()
    model = ddp(self, Fourier(16, 16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    model(torch.ones(1, 4, 16, 16)).sum().backward()
    optimizer.step()
    torch.accelerator.synchronize(self.device)


class TwoLayers(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 20), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> Any:
        """Both."""
        return self.last(F.relu(self.first(x)))


def case_bucket_cap_mb_list_initialization(self: Case) -> None:
    self.init()
    model = ddp(self, TwoLayers(), bucket_cap_mb_list=[10, 25, 50])
    assert model.bucket_bytes_cap_list == [cap * 1024 * 1024 for cap in (10, 25, 50)]
    assert model.bucket_bytes_cap == 50 * 1024 * 1024


def case_bucket_cap_mb_list_default_behavior(self: Case) -> None:
    self.init()
    model = ddp(self, TwoLayers())
    assert (model.bucket_bytes_cap, model.bucket_bytes_cap_list) == (25 * 1024 * 1024, [])


def case_bucket_cap_mb_alone(self: Case) -> None:
    self.init()
    model = ddp(self, TwoLayers(), bucket_cap_mb=100)
    assert (model.bucket_bytes_cap, model.bucket_bytes_cap_list) == (100 * 1024 * 1024, [])


# -- all of them -----------------------------------------------------------------------------------------------------

FOUR_DEVICES = ("grad_layout_2devicemodule",)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases(globals()))
def test_torchs_own(name: str, tmp_path: Path) -> None:
    hold(play(globals()[f"case_{name}"], tmp_path, devices=4 if name in FOUR_DEVICES else 2))
