"""A backend written in Python, as a program registers it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

Tensor = torch.Tensor
dist: Any = torch.distributed  # its stubs leave out much of what is called here
c10d: Any = torch.distributed.distributed_c10d


class _Done(dist.Work):  # type: ignore[misc]  # untyped
    """The work of `Echo`: there is nothing to wait for."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.future: Any = torch.futures.Future()
        self.future.set_result(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self.future


class Echo(dist.ProcessGroup):  # type: ignore[misc]  # untyped
    """A backend written in Python that answers every call without communication."""

    def getBackendName(self) -> str:
        return "Echo"

    def setGroupName(self, name: str) -> None:
        self.name_given = name

    def getGroupName(self) -> str:
        return getattr(self, "name_given", "")

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> _Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            for target in output:
                target.copy_(tensor)
        return _Done(outputs[0])

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        for tensor in tensors:
            tensor.add_(2)
        return _Done(tensors)

    def barrier(self, opts: Any = None) -> _Done:
        return _Done([])

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        for tensor in tensors:
            tensor.add_(1)
        return _Done(tensors)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> _Done:
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[self.rank()])
        return _Done(outputs)

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> _Done:
        for tensor in tensors:
            tensor.add_(1)
        return _Done(tensors)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> _Done:
        for tensor in tensors:
            tensor.add_(2)
        return _Done(tensors)
