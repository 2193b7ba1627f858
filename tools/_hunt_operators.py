"""The work of a rank in a hunt: it compares one operator of torch's own database on DTensors and on plain tensors."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["Difference", "Layout", "differences_of", "layouts", "operators"]

_RELATIVE = 1e-3  # share of the largest value; sums in another order differ by far less
_SMALLEST = 0.1  # least value to count as the largest: values that cancel out leave noise
_GRADIENTS = 5  # the seed of the outputs' weights


class Layout(NamedTuple):
    """The layout of a call's tensors on the ranks; `placements` gets a tensor's place and number of dimensions."""

    name: str
    mesh: str  # "line" has all ranks in one dimension, "square" half of them in each of two
    placements: Callable[[int, int], Sequence[Placement]]


class Difference(NamedTuple):
    """One result that differs on DTensors: `what` is "output 0" or "gradient 1", counted over tensors."""

    shapes: str
    arguments: str
    what: str
    how: str


def _first(*placements: Placement) -> Callable[[int, int], Sequence[Placement]]:
    return lambda place, dimensions: placements if place == 0 else [Replicate()] * len(placements)


def _all(*places: int) -> Callable[[int, int], Sequence[Placement]]:
    return lambda place, dimensions: [Shard(at % dimensions) if dimensions else Replicate() for at in places]


_LAYOUTS = (
    *(Layout(f"first on dimension {at}", "line", _first(Shard(at))) for at in range(4)),
    Layout("all on the first dimension", "line", _all(0)),
    Layout("all on the last dimension", "line", _all(-1)),
    *(Layout(f"first a partial {op}", "line", _first(Partial(op))) for op in ("sum", "avg", "max")),
    Layout("first on dimension 0 twice", "square", _first(Shard(0), Shard(0))),
    Layout("first on dimensions 1 and 0", "square", _first(Shard(1), Shard(0))),
    Layout("first a partial sum, on dimension 0", "square", _first(Partial(), Shard(0))),
)


def layouts() -> tuple[Layout, ...]:
    """Return the layouts in which each operator is tried."""
    return _LAYOUTS


def _database() -> Sequence[Any]:
    """Return torch's operators with samples. The import takes two seconds, so the collection of tests avoids it."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def operators() -> list[str]:
    """Return the names of all operators in torch's database that take float32 and set their results."""
    names = dict.fromkeys(op.name for op in _database() if torch.float32 in op.dtypes)
    return [name for name in names if not name.startswith(("empty", "new_empty"))]


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees if a call draws random numbers. The generator does not show it: torch's database restores its state."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def differences_of(name: str, layout: Layout, samples: int) -> list[Difference]:
    """Call an operator on this rank's share of `samples` samples, and compare the results with plain tensors.

    An operator that DTensor refuses on all ranks yields no difference. If ranks take different paths through an
    operator, the run ends as with any mismatched collectives.
    """
    warnings.filterwarnings("ignore")
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size(),) if layout.mesh == "line" else (2, dist.get_world_size() // 2)
    )
    found: list[Difference] = []
    for op in (op for op in _database() if op.name == name):
        torch.manual_seed(0)
        drawn = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(drawn, samples):
            values, form = tree_flatten(([sample.input, *sample.args], sample.kwargs))
            values = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
            found += _compared(op.op, values, form, mesh, layout)
    return found


