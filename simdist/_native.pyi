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
def copied(
    tensors: list[torch.Tensor | None], plain: frozenset[type], table: object, most: int, /
) -> list[bytes | None] | None: ...
def holds(
    tensors: list[torch.Tensor | None], plain: frozenset[type], table: object, copies: list[bytes | None], /
) -> bool: ...
def not_finite(tensors: list[torch.Tensor | None], plain: frozenset[type], table: object, /) -> int: ...
def row(plain: frozenset[type], table: object, tensor: object, /) -> tuple[int, int] | None: ...
def uniform(plain: frozenset[type], table: object, tensors: list[torch.Tensor], /) -> bool: ...
def addresses(plain: frozenset[type], table: object, tensors: list[torch.Tensor], /) -> list[int] | None: ...
def content(plain: frozenset[type], table: object, tensor: torch.Tensor, most: int, /) -> bytes | None: ...
def exchange(watched: bytes, places: bytes, seen: bytes, contents: bytes, /) -> bool: ...
