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
