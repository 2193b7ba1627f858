"""The call of a group's collective. Only this module makes the key by which calls of ranks are compared."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from simdist.c10d.calls._operation import Key, Shapes
from simdist.c10d.calls._payload import Outputs, Payload
from simdist.c10d.calls._work import SimWork
from simdist.c10d.surface._compat import ProcessGroup, reduce_name, said_by, timeout_ns
from simdist.c10d.surface._identity import GroupBackend
from simdist.c10d.surface._options import BroadcastOptions

__all__ = ["Calls", "lists_of", "reduction_of", "root_of"]

Tensor = torch.Tensor
_UNSET = BroadcastOptions.timeout


class Calls(GroupBackend):
    """A group that can issue operations."""

    def announce(self, name: str) -> None:
        """Announce the next collective, `name`, before the call, because something else has to happen in between.

        Raises:
            Exception: a fault raises it in place of the call.
        """
        self._member.call_ahead(name)

    def _issue(
        self,
        name: str,
        tensor: Tensor | None,
        data: Tensor | None,
        payload: Payload,
        outputs: Outputs,
        limit_ns: int,
        reduction: str = "",
        root: int = -1,
        extra: Shapes | None = None,
        asynchronous: bool = True,
        *,
        shape: tuple[int, ...] | None = None,
        size: int = -1,
        refusal: RuntimeError | None = None,
        first: Callable[[], None] | None = None,
        others: int = 0,
        passing: bool = False,
    ) -> SimWork:
        """Call operation `name` with tensors like `tensor`, if it has any; they have `size` bytes, or those of `data`.

        See `Communicator.issue`.
        """
        key = Key(name)
        if tensor is not None and data is not None:
            element = data.element_size()
            dims = tensor.shape if shape is None else shape
            size = data.numel() * element if size < 0 else size
            key = Key(name, size, element, tensor.dtype, dims, reduction, root, extra)
        return self._communicator.issue(
            self._member, key, payload, outputs, limit_ns, asynchronous, refusal, first, others, passing
        )

    def _limit(self, opts: object, timeout: timedelta | None = None) -> int:
        if isinstance(opts, timedelta):  # the options' place had a reduce operation, a root or nothing
            timeout, opts = opts, None
        if timeout is not None:
            return round(timeout.total_seconds() * 1e9)
        return timeout_ns(opts, self._timeout_ns)


def root_of(
    group: GroupBackend, name: str, tensors: tuple[object, ...], opts: object, root: int | None
) -> tuple[Any, int, int]:
    """Return the options, if any, the root and its tensor; the root may be given in the options' place.

    Raises:
        TypeError: pybind has no such overload: a root together with lists, or neither a root nor options.
    """
    if opts is None:
        return None, root or 0, 0
    if type(opts) is BroadcastOptions:  # hot
        if root is None and type(opts.rootRank) is int and type(opts.asyncOp) is bool and opts.timeout is _UNSET:
            return opts, opts.rootRank, opts.rootTensor
        opts = opts.real()
    given = getattr(opts, "rootRank", None)  # hot: each access is a call of C++
    if given is None:
        one = tensors[1] if name == "gather" else tensors[0]
        if not isinstance(one, torch.Tensor) or not hasattr(opts, "__index__"):
            raise said_by(getattr(ProcessGroup, name), group, *tensors, opts)
        return None, operator.index(opts), 0
    return opts, given if root is None else root, getattr(opts, "rootTensor", 0)


def lists_of(tensors: Any) -> Sequence[Sequence[Tensor]]:
    """Return a list of lists of tensors; a single list, as in a call with a bare tensor and a root, is wrapped."""
    alone = isinstance(tensors, (list, tuple)) and len(tensors) > 0 and isinstance(tensors[0], torch.Tensor)
    return [tensors] if alone else tensors


def reduction_of(opts: object, operation: object) -> str:
    """Return the name of the reduce operation, given alone, in options, or in the options' place."""
    if operation is None:
        operation = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    return reduce_name(operation)