def _compared(
    call: Callable[..., Any], values: list[Any], form: Any, mesh: DeviceMesh, layout: Layout
) -> Iterator[Difference]:
    """Yield the differences of one call on DTensors."""

    def results(arguments: Sequence[Any]) -> list[torch.Tensor]:
        positional, named = tree_unflatten(arguments, form)
        return [whole for whole in map(_whole, tree_flatten(call(*positional, **named))[0]) if whole is not None]

    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors or any(tensor.layout is not torch.strided for tensor in tensors):
        return
    leaves = _leaves(values)
    try:
        with _Draws() as draws:  # type: ignore[no-untyped-call]
            plain = results(leaves)
        gradients = _gradients(plain, leaves)
    except Exception:
        return  # a sample that plain tensors refuse
    if draws.seen or any(out.layout is not torch.strided for out in plain):
        return  # shards draw other numbers; DTensor has no such layout
    places = itertools.count()
    shapes = " ".join(str(tuple(tensor.shape)) for tensor in tensors)
    rest = ", ".join(str(value) for value in values if not isinstance(value, torch.Tensor))

    def differences(
        kind: str, plain: Sequence[torch.Tensor | None], given: Sequence[torch.Tensor | None]
    ) -> list[Difference]:
        pairs = enumerate(itertools.zip_longest(plain, given))
        return [
            Difference(shapes, rest, f"{kind} {place}", how)
            for place, (one, two) in pairs
            if (how := _difference(one, two))
        ]

    try:
        shared = [
            _distributed(value, mesh, layout.placements(next(places), value.ndim))
            if isinstance(value, torch.Tensor)
            else value
            for value in values
        ]
        given = results(shared)
        if found := differences("output", plain, given):
            yield from found
            return
        yield from differences("gradient", gradients, _gradients(given, shared))
    except Exception as error:
        if type(error).__module__.startswith("simdist") or isinstance(error, dist.DistError):
            raise
        # else this layout is not supported, and says so


def _gradients(outputs: Sequence[torch.Tensor], arguments: Sequence[Any]) -> list[torch.Tensor | None]:
    """Return the gradients of the arguments; the weights of the outputs are the same each time."""
    generator = torch.Generator().manual_seed(_GRADIENTS)
    weighed = [out for out in outputs if out.requires_grad]
    if weighed:
        torch.autograd.backward(weighed, [torch.randn(out.shape, generator=generator).to(out.dtype) for out in weighed])
    leaves = [value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad]
    return [_whole(leaf.grad) for leaf in leaves]


def _leaves(values: Sequence[Any]) -> list[Any]:
    """Return the values, with the tensors as leaves of a new graph."""
    return [
        value.detach().clone().requires_grad_(value.is_floating_point()) if isinstance(value, torch.Tensor) else value
        for value in values
    ]


def _whole(value: object) -> torch.Tensor | None:
    if isinstance(value, DTensor):
        return value.full_tensor()
    return value if isinstance(value, torch.Tensor) else None


def _distributed(tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Distribute a tensor over a mesh. A partial placement is split so that its parts add up to the same bits."""
    partial = next((placement for placement in placements if isinstance(placement, Partial)), None)
    if partial is None:
        shared = distribute_tensor(tensor, mesh, placements)
        shared.requires_grad_(tensor.is_floating_point())
        return shared
    if not tensor.is_floating_point():
        raise TypeError("only numbers with a fraction are split up")
    plain = [Replicate() if placement is partial else placement for placement in placements]
    rank, ranks = mesh.get_local_rank(0), mesh.size(0)
    local = distribute_tensor(tensor, mesh, plain).to_local()
    match partial.reduce_op:
        case "sum":
            local = local * 2.0 ** -min(rank + 1, ranks - 1)
        case "avg":
            local = local + (rank - (ranks - 1) / 2)
        case _:
            local = local - rank
    # The tensor is not cloned after this: a clone of a partial tensor is reduced.
    stride = tensor.contiguous().stride()
    shared = DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=stride)
    shared.requires_grad_()
    return shared


def _difference(plain: torch.Tensor | None, given: torch.Tensor | None) -> str:
    """Return in words how two results differ; empty if they are alike."""
    if plain is None or given is None:
        return "" if plain is given else "nothing on plain tensors" if plain is None else "nothing on DTensors"
    if plain.shape != given.shape:
        return f"{tuple(plain.shape)} on plain tensors, {tuple(given.shape)} on DTensors"
    if plain.dtype != given.dtype:
        return f"{plain.dtype} on plain tensors, {given.dtype} on DTensors"
    if not (plain.is_floating_point() or plain.is_complex()):
        return "" if torch.equal(plain, given) else "other values"
    scale = plain.abs()[plain.isfinite()].max().item() if plain.isfinite().any() else 1.0
    relative = max(_RELATIVE, 4 * torch.finfo(plain.dtype).eps)
    if torch.allclose(plain, given, rtol=relative, atol=relative * max(scale, _SMALLEST), equal_nan=True):
        return ""
    off = (plain - given).abs()
    return (
        f"off by {off[off.isfinite()].max().item():.3g} of {scale:.3g}"
        if off.isfinite().all()
        else "not finite on one side"
    )
