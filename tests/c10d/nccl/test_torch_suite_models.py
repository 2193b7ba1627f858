"""PyTorch's own tests of NCCL that train a model, the first of them, by name; `test_torch_suite_ddp.py` has the others.

As in `test_torch_suite.py`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # as torch's tests have it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.c10d.nccl.suite import Case, TwoOutputs, cases, dist, hold, net, own_devices, play, raises, require_most


def case_nccl_propagate_error_reason(self: Case) -> None:
    os.environ |= {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    store = self.store()
    group = dist.ProcessGroupNCCL(store, self.rank, self.world_size, timeout=timedelta(seconds=15))
    over_gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), self.rank, self.world_size)
    group.barrier().wait(timedelta(seconds=5))
    if self.rank == 0:
        over_gloo.barrier().wait()
    else:
        tensor = torch.ones(1).cuda(self.rank)
        raises(dist.DistBackendError, lambda: group.allreduce([tensor]).wait(timedelta(seconds=5)))
        raises(dist.DistBackendError, lambda: group.allreduce([torch.ones(2).cuda(self.rank)]).wait(), "aborted")
        over_gloo.barrier().wait()


class TwoDevices(nn.Module):
    """A model on two devices."""

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__()
        self.devices = devices
        self.fc1 = nn.Linear(2, 10, bias=False).to(devices[0])
        self.fc2 = nn.Linear(10, 4, bias=False).to(devices[1])

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Apply both layers, each on its device."""
        hidden = F.relu(self.fc1(data.to(self.devices[0])))
        out: torch.Tensor = self.fc2(hidden.to(self.devices[1]))
        return out


def train(self: Case, module: Any, ids: Any, reference: Any, device: Any) -> None:
    """Train two steps of a distributed model, and of the same model on the whole batch."""
    model: Any = DistributedDataParallel(module, device_ids=ids)
    loss: Any = F.mse_loss
    for _ in range(2):
        torch.manual_seed(7)
        data, target = torch.randn(2 * self.world_size, 2), torch.randn(2 * self.world_size, 4)
        part = slice(2 * self.rank, 2 * self.rank + 2)
        loss(model(data[part].to(device)).cpu(), target[part]).backward()
        loss(reference(data), target).backward()
        for one, other in zip(module.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(one.grad.cpu(), other.grad, atol=1e-6)
            for each in (one, other):
                each.data -= each.grad
                each.grad = None


def one_device(self: Case, ids: Any) -> None:
    self.init()
    device = own_devices(self)[0]
    train(self, net().to(device), ids(device), net(), device)


def case_nccl_backend_multi_device_ids_not_allowed(self: Case) -> None:
    self.init()
    raises(
        ValueError,
        lambda: DistributedDataParallel(net().to(self.device), device_ids=list(range(torch.cuda.device_count()))),
        "device_ids can only be None or contain a single element.",
    )


case_nccl_backend_single_device_module_device_ids_None = partial(one_device, ids=lambda device: None)  # torch's name
case_nccl_backend_single_device_module_empty_device_ids = partial(one_device, ids=lambda device: [])
case_nccl_backend_1gpu_module_device_ids_integer_list = partial(one_device, ids=lambda device: [device.index])
case_nccl_backend_1gpu_module_device_ids_torch_device_list = partial(one_device, ids=lambda device: [device])


def case_nccl_backend_2gpu_module(self: Case) -> None:
    self.init()
    devices = own_devices(self)[:2]
    module, reference = TwoDevices(devices), net()
    with torch.no_grad():
        module.fc1.weight.copy_(reference[0].weight)  # type: ignore[index]  # torch says Tensor | Module
        module.fc2.weight.copy_(reference[2].weight)  # type: ignore[index]  # torch says Tensor | Module
    train(self, module, None, reference, "cpu")


def case_ddp_multi_device_module_config(self: Case) -> None:
    self.init()
    devices = own_devices(self)[:2]
    model: Any = TwoDevices(devices)
    raises(
        ValueError,
        lambda: DistributedDataParallel(model, output_device=devices[1]),
        "DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device",
    )
    single = "device_ids can only be None or contain a single element."
    raises(ValueError, lambda: DistributedDataParallel(model, device_ids=devices), single)
    model.fc1 = model.fc1.cpu()
    raises(ValueError, lambda: DistributedDataParallel(model), "input module must be on the same type of devices")
    raises(ValueError, lambda: DistributedDataParallel(model.cpu(), device_ids=devices), single)


def case_fp16(self: Case, view: bool = False) -> None:
    self.init()
    module = nn.Linear(1, 1, bias=False).cuda(self.rank).half()
    nn.init.constant_(module.weight, 1)
    model = DistributedDataParallel(
        module,
        device_ids=[self.rank],
        bucket_cap_mb=0.001,
        gradient_as_bucket_view=view,
    )
    model(torch.tensor([[2**15]]).cuda(self.rank).half()).sum().backward()
    assert not any(torch.isinf(each.grad).any() for each in model.parameters() if each.grad is not None)


case_fp16_grad_is_view = partial(case_fp16, view=True)


class Boxed(nn.Module):
    """Applies a function to its outputs, and returns the result."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 10, bias=False), nn.Linear(10, 4, bias=False)
        self.fc3 = nn.Linear(4, 4, bias=False)

    def forward(self, data: torch.Tensor, fn: Any) -> Any:
        """Compute the first output without the last layer, the second with it."""
        data = F.relu(self.fc2(F.relu(self.fc1(data))))
        return fn(F.softmax(data, dim=1), F.softmax(self.fc3(data), dim=1))


def case_arbitrary_forward_return_value(self: Case, view: bool = False) -> None:
    self.init()
    model = DistributedDataParallel(Boxed().to(self.device), device_ids=[self.device], gradient_as_bucket_view=view)
    data, target = torch.rand(4, 2), torch.randint(4, (4,), device=self.device)
    ways: list[tuple[Any, Any]] = [
        (lambda x, y: (x, y), lambda out: out[1]),
        (lambda x, y: ["foo", x, "bar", y], lambda out: out[3]),
        (lambda x, y: ("foo", x, "bar", y), lambda out: out[3]),
        (lambda x, y: {"foo": "bar", "a": x, "b": y}, lambda out: out["b"]),
        (lambda x, y: ["foo", "bar", {"a": x, "b": y}], lambda out: out[2]["b"]),
        (lambda x, y: {"foo": "bar", "list": [0, x, 1, y]}, lambda out: out["list"][3]),
    ]
    for box, unbox in ways:
        nn.CrossEntropyLoss()(unbox(model(data, fn=box)), target).backward()


case_arbitrary_forward_return_value_grad_is_view = partial(case_arbitrary_forward_return_value, view=True)


def case_ddp_with_lazy_parameters(self: Case) -> None:
    self.init()
    raises(RuntimeError, lambda: DistributedDataParallel(nn.LazyLinear(10)), "Modules with uninitialized parameters")


class HandsOut(nn.Module):
    """Returns one of its layers, which is then used outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 10, bias=False), nn.Linear(10, 4, bias=False)
        self.fc3 = nn.Linear(4, 4, bias=False)

    def forward(self, data: torch.Tensor) -> Any:
        """Return the output and the layer."""
        return F.softmax(F.relu(self.fc2(F.relu(self.fc1(data)))), dim=1), self.fc3


