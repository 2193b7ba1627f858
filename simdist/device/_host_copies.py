"""Copies of devices' tensors for code that works on host memory; its results are copied back."""

from __future__ import annotations

from typing import TypeVar, cast

import torch

from simdist.device._aliases import host
from simdist.device.kernels._sparse import assign, host_of, is_sparse
from simdist.device.kernels._special import account_on, synchronize_current

__all__ = ["HostCopies"]

Tensor = torch.Tensor
_T = TypeVar("_T")


class HostCopies:
    """Copies of tensors in the memory of the host, each made once.

    Example:
        >>> def main():
        ...     tensor, copies = torch.ones(2, device="cuda"), HostCopies()
        ...     (on_host,) = copies.lower([tensor])
        ...     on_host.add_(1)
        ...     before = tensor.tolist()
        ...     copies.copy_back()
        ...     return on_host.device.type, before, tensor.tolist()
        >>> simdist.run(main, world_size=1, cluster=simdist.cluster.build(1, devices_per_host=1)).values
        [('cpu', [1.0, 1.0], [2.0, 2.0])]
    """

    def __init__(self) -> None:
        self.sparse = False  # one of the tensors is sparse
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # by id of the tensor, which is kept with it
        self._originals: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._copies)

    def lower(self, value: _T) -> _T:
        """Return the value with copies in place of tensors of devices, also inside lists.

        Parks until the current stream of their device is done with its present work: the copies are on it.
        """
        if isinstance(value, Tensor):
            return cast("_T", self._copy_of(value)) if value.is_cuda else value
        if isinstance(value, (list, tuple)):
            lowered = [self.lower(each) for each in value]
            changed = any(new is not old for new, old in zip(lowered, value, strict=True))
            return cast("_T", type(value)(lowered)) if changed else value
        return value

    def originals(self, value: _T) -> _T:
        """Return the value with the tensors of devices in place of their copies."""
        if isinstance(value, Tensor):
            return cast("_T", self._originals.get(id(value), value))
        if isinstance(value, (list, tuple)):
            return cast("_T", type(value)([self.originals(each) for each in value]))
        return value

    def copy_back(self) -> None:
        """Copy the values of the copies back to the tensors of devices.

        Runs on any thread, for it touches host memory only; with sparse tensors, which are made anew, on one of their
        process.
        """
        for tensor, copy in self._copies.values():
            if is_sparse(tensor):
                assign(tensor, copy, account_on(tensor._values(), tensor.get_device()))
            else:
                host(tensor.data).copy_(copy)

    def _copy_of(self, tensor: Tensor) -> Tensor:
        known = self._copies.get(id(tensor))
        if known is None:
            synchronize_current(tensor.get_device())
            self.sparse = self.sparse or is_sparse(tensor)
            copy = (host_of(tensor) if is_sparse(tensor) else host(tensor.data)).clone()
            self._copies[id(tensor)] = known = tensor, copy
            self._originals[id(copy)] = tensor
        return known[1]
