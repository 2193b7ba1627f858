"""The checks of a backend for the arguments of calls, with the backend's own error texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch

__all__ = ["Arguments", "Lists", "Tensors", "row_counts"]

Tensor = torch.Tensor

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""An argument: a list of tensors, or one tensor."""

Lists: TypeAlias = Tensors | Sequence[Sequence[torch.Tensor]]
"""An argument: a list of lists of tensors; one list, if the other argument is one tensor; or one tensor, or a list
of one."""


def row_counts(tensor: Tensor, sizes: Sequence[int] | None, size: int) -> tuple[Sequence[int], int]:
    """Return how many rows of a tensor each rank gets in an all_to_all_single, and the elements of a row.

    Raises:
        RuntimeError: the sizes do not fit; with torch's text.
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
    """Checks of a backend: each takes the arguments of a group's method, and returns them in one form.

    A module can have this protocol.

    Raises:
        RuntimeError: the backend does not take the arguments; all methods raise this.
    """

    def check(self, name: str, reduction: str, dtype: torch.dtype) -> None:
        """Refuse an operation that the backend has no function for."""
        ...

    def single(self, kind: str, tensors: Tensors) -> Tensor:
        """Return the one tensor of a send or receive, which takes a list of one or a bare tensor."""
        ...

    def alike(self, tensors: Any) -> list[Tensor]:
        """Return the tensors of an allreduce: at least one, all of one layout, type and shape."""
        ...

    def coalesced_reduce_arguments(self, tensors: Sequence[Tensor]) -> None:
        """Refuse tensors that allreduce_coalesced does not take."""
        ...

    def rooted_tensors(self, operation: str, tensors: Tensors, root: int, root_tensor: int, size: int) -> list[Tensor]:
        """Return the tensors of a broadcast, or the one of a reduce."""
        ...

    def require_contiguous(self, tensor: Tensor) -> None:
        """Refuse a tensor that is not contiguous: Gloo's point-to-point operations take no others."""
        ...

    def require_peer(self, kind: str, peer: int | None, rank: int, size: int) -> None:
        """Refuse a peer that is the rank itself, or outside the group."""
        ...

    def gather_arguments(self, outputs: Lists, inputs: Tensors, size: int) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Return the output lists and the inputs of an allgather, given as lists or as one list and one input."""
        ...

    def gather_single_arguments(self, output: Tensor, tensor: Tensor, size: int) -> list[Tensor]:
        """Return the flat parts of the output of an all_gather_into_tensor."""
        ...

    def coalesced_gather_arguments(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
    ) -> None:
        """Refuse tensors that allgather_coalesced does not take."""
        ...

    def scatter_arguments(self, outputs: Tensors, inputs: Lists, rank: int, size: int) -> tuple[Tensor, list[Tensor]]:
        """Return the output and the input list of a reduce_scatter, given in lists of one or bare."""
        ...

    def scatter_single_arguments(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Refuse tensors that reduce_scatter_tensor does not take."""
        ...

    def exchange_arguments(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Refuse lists that all_to_all does not take."""
        ...

    def require_contiguous_input(self, tensor: Tensor) -> None:
        """Refuse an input of all_to_all_single that is not contiguous; its output need not be."""
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
        """Return the parts that an all_to_all_single receives and sends, as bytes: one part for each rank."""
        ...

    def split_sizes(self, sizes: object) -> list[int] | None:
        """Return the sizes as C++ takes them: any sequence, set or generator of whole numbers; None if it refuses."""
        ...

    def rooted_list(
        self, operation: str, name: str, own: Tensors, listed: Lists, root: int, rank: int, size: int
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Return the rank's own tensor of a gather or scatter, and on the root the list of all tensors."""
        ...
