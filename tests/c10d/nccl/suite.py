"""The common parts of PyTorch's own tests of NCCL: a case, how it runs, the models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as c10d_module
import torch.nn.functional as F  # as torch's tests have it
from torch import nn

import simdist
from simdist.cluster import build

dist: Any = c10d_module


@dataclass
class Case:
    """The attributes of torch's test case: its rank, the world, a file for the store."""

    file_name: str
    backend_default: str = "nccl"

    @property
    def rank(self) -> int:
        """The rank of the process."""
        return int(os.environ["RANK"])

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return int(os.environ["WORLD_SIZE"])

    @property
    def device(self) -> torch.device:
        """The device of the rank."""
        return torch.device("cuda", self.rank % torch.cuda.device_count())

    def store(self) -> Any:
        """A new store on the file."""
        return dist.FileStore(self.file_name, self.world_size)

    def init(self, backend: str | None = "nccl", **settings: Any) -> Any:
        """Make the default group."""
        settings.setdefault("store", self.store())
        dist.init_process_group(backend, rank=self.rank, world_size=self.world_size, **settings)
        return dist.distributed_c10d._get_default_group()


def play(
    case: Callable[[Case], None], tmp_path: Path, *, size: int = 2, devices: int = 0, env: Any = ()
) -> simdist.RunResult:
    """Run a case: its ranks, each on a device of one host, with the variables that torch's tests set."""
    return simdist.run(
        case,
        world_size=size,
        args=[Case(str(tmp_path / "store"))],
        backend="nccl",
        cluster=build(size, devices_per_host=devices or size),
        env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **dict(env)},
    )


def hold(result: simdist.RunResult) -> None:
    """Require that every rank has ended well; raises the error of the first rank that has not."""
    failed = next((rank.exception for rank in result.ranks if rank.exception is not None), None)
    if failed is not None:
        raise failed
    result.raise_for_failure()


def raises(kind: type[BaseException], call: Callable[[], Any], text: str = "") -> BaseException:
    """Return the error of a call, which must be of that kind."""
    with pytest.raises(kind, match=text or None) as caught:
        call()
    return caught.value


def own_devices(self: Case) -> list[torch.device]:
    """Return this rank's share of all devices."""
    each = torch.cuda.device_count() // self.world_size
    return [torch.device("cuda", self.rank * each + place) for place in range(each)]


def net() -> nn.Module:
    """Return the model of the test cases."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 10, bias=False), nn.ReLU(), nn.Linear(10, 4, bias=False))


class TwoOutputs(nn.Module):
    """Two models in one."""

    def __init__(self) -> None:
        super().__init__()
        self.module0, self.module1 = net(), net()

    def forward(self, data: torch.Tensor) -> Any:
        """Return both outputs."""
        return F.softmax(self.module0(data), dim=1), F.softmax(self.module1(data), dim=1)


def cases(names: Iterable[str]) -> list[str]:
    """Return torch's names of the cases among the names of a file."""
    return [name.removeprefix("case_") for name in names if name.startswith("case_")]


def require_most(passing: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Require that nine tenths of a part of torch's file pass, and that the others have a reason."""
    assert passing
    assert all(left_out.values())
    assert len(passing) >= 9 * len(left_out)


def ones(self: Case, *shape: int, times: float = 1) -> torch.Tensor:
    """Return a tensor with one number everywhere, on the rank's device."""
    return torch.full(shape, float(times), device=self.device)


def same(tensor: torch.Tensor, value: float) -> bool:
    """True if all elements are that number."""
    return bool((tensor == value).all())