def case_find_unused_parameters_kwarg_debug_off(self: Case, level: str = "OFF", view: bool = False) -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    dist.set_debug_level_from_env()
    torch.cuda.set_device(self.rank)
    self.init()
    data, target = torch.rand(4, 2), torch.randint(4, (4,), device=self.device)

    def backward(**settings: Any) -> None:
        model = DistributedDataParallel(
            HandsOut().to(self.device), device_ids=[self.device], gradient_as_bucket_view=view, **settings
        )
        output, layer = model(data)
        nn.CrossEntropyLoss()(layer(output), target).backward()

    error = str(raises(RuntimeError, lambda: backward(find_unused_parameters=True)))
    assert error.startswith("Expected to mark a variable ready only once.")
    assert "Parameter at index 2" + (" with name fc3.weight" if level != "OFF" else "") in error
    dist.barrier()
    backward(find_unused_parameters=False)
    backward()


case_find_unused_parameters_kwarg_debug_detail = partial(case_find_unused_parameters_kwarg_debug_off, level="DETAIL")
case_find_unused_parameters_kwarg_debug_info = partial(case_find_unused_parameters_kwarg_debug_off, level="INFO")
case_find_unused_parameters_kwarg_grad_is_view_debug_detail = partial(
    case_find_unused_parameters_kwarg_debug_off, level="DETAIL", view=True
)
case_find_unused_parameters_kwarg_grad_is_view_debug_info = partial(
    case_find_unused_parameters_kwarg_debug_off, level="INFO", view=True
)
case_find_unused_parameters_kwarg_grad_is_view_debug_off = partial(
    case_find_unused_parameters_kwarg_debug_off, level="OFF", view=True
)


def case_multiple_outputs_multiple_backward(self: Case) -> None:
    self.init()
    model = DistributedDataParallel(TwoOutputs().to(self.device), device_ids=[self.device])
    target = torch.randint(4, (4,), device=self.device)
    for output in model(torch.rand(4, 2)):
        nn.CrossEntropyLoss()(output, target).backward()


FOUR_DEVICES = ("nccl_backend_2gpu_module", "ddp_multi_device_module_config")
CASES = cases(globals())
LEFT_OUT = {
    "nccl_backend_multi_device_module_device_ids_None": "is nccl_backend_2gpu_module under another name",
    "nccl_backend_4gpu_module": "wants four devices for each of two ranks; as nccl_backend_2gpu_module",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_torchs_own(name: str, tmp_path: Path) -> None:
    hold(play(globals()[f"case_{name}"], tmp_path, devices=4 if name in FOUR_DEVICES else 2))


def test_nine_tenths_of_torchs_tests_pass() -> None:
    require_most(CASES, LEFT_OUT)
