"""ProcessGroupGloo's collectives that only move data (torch 2.13), and its barrier."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from simdist.c10d.calls import METHODS
from simdist.c10d.calls._operation import Shapes
from simdist.c10d.calls._payload import Exchanged, Gathered, Outputs, Scattered
from simdist.c10d.calls._work import SimWork
from simdist.c10d.surface import _memory
from simdist.c10d.surface._calls import Calls, root_of
from simdist.c10d.surface._compat import ProcessGroup, said_by
from simdist.c10d.surface._layout import delivered, put, source, targets, then
from simdist.c10d.surface._options import BroadcastOptions

if TYPE_CHECKING:
    from simdist.c10d.surface._arguments import Lists, Tensors

__all__ = ["Copies"]

Tensor = torch.Tensor
_flat = _memory.flat
_of_one = METHODS["all_to_all_single"]
_ALL_TO_ALL = getattr(ProcessGroup, _of_one.name, None) or getattr(ProcessGroup, _of_one.old)  # before torch 2.13


class Copies(Calls):
    """The collectives of a group that only move data."""

    def broadcast(
        self, tensors: Tensors, opts: object = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> SimWork:
        """Broadcast the root's `rootTensor` in place, into all tensors of a rank if there are several."""
        options, root, root_tensor = root_of(self, "broadcast", (tensors,), opts, root)
        listed = self._arguments.rooted_tensors("broadcast", tensors, root, root_tensor, self._size)
        tensor = listed[root_tensor]
        data = _flat(tensor)
        asynchronous = options.asyncOp if options is not None else True
        shapes = Shapes.of(listed) if len(listed) > 1 else None
        limit_ns = self._limit(options, timeout)
        passing = not asynchronous and type(options) is BroadcastOptions
        work = self._issue(
            "broadcast", tensor, data, data, listed, limit_ns, "", root, shapes, asynchronous, passing=passing
        )
        if len(listed) > 1:
            others = [_flat(other) for index, other in enumerate(listed) if index != root_tensor]
            then(work, lambda: [other.copy_(data) for other in others])
        return work

    def allgather(
        self, output_tensors: Lists, input_tensors: Tensors, opts: object = None, timeout: timedelta | None = None
    ) -> SimWork:
        """Gather every rank's tensor on every rank; several tensors go into as many output lists."""
        outputs, inputs = self._arguments.gather_arguments(output_tensors, input_tensors, self._size)
        limit_ns = self._limit(opts, timeout)
        tensor = inputs[0]
        data = source(tensor)
        if len(inputs) == 1:
            flats, direct = targets(outputs[0])
            work = self._issue("all_gather", tensor, data, Gathered(flats, data), outputs[0], limit_ns)
            return work if direct else delivered(work, outputs[0], flats)
        whole = torch.cat([source(part) for part in inputs])
        received = [torch.empty_like(whole) for _ in range(self._size)]
        shapes = Shapes.of(inputs, [(len(outputs[0]), *tensor.shape)])
        shape = (len(inputs), *tensor.shape)
        work = self._issue(
            "all_gather", tensor, whole, Gathered(received, whole), outputs, limit_ns, extra=shapes, shape=shape
        )

        def spread() -> None:
            pieces = [piece for data in received for piece in data.chunk(len(inputs))]
            for output in outputs:
                for target, piece in zip(output, pieces, strict=True):
                    put(target, piece)

        return then(work, spread)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: object = None) -> SimWork:
        """Gather every rank's tensor into one."""
        parts = self._arguments.gather_single_arguments(output, tensor, self._size)
        data, (flats, direct) = source(tensor), targets(parts)
        work = self._issue("all_gather", tensor, data, Gathered(flats, data), parts, self._limit(opts))
        return work if direct else delivered(work, parts, flats)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork:
        """`all_gather_single` for several pairs, in one operation."""
        parts = [output.chunk(self._size) if output.dim() else (output,) for output in outputs]
        lists = [list(of_rank) for of_rank in zip(*parts, strict=False)]
        self._arguments.coalesced_gather_arguments(lists, tensors, self._size)
        return self._gather_coalesced(lists, tensors, outputs, opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork:
        """`allgather` of several tensors; `output_lists[r]` receives all of rank r's."""
        self._arguments.coalesced_gather_arguments(output_lists, tensors, self._size)
        lists = [list(outputs) for outputs in output_lists]
        return self._gather_coalesced(lists, tensors, lists, opts)

    def _gather_coalesced(
        self,
        lists: Sequence[Sequence[Tensor]],
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor] | Sequence[list[Tensor]],
        opts: object,
    ) -> SimWork:
        parts = [source(tensor) for tensor in tensors]
        sizes = [part.numel() for part in parts]
        whole = torch.cat(parts)
        received = [torch.empty_like(whole) for _ in lists]
        shapes = Shapes.of(tensors, [(len(tensors), *tensors[0].shape)])
        work = self._issue(
            "all_gather",
            tensors[0],
            whole,
            Gathered(received, whole),
            list(outputs),
            self._limit(opts),
            extra=shapes,
            shape=whole.shape,
        )

        def spread() -> None:
            for of_rank, data in zip(lists, received, strict=True):
                for target, piece in zip(of_rank, torch.split_with_sizes(data, sizes), strict=True):
                    put(target, piece)

        return then(work, spread)

    def gather(
        self,
        output_tensors: Lists,
        input_tensors: Tensors,
        opts: object = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Gather every rank's tensor on a root."""
        opts, root, _ = root_of(self, "gather", (output_tensors, input_tensors), opts, root)
        tensor, outputs = self._arguments.rooted_list(
            "gather", "output", input_tensors, output_tensors, root, self.rank(), self._size
        )
        data = source(tensor)
        flats, direct = (None, True) if outputs is None else targets(outputs)
        limit_ns = self._limit(opts, timeout)
        work = self._issue("gather", tensor, data, Gathered(flats, data), outputs or [], limit_ns, "", root)
        return work if direct else delivered(work, outputs or [], flats or [])

    def scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Lists,
        opts: object = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Give each rank one tensor of a root's list."""
        opts, root, _ = root_of(self, "scatter", (output_tensors, input_tensors), opts, root)
        tensor, inputs = self._arguments.rooted_list(
            "scatter", "input", output_tensors, input_tensors, root, self.rank(), self._size
        )
        data = _flat(tensor)
        sent = None if inputs is None else _memory.flat_uniform(inputs) or [_flat(part) for part in inputs]
        return self._issue(
            "scatter", tensor, data, Scattered(data, sent), [tensor], self._limit(opts, timeout), "", root
        )

    def alltoall(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork:
        """Send `input_tensors[r]` to rank r, on each rank."""
        self._arguments.exchange_arguments(output_tensors, input_tensors, self._size)
        # Gloo exchanges one row of elements in their logical order.
        flats, direct = targets(output_tensors)
        sent = [source(tensor) for tensor in input_tensors]
        shapes = Shapes.of(input_tensors, [output.shape for output in output_tensors])
        work = self._exchange(input_tensors[0], flats, sent, list(output_tensors), shapes, self._limit(opts))
        return work if direct else delivered(work, output_tensors, flats)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: object = None,
        input_split_sizes: object = None,
        opts: object = None,
        timeout: timedelta | None = None,
    ) -> SimWork:
        """`alltoall` with the parts of one tensor along its first dimension; without splits, parts of equal bytes."""
        given = [
            list(sizes) if isinstance(sizes, Generator) else sizes for sizes in (output_split_sizes, input_split_sizes)
        ]
        outputs, inputs = [[] if sizes is None else self._arguments.split_sizes(sizes) for sizes in given]
        if outputs is None or inputs is None:
            if self._member.process.torch_state.stands_for_threads:
                output_sizes, input_sizes = (each.tolist() if isinstance(each, Tensor) else each for each in given)
                return self.all_to_all_single(output, tensor, output_sizes, input_sizes, opts, timeout)
            raise said_by(_ALL_TO_ALL, self, output, tensor, *given, *([] if opts is None else [opts]))
        self._arguments.require_contiguous_input(tensor)
        shapes, limit_ns = Shapes.of([tensor], [output.shape]), self._limit(opts, timeout)
        try:
            flats, sent = self._arguments.exchanged_parts(output, tensor, outputs, inputs, self.rank(), self._size)
        except RuntimeError as error:
            # Gloo finds this error when it begins, so the work fails, not the call.
            return self._exchange(tensor, [], [], [output], shapes, limit_ns, error)
        return self._exchange(tensor, flats, sent, [output], shapes, limit_ns)

    def _exchange(
        self,
        tensor: Tensor,
        flats: list[Tensor],
        sent: list[Tensor],
        result: Outputs,
        shapes: Shapes,
        limit_ns: int,
        refusal: RuntimeError | None = None,
    ) -> SimWork:
        return self._issue(
            "all_to_all",
            tensor,
            tensor,
            Exchanged(flats, sent),
            result,
            limit_ns,
            extra=shapes,
            size=sum(part.numel() * part.element_size() for part in sent),
            refusal=refusal,
        )

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> SimWork:
        """Wait for every rank, after everything that this rank issued before."""
        return self._issue("barrier", None, None, None, [], self._limit(opts, timeout))
