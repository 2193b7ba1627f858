"""What refuses a call: the checks that a backend makes of the arguments, in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch

__all__ = ["Arguments", "Lists", "Tensors", "row_counts"]

Tensor = torch.Tensor

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""What a method takes: a list of tensors, or one alone."""

Lists: TypeAlias = Tensors | Sequence[Sequence[torch.Tensor]]
"""What a method takes: a list of lists of tensors; beside a single tensor, one list; or a list of one, or one alone."""


def row_counts(tensor: Tensor, sizes: Sequence[int] | None, size: int) -> tuple[Sequence[int], int]:
    """How many rows of a tensor each rank gets in an all_to_all_single, and the elements of a row.

    Raises:
        RuntimeError: with torch's text; the sizes do not fit.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % size:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        sizes = [rows // size] * size
    elif len(sizes) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    elif sum(sizes) != rows:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return sizes, tensor.numel() // rows if rows else 0


class Arguments(Protocol):
    """Each takes what a method of the group was given, and returns it in one form; a module can be one.

    Raises:
        RuntimeError: the backend does not take it; so all of them do.
    """

    def check(self, name: str, reduction: str, dtype: torch.dtype) -> None:
        """Refuse an operation that the backend has no function for."""
        ...

    def single(self, kind: str, tensors: Tensors) -> Tensor:
        """The one tensor of a send or receive, which takes a list of one, or a bare tensor."""
        ...

    def alike(self, tensors: Any) -> list[Tensor]:
        """The tensors of an allreduce: at least one, all of one layout, type and shape."""
        ...

    def coalesced_reduce_arguments(self, tensors: Sequence[Tensor]) -> None:
        """What allreduce_coalesced wants."""
        ...

    def rooted_tensors(self, operation: str, tensors: Tensors, root: int, root_tensor: int, size: int) -> list[Tensor]:
        """The tensors of a broadcast, or the one of a reduce."""
        ...

    def require_contiguous(self, tensor: Tensor) -> None:
        """Gloo's point-to-point operations take contiguous tensors only."""
        ...

    def require_peer(self, kind: str, peer: int | None, rank: int, size: int) -> None:
        """A peer in the group that is not the rank itself."""
        ...

    def gather_arguments(self, outputs: Lists, inputs: Tensors, size: int) -> tuple[list[list[Tensor]], list[Tensor]]:
        """The output lists and the inputs of an allgather; or its one output list and its one input."""
        ...

    def gather_single_arguments(self, output: Tensor, tensor: Tensor, size: int) -> list[Tensor]:
        """The flat parts of the output of an all_gather_into_tensor."""
        ...

    def coalesced_gather_arguments(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
    ) -> None:
        """What allgather_coalesced wants."""
        ...

    def scatter_arguments(self, outputs: Tensors, inputs: Lists, rank: int, size: int) -> tuple[Tensor, list[Tensor]]:
        """The output and the input list of a reduce_scatter, in lists of one or bare."""
        ...

    def scatter_single_arguments(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """The tensors of a reduce_scatter_tensor."""
        ...

    def exchange_arguments(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """The lists of an all_to_all."""
        ...

    def require_contiguous_input(self, tensor: Tensor) -> None:
        """An all_to_all_single sends contiguous tensors only; what it receives goes to the memory of any."""
        ...

    def exchanged_parts(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int] | None,
        input_sizes: Sequence[int] | None,
        rank: int,
        size: int,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What an all_to_all_single receives and sends, as bytes: one part for each rank."""
        ...

    def split_sizes(self, sizes: object) -> list[int] | None:
        """The sizes as C++ takes them: any sequence, set or generator of whole numbers; None if it would not."""
        ...

    def rooted_list(
        self, operation: str, name: str, own: Tensors, listed: Lists, root: int, rank: int, size: int
    ) -> tuple[Tensor, list[Tensor] | None]:
        """The rank's own tensor, and the list of all of them on the root, of a gather or scatter."""
        ...
