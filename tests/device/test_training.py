from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from simdist.errors import UnsupportedError
from tests.device.worlds import cuda, model, on_devices


class Operators(TorchDispatchMode):
    """Records the names of the operators that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def inputs(index: int = 1) -> torch.Tensor:
    return torch.randn(3, 4, device=cuda(index))


def trained(module: nn.Module) -> nn.Module:
    module(inputs()).square().mean().backward()
    return module


@on_devices
def test_gradients_are_where_the_parameters_are() -> None:
    module = trained(model())

    assert all(each.grad is not None and each.grad.device == cuda(1) for each in module.parameters())


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters),
        lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, foreach=False),
        lambda parameters: torch.optim.AdamW(parameters, fused=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
        lambda parameters: torch.optim.RMSprop(parameters),
        lambda parameters: torch.optim.Adagrad(parameters),
    ],
)
@on_devices
def test_an_optimizer_does_what_it_does_on_the_cpu(optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    there, here = model(), model().cpu()
    here.load_state_dict(there.state_dict())
    data = torch.randn(3, 4)

    for module, batch in ((there, data.to(cuda(1))), (here, data)):
        steps = optimizer(module.parameters())
        for _ in range(3):
            steps.zero_grad()
            module(batch).square().mean().backward()
            steps.step()

    for one, other in zip(there.parameters(), here.parameters(), strict=True):
        assert one.device == cuda(1)
        assert torch.allclose(one.cpu(), other, rtol=1e-5, atol=1e-7)


@on_devices
def test_an_optimizer_can_be_capturable() -> None:
    module = trained(model())
    optimizer = torch.optim.Adam(module.parameters(), capturable=True)

    optimizer.step()

    assert next(iter(optimizer.state.values()))["step"].device == cuda(1)


@on_devices
def test_the_states_of_a_fused_optimizer_are_on_the_device() -> None:
    module = trained(model())
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    optimizer.step()

    assert next(iter(optimizer.state.values()))["exp_avg"].device == cuda(1)


@on_devices
def test_gradients_are_clipped() -> None:
    module = trained(model())

    norm = nn.utils.clip_grad_norm_(module.parameters(), 1e-3)

    assert norm.device == cuda(1)
    assert sum(float(each.grad.square().sum()) for each in module.parameters() if each.grad is not None) < 1.1e-6


@on_devices
def test_autocast_chooses_half_precision() -> None:
    with torch.autocast("cuda"):
        made = model()(inputs())
        sums = made.softmax(1)

    assert made.dtype is torch.float16
    assert sums.dtype is torch.float32


@on_devices
def test_autocast_of_the_cpu_leaves_devices_alone() -> None:
    with torch.autocast("cpu"):
        made = inputs() @ inputs().t()

    assert made.dtype is torch.float32


@on_devices
def test_a_gradient_scaler_skips_a_step_that_overflows() -> None:
    module = model()
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = module[0].weight.detach().clone()

    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale(module(inputs()).sum() * factor).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if factor == 1.0:
            stepped = module[0].weight.detach().clone()

    assert not torch.equal(before, stepped)
    assert torch.equal(module[0].weight, stepped)
    assert scaler.get_scale() == 2.0


@on_devices
def test_convolution_norm_pooling_and_dropout_run_and_differentiate() -> None:
    images = torch.randn(2, 3, 8, 8, device=cuda(1))
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 5),
    ).to(cuda(1))

    made = module(images)
    made.sum().backward()

    assert made.device == cuda(1)
    assert module[0].weight.grad is not None
    assert module[0].weight.grad.device == cuda(1)


@pytest.mark.parametrize(
    "module",
    [
        lambda: nn.Conv2d(3, 4, 3, padding=1),
        lambda: nn.ConvTranspose2d(3, 4, 3),
        lambda: nn.GroupNorm(3, 3),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: nn.AdaptiveAvgPool2d(2),
        lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(64, 3, batch_first=True)),
        lambda: nn.Sequential(nn.Flatten(2), nn.GRU(64, 3, batch_first=True)),
        lambda: nn.Sequential(nn.Flatten(2), nn.GRU(64, 3, bias=False)),
        lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(64, 3, bias=False, bidirectional=True)),
        lambda: nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(64, 2, 16, 0.0, batch_first=True)),
        lambda: nn.Sequential(nn.Flatten(2), nn.LogSoftmax(2)),
    ],
)
@on_devices
def test_a_module_computes_and_differentiates_as_on_the_cpu(module: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    here = module()
    there = module().to(cuda(1))
    there.load_state_dict(here.state_dict())
    data = torch.randn(2, 3, 8, 8)

    results = []
    for each, batch in ((here, data.clone()), (there, data.to(cuda(1)))):
        batch.requires_grad_()
        made = each(batch)
        made = made[0] if isinstance(made, tuple) else made
        (made * made).sum().backward()
        results.append((made.detach().cpu(), batch.grad, [parameter.grad for parameter in each.parameters()]))

    (made, of_data, gradients), (made_there, of_data_there, gradients_there) = results
    assert torch.allclose(made, made_there, rtol=1e-4, atol=1e-5)
    assert of_data is not None
    assert of_data_there is not None
    assert torch.allclose(of_data, of_data_there.cpu(), rtol=1e-3, atol=1e-4)
    for one, other in zip(gradients, gradients_there, strict=True):
        assert one is not None
        assert other is not None
        assert torch.allclose(one, other.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "settings", "kernel"),
    [
        (torch.float32, {"is_causal": True}, "_scaled_dot_product_efficient_attention"),
        (torch.bfloat16, {"is_causal": True}, "_scaled_dot_product_flash_attention"),
        (torch.float32, {"attn_mask": True}, "_scaled_dot_product_efficient_attention"),
        (torch.float64, {}, "_scaled_dot_product_attention_math"),
        (torch.float32, {"dropout_p": 0.5}, "_scaled_dot_product_attention_math"),
    ],
)
@on_devices
def test_attention_takes_the_kernel_that_a_gpu_takes(dtype: torch.dtype, settings: dict[str, Any], kernel: str) -> None:
    data = torch.randn(3, 2, 2, 5, 8).to(dtype)
    results = []
    for device in ("cpu", "cuda:1"):
        batch = data.to(device, copy=True).requires_grad_()
        chosen = dict(settings)
        if "attn_mask" in chosen:
            chosen["attn_mask"] = torch.arange(25.0, device=device).view(5, 5).to(dtype)
        with Operators() as seen:
            made = nn.functional.scaled_dot_product_attention(*batch, **chosen)
        (made * made).sum().backward()
        assert batch.grad is not None
        results.append((made.detach().cpu(), batch.grad.cpu()))

    (made, gradient), (made_there, gradient_there) = results
    fused = {name for name in seen.names if name.startswith("_scaled_dot_product")}
    assert fused == ({kernel} if "math" not in kernel else set())
    if "dropout_p" not in settings:
        assert torch.allclose(made, made_there, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5)
        assert torch.allclose(gradient, gradient_there, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
@on_devices
def test_fused_attention_returns_what_torch_says_of_it(kernel: str) -> None:
    call = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")
    settings: list[Any] = [None, True] if kernel == "efficient" else []
    batch = torch.randn(2, 3, 5, 8, device=cuda(1), dtype=torch.float16)

    def both(batch: torch.Tensor) -> list[Any]:
        made = call(batch, batch, batch, *settings)
        *rest, seed, offset = made[:4] if kernel == "efficient" else made[:8]
        inputs = torch.ones_like(batch), batch, batch, batch, *([None] if kernel == "efficient" else []), *rest
        more = (seed, offset, 0.0, [True] * 4) if kernel == "efficient" else (0.0, False, seed, offset)
        backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention_backward")
        return [*made[:2], *backward(*inputs, *more)[:3]]

    found = both(batch)
    with FakeTensorMode() as mode:
        said = both(mode.from_tensor(batch))

    for one, other in zip(found, said, strict=True):
        assert (one.shape, one.stride(), one.dtype, one.device) == (other.shape, other.stride(), other.dtype, cuda(1))
    assert found[1][..., :5].isfinite().all()
    with pytest.raises(UnsupportedError, match="with dropout"):
        call(batch, batch, batch, *settings, dropout_p=0.5)


@pytest.mark.parametrize(
    ("dtype", "kernels", "refused"),
    [
        (torch.float32, [SDPBackend.FLASH_ATTENTION], "No available kernel. Aborting execution."),
        (torch.float64, [SDPBackend.EFFICIENT_ATTENTION], "No available kernel. Aborting execution."),
        (torch.float32, [SDPBackend.OVERRIDEABLE], "No viable backend for scaled_dot_product_attention was found."),
        (torch.float16, [SDPBackend.CUDNN_ATTENTION], ""),
        (torch.float64, [SDPBackend.MATH], ""),
    ],
)
@on_devices
def test_attention_refuses_what_the_enabled_kernels_do_not_take(
    dtype: torch.dtype, kernels: list[SDPBackend], refused: str
) -> None:
    query, key, value = torch.randn(3, 2, 2, 5, 8, device=cuda(1), dtype=dtype)

    with sdpa_kernel(kernels), pytest.raises(RuntimeError, match=refused) if refused else contextlib.nullcontext():
        assert nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5).shape == (2, 2, 5, 8)


@on_devices
def test_softmax_of_halves_can_be_of_single_precision() -> None:
    halves = torch.randn(3, 4, device=cuda(1), dtype=torch.float16, requires_grad=True)

    made = halves.softmax(1, dtype=torch.float32)
    made.square().sum().backward()

    assert made.dtype is torch.float32
    assert halves.grad is not None
    assert halves.grad.dtype is torch.float16


@pytest.mark.parametrize("reentrant", [True, False])
@on_devices
def test_activation_checkpointing_computes_again(reentrant: bool) -> None:
    calls = []
    module = model()
    dropout = nn.Dropout(0.5)

    def forward(batch: torch.Tensor) -> Any:
        made = dropout(module(batch))
        calls.append(made.detach().clone())
        return made.square()

    batch = inputs().requires_grad_()
    torch.utils.checkpoint.checkpoint(forward, batch, use_reentrant=reentrant).sum().backward()

    assert batch.grad is not None
    assert batch.grad.device == cuda(1)
    assert len(calls) == 2
    assert torch.equal(*calls)


@on_devices
def test_functional_transforms_work() -> None:
    assert torch.func.vmap(lambda each: each * 2)(inputs()).device == cuda(1)
    assert torch.func.grad(lambda each: (each * each).sum())(inputs()).device == cuda(1)


@pytest.mark.filterwarnings("ignore:tqdm")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@on_devices
def test_compiled_functions_run(backend: str) -> None:
    made = torch.compile(lambda each: each * 2 + 1, backend=backend)(inputs())

    assert made.device == cuda(1)


@on_devices
def test_a_batch_of_a_data_loader_is_pinned() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))

    (batch,) = next(iter(torch.utils.data.DataLoader(data, 2, pin_memory=True)))

    assert batch.is_pinned()
    assert batch.to(cuda(1), non_blocking=True).device == cuda(1)


@on_devices
def test_an_exception_passes_through_a_loop_over_pinned_batches() -> None:
    def batches() -> list[torch.Tensor]:
        return [torch.full((2,), number).pin_memory() for number in range(200)]

    def loop() -> None:
        for _ in batches():
            raise ValueError("not this batch")

    with pytest.raises(ValueError, match="not this batch"):
        loop()

    assert all(batch.is_pinned() and batch.tolist() == [number] * 2 for number, batch in enumerate(batches()))
