"""Random torch.distributed programs, drawn as plain data, so that they can be cut down, printed and run again.

A `Program` is a list of statements; `_fuzz_statements.perform` runs it on a rank. Every rank draws the same statements,
so programs are correct unless a statement is `odd`: then one rank does something else there, and the ranks disagree. A
statement draws its data from its own number, never from a shared generator, so that it does not change when other
statements are left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

__all__ = ["KINDS", "Program", "Statement", "draw_program"]

REDUCED = ("float32", "float64", "bfloat16", "int32", "int64", "uint8")
MOVED = (*REDUCED, "bool", "complex64", "float16")
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")


@dataclass(frozen=True)
class Statement:
    """One line of a program. `number` seeds its data; `odd` is the rank that does it differently, if any."""

    kind: str
    number: int
    group: int = 0  # index among the groups made so far, modulo
    size: int = 4
    dtype: str = "float32"
    op: str = "SUM"
    root: int = 0  # modulo the group's size
    asynchronous: bool = False
    layout: str = "plain"  # or "transposed", "strided", "scalar"
    odd: int | None = None
    way: str = "skip"  # what the odd rank does: "skip", "shape", "dtype", "other", "twice"
    body: tuple[Statement, ...] = ()  # of a loop
    times: int = 1


@dataclass(frozen=True)
class Program:
    """The program that every rank runs."""

    statements: tuple[Statement, ...]
    timeout_ms: int = 1_800_000
    goes_on: bool = False  # catches the error of a statement, and goes on with the next
    destroys: bool = True  # destroys its groups at the end

    @property
    def disagrees(self) -> bool:
        """True if a rank may do something else than others at some statement, such as go on after an error."""
        return self.goes_on or any(statement.odd is not None for statement in self.statements)

    def without(self, index: int) -> Program:
        """Return the program without one statement."""
        return replace(self, statements=self.statements[:index] + self.statements[index + 1 :])

    def text(self) -> str:
        """Return the program as Python would show it, without defaults."""
        plain = asdict(Statement("", 0))

        def shown(statement: Statement, indent: str) -> list[str]:
            given = {name: value for name, value in asdict(statement).items() if plain[name] != value}
            given.pop("body", None)
            lines = [f"{indent}Statement({', '.join(f'{name}={value!r}' for name, value in given.items())})"]
            return lines + [line for inner in statement.body for line in shown(inner, indent + "    ")]

        head = f"timeout_ms={self.timeout_ms}, goes_on={self.goes_on}, destroys={self.destroys}"
        return "\n".join([head, *(line for statement in self.statements for line in shown(statement, "  "))])


# -- drawing ---------------------------------------------------------------------------------------------------------

# Weights: the calls that programs use most are the most frequent.
KINDS = {
    "all_reduce": 10,
    "broadcast": 5,
    "reduce": 4,
    "all_gather": 5,
    "all_gather_single": 4,
    "gather": 3,
    "scatter": 3,
    "reduce_scatter": 3,
    "reduce_scatter_single": 3,
    "all_to_all": 3,
    "all_to_all_single": 3,
    "uneven_exchange": 2,
    "all_reduce_coalesced": 2,
    "coalescing": 1,
    "sparse": 1,
    "barrier": 5,
    "monitored_barrier": 2,
    "ring": 4,
    "pair": 4,
    "any_source": 2,
    "batch": 2,
    "many_messages": 1,
    "objects": 2,
    "object_list": 2,
    "object_gather": 1,
    "object_scatter": 1,
    "store": 3,
    "store_wait": 2,
    "sleep": 4,
    "step": 4,
    "draw": 2,
    "new_group": 3,
    "split_groups": 1,
    "destroy_group": 1,
    "again": 1,
    "wait_all": 3,
    "poll": 1,
    "future": 2,
    "functional": 2,
    "ddp": 3,
    "mesh": 1,
    "print": 1,
    "date": 1,
    "loop": 3,
    "uneven_work": 1,
    "inference": 1,
}


def draw_program(seed: int, *, disagreeing: float = 0.15) -> Program:
    """Return the program with this number. In a share `disagreeing` of the programs ranks disagree at a statement."""
    source = random.Random(f"program {seed}")
    count = source.choice((1, 2, 3, 4, 6, 8, 12, 20, 30))
    numbers = iter(range(1, 100_000))
    statements = [_draw(source, numbers, depth=0) for _ in range(count)]
    if source.random() < disagreeing:
        index = source.randrange(len(statements))
        way = source.choice(("skip", "shape", "dtype", "other", "twice"))
        statements[index] = replace(statements[index], odd=source.randrange(8), way=way)
    timeout_ms = source.choice((1_800_000, 1_800_000, 60_000, 5_000, 500))
    return Program(tuple(statements), timeout_ms, goes_on=source.random() < 0.3, destroys=source.random() < 0.8)


def _draw(source: random.Random, numbers: Iterator[int], depth: int) -> Statement:
    kind = source.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "loop" and depth:
        kind = "all_reduce"
    statement = Statement(
        kind,
        next(numbers),
        group=source.choice((0, 0, 0, 1, 2, 3)),
        size=source.choice((0, 1, 1, 2, 3, 4, 7, 8, 16, 33, 100, 1000, 5000)),
        dtype=source.choice(REDUCED),
        op=source.choice(REDUCTIONS),
        root=source.randrange(8),
        asynchronous=source.random() < 0.3,
        layout=source.choice(("plain", "plain", "plain", "transposed", "scalar")),
    )
    if kind in ("all_gather", "gather", "scatter", "broadcast", "all_to_all", "pair", "ring"):
        statement = replace(statement, dtype=source.choice(MOVED))
    if kind == "gather" and statement.dtype == "complex64":
        statement = replace(statement, dtype="float32")  # Gloo gathers no complex numbers
    if statement.op == "AVG" and not statement.dtype.startswith(("float", "bfloat")):
        statement = replace(statement, op="SUM")
    if kind == "loop":
        body = tuple(_draw(source, numbers, depth + 1) for _ in range(source.choice((1, 2, 3))))
        statement = replace(statement, body=body, times=source.choice((2, 3, 5, 10)))
    return statement
