"""Tensors that are not plain memory, and the calls that may get them: for tests and for `fuzz.py --odd`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import simdist
from simdist.errors import InternalError

__all__ = ["CLONES", "KINDS", "OPERATIONS", "SIZE", "Make", "OddProgram", "Refusing", "draw_odd_program", "fault_of"]
__all__ += ["fill", "make_on", "on_root"]

c10d: Any = dist  # the stubs do not export every name
_two: Any = TwoTensor
_torch: Any = torch  # for names that the stubs leave out
wait_tensor: Any = functional.wait_tensor  # not typed
Tensor = torch.Tensor
Make = Callable[[], Tensor]
SIZE = 2  # ranks, and so the length of lists


class Refusing(Tensor):
    """A wrapper whose class supports no operator."""

    @staticmethod
    def __new__(cls) -> Refusing:
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Refusing = make(cls, (4,), dtype=torch.float32)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"no {func}")


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(4)


def freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def cut_off() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(8)
    return tensor


def _wrapped() -> Tensor:
    wrap: Any = c10d._functional_collectives.AsyncCollectiveTensor
    made: Tensor = wrap(torch.ones(4))
    return made


def cut_off_behind() -> Tensor:
    tensor = torch.ones(4)[2:]  # the memory left has room for its size, but not from its offset on
    tensor.untyped_storage().resize_(8)
    return tensor


# The function that makes each kind, on the current default device.
KINDS: dict[str, Make] = {
    "cut off behind": cut_off_behind,
    "two": lambda: _two(torch.ones(4), torch.full((4,), 2.0)),
    "asynchronous": _wrapped,
    "functional": lambda: torch._to_functional_tensor(torch.ones(4)),
    "parameter": lambda: torch.nn.Parameter(torch.ones(4)),
    "plain": lambda: torch.ones(4),
    "scalar": lambda: torch.tensor(1.0),
    "conjugate": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    "negative": lambda: torch._neg_view(torch.ones(4)),
    "transposed": lambda: torch.ones(2, 3).t(),
    "channels last": lambda: torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.ones(4, dtype=torch.uint16),
    "tiny": lambda: torch.zeros(4, dtype=_torch.uint1),
    "refusing": Refusing,
    "meta": lambda: torch.ones(4, device="meta"),
    "fake": fake,
    "sparse": lambda: torch.ones(4).to_sparse(),
    "csr": lambda: torch.ones(2, 2).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
    "per channel": lambda: torch.quantize_per_channel(torch.ones(4, 2), torch.ones(4), torch.zeros(4), 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged),
    "mkldnn": lambda: torch.ones(4).to_mkldnn(),
    "zeros without memory": lambda: torch._efficientzerotensor(4),
    "expanded": lambda: torch.ones(1).expand(4),
    "overlapping": lambda: torch.ones(8).as_strided((4, 2), (1, 1)),
    "far apart": lambda: torch.ones(1000)[::333],
    "empty": lambda: torch.ones(0),
    "freed": freed,
    "cut off": cut_off,
    "bits": lambda: torch.zeros(4, dtype=torch.bits8),
}


def both(make: Make) -> list[Tensor]:
    return [make() for _ in range(SIZE)]


def on_root(tensors: list[Tensor]) -> list[Tensor] | None:
    return tensors if dist.get_rank() == 0 else None


def whole(make: Make) -> Tensor:
    return torch.ones(8, device=make().device.type if make().device.type != "meta" else "cpu")


def fill(call: Callable[..., Any], target: Any, *others: Any) -> Any:
    """Call a function and return the target that it fills."""
    call(target, *others)
    return target


def message(make: Make) -> Tensor:
    tensor = make()
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return tensor


def batch(make: Make) -> Tensor:
    target, peer = make(), 1 - dist.get_rank()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, make(), peer), dist.P2POp(dist.irecv, target, peer)]):
        work.wait()
    return target


OPERATIONS: dict[str, Callable[[Make], Any]] = {
    "all_reduce": lambda make: fill(dist.all_reduce, make()),
    "broadcast": lambda make: fill(dist.broadcast, make(), 0),
    "reduce": lambda make: fill(dist.reduce, make(), 0),
    "all_gather": lambda make: fill(dist.all_gather, both(make), make()),
    "all_gather_single": lambda make: fill(dist.all_gather_into_tensor, whole(make), make()),
    "gather": lambda make: (outputs := on_root(both(make)), dist.gather(make(), outputs, 0))[0],
    "scatter": lambda make: fill(dist.scatter, make(), on_root(both(make)), 0),
    "reduce_scatter": lambda make: fill(dist.reduce_scatter, make(), both(make)),
    "reduce_scatter_single": lambda make: fill(dist.reduce_scatter_tensor, make(), whole(make)),
    "all_to_all": lambda make: fill(dist.all_to_all, both(make), both(make)),
    "all_to_all_single": lambda make: fill(dist.all_to_all_single, make(), make()),
    "coalesced": lambda make: fill(c10d.all_reduce_coalesced, both(make)),
    "message": message,
    "batch": batch,
    "functional": lambda make: wait_tensor(functional.all_reduce(make(), "sum", c10d.group.WORLD)),
}
CLONES = ("freed", "cut off", "cut off behind")  # torch's own clone of these reads memory that does not exist


def make_on(device: str, make: Make) -> Make:
    """Return a function that makes the same tensor on a device."""

    def made() -> Tensor:
        with torch.device(device):
            return make()

    return made


# -- random programs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OddProgram:
    """A list of calls, each with the kinds of tensors that it gets in turn."""

    calls: tuple[tuple[str, tuple[str, ...]], ...]
    backend: str
    seed: int

    def text(self) -> str:
        """Return the program as text for a report."""
        return "\n".join([f"backend {self.backend}", *(f"  {name}: {', '.join(kinds)}" for name, kinds in self.calls)])


def draw_odd_program(number: int, backend: str) -> OddProgram:
    """Return the program with this number."""
    source = random.Random(f"odd program {number}")
    calls = []
    for _ in range(source.choice((1, 1, 2, 3, 5))):
        name = source.choice(list(OPERATIONS))
        # Torch's own clone reads memory that does not exist, which kills the process.
        known = [kind for kind in KINDS if not (name == "functional" and kind in CLONES)]
        kinds = tuple(source.choice(known) for _ in range(source.choice((1, 1, 1, 2, 3))))
        calls.append((name, kinds))
    return OddProgram(tuple(calls), backend, source.randrange(1 << 30))


def _perform(program: OddProgram) -> list[str]:
    dist.init_process_group(program.backend, timeout=timedelta(seconds=5))
    device = "cpu" if program.backend == "gloo" else f"cuda:{dist.get_rank()}"
    found = []
    for name, kinds in program.calls:
        turn = iter(range(1_000_000))

        def make(kinds: tuple[str, ...] = kinds, turn: Any = turn) -> Tensor:
            return make_on(device, KINDS[kinds[next(turn) % len(kinds)]])()

        try:
            OPERATIONS[name](make)
        except Exception as error:  # any error of torch; the caller looks for errors of simdist
            if isinstance(error, InternalError):
                raise
            found.append(type(error).__name__)
        else:
            found.append("ok")
    return found


def fault_of(program: OddProgram) -> str | None:
    """Run a program twice; returns what is wrong, an internal error of simdist or a difference, None if nothing is."""
    seen = []
    for _ in range(2):
        try:
            result = simdist.run(_perform, world_size=SIZE, args=(program,), backend=program.backend, seed=program.seed)
        except InternalError as error:
            return f"InternalError: {error}"
        broken = [rank.exception for rank in result.ranks if isinstance(rank.exception, InternalError)]
        if broken:
            return f"InternalError: {broken[0]}"
        seen.append((result.digest, result.values))
    return None if seen[0] == seen[1] else f"two runs differ: {seen[0]} and {seen[1]}"
