"""ProcessGroupGloo's reductions (torch 2.13): each checks its arguments, lays the bytes out, and issues the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simdist.c10d.calls._operation import Shapes
from simdist.c10d.calls._payload import Scattered, Sparse
from simdist.c10d.calls._unseen import dispatch_modes, function_modes
from simdist.c10d.calls._work import SimWork
from simdist.c10d.surface import _memory
from simdist.c10d.surface._calls import Calls, reduction_of, root_of
from simdist.c10d.surface._compat import ProcessGroup, reduce_name, said_by, timeout_ns
from simdist.c10d.surface._layout import delivered, joint, source, targets, then
from simdist.c10d.surface._options import AllReduceOptions

if TYPE_CHECKING:
    from simdist.c10d.surface._arguments import Lists, Tensors

__all__ = ["Reductions"]

Tensor = torch.Tensor
_flat = _memory.flat
_usual = _memory.usual
_is_plain_or_sparse = _memory.is_plain_or_sparse
_ALLREDUCE_OPTIONS = dist.AllreduceOptions
_SUM: object = dist.ReduceOp.SUM
_UNSET = AllReduceOptions.timeout


class Reductions(Calls):
    """The reductions of a group."""

    asks_for_modes: tuple[str, ...] = ("allreduce",)
    allreduce_in_modes: Callable[..., SimWork]  # see `_modes.visible`

    def allreduce(
        self, tensors: Any = None, opts: object = None, timeout: timedelta | None = None, **kwargs: Any
    ) -> SimWork:
        """All-reduce one tensor in place; also takes a bare tensor, and a reduce operation instead of options.

        With several tensors, all of them on all ranks are operands, and all of them get the result.
        """
        if kwargs:  # named arguments of an overload
            given = {"tensors": tensors, "opts": opts, "timeout": timeout, **kwargs}
            given = {name: value for name, value in given.items() if value is not None}
            if "opts" not in given and "op" in given:
                given["opts"] = given.pop("op")
            if "tensors" not in given and "tensor" in given:
                given["tensors"] = given.pop("tensor")
            if "tensors" not in given or not given.keys() <= {"tensors", "opts", "timeout"}:
                raise said_by(ProcessGroup.allreduce, self, **given)
            return self.allreduce(**given)
        tensor: Any = tensors[0] if type(tensors) is list and len(tensors) == 1 else tensors
        seen = dispatch_modes() or function_modes()
        usual = None if seen else _usual(tensor)
        several = None
        if usual is None:
            if tensors is None:
                raise said_by(ProcessGroup.allreduce, self)
            if seen or not _is_plain_or_sparse(tensor):
                place = [tensors, opts, timeout]
                while place and place[-1] is None:
                    del place[-1]
                return self.allreduce_in_modes(*place)
            if not isinstance(tensor, Tensor):
                several = self._arguments.alike(tensors)
                tensor = several[0]
        passing = False
        if type(opts) is AllReduceOptions:
            reduction, asynchronous, limit_ns = opts.reduction, opts.asyncOp, self._timeout_ns
            if reduction is None or type(asynchronous) is not bool or opts.timeout is not _UNSET:
                return self.allreduce(tensors, opts.real(), timeout)
            passing = not asynchronous
        elif type(opts) is _ALLREDUCE_OPTIONS:
            # Hot: reading the operation's enum from the options costs more than comparing the operation.
            operation = opts.reduceOp
            reduction = "sum" if operation == _SUM else reduce_name(operation)  # `!=` takes twice as long
            limit_ns = timeout_ns(opts, self._timeout_ns)
            asynchronous = opts.asyncOp
        else:
            asynchronous = True
            reduction = reduction_of(opts, None)
            limit_ns = self._limit(opts, timeout)
        if usual is not None:
            data, size, dtype = usual
            key = "all_reduce", size, dtype, reduction  # hot: the key of `_issue`, in short form
            return self._communicator.issue(
                self._member, key, data, [tensor], limit_ns, asynchronous, None, None, 0, passing
            )
        if tensor.is_sparse:
            return self._sparse_all_reduce(several or [tensor], reduction, limit_ns)
        if several is not None and len(several) > 1:
            return self._all_reduce_several(several, reduction, limit_ns)
        data = _flat(tensor)
        return self._issue("all_reduce", tensor, data, data, [tensor], limit_ns, reduction, -1, None, asynchronous)

    def _all_reduce_several(self, tensors: list[Tensor], reduction: str, limit_ns: int) -> SimWork:
        # Gloo first reduces into the first tensor, and copies the result to the others. Torch divides only the first.
        tensor = tensors[0]
        data, *others = [_flat(part) for part in tensors]
        averaged = reduction == "avg" and (tensor.is_floating_point() or tensor.is_complex())
        said = "sum" if averaged else reduction
        shapes = Shapes.of(tensors)

        def join() -> None:
            function = self._backend.algorithm.combine(said, data.dtype)
            for other in others:
                function(data, other, data)

        def share() -> None:
            for other in others:
                other.copy_(data)
            if averaged:
                tensor.data.div_(self._size)

        return then(
            self._issue("all_reduce", tensor, data, data, tensors, limit_ns, said, extra=shapes, first=join), share
        )

    def _sparse_all_reduce(self, tensors: list[Tensor], reduction: str, limit_ns: int) -> SimWork:
        if reduction != "sum":
            raise RuntimeError(
                "ProcessGroupGloo::allreduce: unsupported reduction operation "
                "(allreduce of sparse tensors only works with ReduceOp.SUM)"
            )
        tensor = tensors[0]
        total = tensor.detach()
        for other in tensors[1:]:
            total = total + other.detach()
        entries = total.coalesce()
        work = self._issue("sparse_all_reduce", tensor, entries.values(), Sparse(tensor, entries), tensors, limit_ns)

        def share() -> None:
            with torch.no_grad():
                for other in tensors[1:]:
                    other.copy_(tensor)

        return then(work, share) if len(tensors) > 1 else work

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: object = None) -> SimWork:
        """All-reduce several tensors as one."""
        self._arguments.coalesced_reduce_arguments(tensors)
        parts = [source(tensor) for tensor in tensors]
        whole = torch.cat(parts)
        work = self._issue(
            "all_reduce",
            tensors[0],
            whole,
            whole,
            list(tensors),
            self._limit(opts),
            reduction_of(opts, None),
            extra=Shapes.of(tensors),
            shape=whole.shape,
        )
        pieces = torch.split_with_sizes(whole, [part.numel() for part in parts])
        return delivered(work, tensors, pieces, always=True)

    def reduce(
        self,
        tensors: Tensors,
        opts: object = None,
        op: object = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Reduce to a root; the other ranks keep the partial results that Gloo leaves there."""
        opts, root, root_tensor = root_of(self, "reduce", (tensors,), opts, root)
        tensor = self._arguments.rooted_tensors("reduce", tensors, root, root_tensor, self._size)[0]
        data = _flat(tensor)
        limit_ns = self._limit(opts, timeout)
        return self._issue("reduce", tensor, data, data, [tensor], limit_ns, reduction_of(opts, op), root)

    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Lists,
        opts: object = None,
        timeout: timedelta | None = None,
        *,
        op: object = None,
    ) -> SimWork:
        """Reduce a list of tensors, one for each rank."""
        output, inputs = self._arguments.scatter_arguments(output_tensors, input_tensors, self.rank(), self._size)
        chunks = [_flat(tensor) for tensor in inputs]  # each rank's memory, whatever its order
        if output.stride() != inputs[self.rank()].stride():
            chunks[self.rank()] = _flat(torch.empty_like(output).copy_(inputs[self.rank()]))
        if output.requires_grad or 0 in output.stride():
            output.copy_(inputs[self.rank()])  # as Gloo begins; torch may refuse it
        result = _flat(output)
        work = self._issue(
            "reduce_scatter",
            output,
            result,
            Scattered(result, chunks),
            [output],
            self._limit(opts, timeout),
            reduction_of(opts, op),
            extra=Shapes.of(inputs),
            size=sum(chunk.numel() for chunk in chunks) * result.element_size(),
            others=self._size - 1,  # one all-reduce for each entry
        )
        work.opaque = True
        return work

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: object = None) -> SimWork:
        """Reduce one tensor, and keep this rank's part of it."""
        self._arguments.scatter_single_arguments(output, tensor, self._size)
        whole, (result, direct) = source(tensor), targets([output])
        payload, limit_ns = Scattered(result[0], [whole]), self._limit(opts)
        work = self._issue("reduce_scatter", tensor, whole, payload, [output], limit_ns, reduction_of(opts, None))
        work.opaque = True
        return work if direct else delivered(work, [output], result)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork:
        """`reduce_scatter_single` for several pairs."""
        works = [self.reduce_scatter_single(o, t, opts) for o, t in zip(outputs, tensors, strict=True)]
        return joint(works, list(outputs))
