import torch

SOURCE: int

def ring(
    type: int,
    operation: int,
    sources: list[int],
    targets: list[int],
    first: int,
    last: int,
    chunk: int,
    owner: int,
    step: int,
    factor: float,
    divisor: float,
    each: int,
    /,
) -> int: ...
def partial_ring(type: int, operation: int, tensors: list[int], root: int, length: int, chunk: int, /) -> int: ...
def tree(
    type: int,
    operation: int,
    sources: list[int],
    targets: list[int],
    program: list[int],
    first: int,
    last: int,
    factor: float,
    /,
) -> int: ...
def copy(targets: list[int], sources: list[int], sizes: list[int], /) -> bool: ...
def copied(addresses: list[int], sizes: list[int], /) -> list[bytes | None]: ...
def holds(addresses: list[int], copies: list[bytes | None], /) -> bool: ...
def lying(tensors: list[torch.Tensor | None], plain: frozenset[type], /) -> tuple[list[int], list[int]] | None: ...
def not_finite(tensors: list[torch.Tensor | None], plain: frozenset[type], types: dict[torch.dtype, int], /) -> int: ...
