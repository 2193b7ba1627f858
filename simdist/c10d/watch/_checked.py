"""A group whose ranks compare what they are about to call: `TORCH_DISTRIBUTED_DEBUG=DETAIL`.

Stands in for torch's `_ProcessGroupWrapper` (torch 2.13). Before a collective, the ranks pass a monitored barrier of a
second group of the same members, and gather each other's fingerprints there. A rank that finds one that differs from
its own raises, and does not call the collective. Point-to-point operations, `monitored_barrier` and the coalesced
gather of single tensors are not compared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.calls import TABLE, Method
from simdist.c10d.surface._compat import ProcessGroup
from simdist.c10d.surface._group import SimProcessGroup
from simdist.c10d.surface._modes import visible
from simdist.c10d.watch._fingerprint import Fingerprint

if TYPE_CHECKING:
    from simdist.c10d.surface._arguments import Lists
    from simdist.c10d.surface._identity import DeviceLike

__all__ = ["CheckedProcessGroup"]

Tensor = torch.Tensor


class CheckedProcessGroup(SimProcessGroup):
    """`wrapped_pg` with checks that run over the group `helper`; whatever is not checked goes straight to the former.

    Example:
        >>> def main():
        ...     dist.init_process_group("gloo")
        ...     return type(dist.distributed_c10d._get_default_group()).__name__
        >>> simdist.run(main, world_size=2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).values
        ['CheckedProcessGroup', 'CheckedProcessGroup']
    """

    asks_for_modes = ()

    def __init__(self, wrapped: SimProcessGroup, helper: SimProcessGroup) -> None:
        ProcessGroup.__init__(self, wrapped.rank(), wrapped.size())
        self._calls_under_way = []
        self.wrapped_pg = wrapped
        self.passes_for = ""  # the wrapped backend, while torch makes it: torch itself would wrap it only later
        self._name = self._description = ""  # torch names the wrapper, and not the wrapped group
        self._helper = helper
        self._member = wrapped._member
        helper._communicator.counted = 0
        wrapped._set_sequence_number_for_group()

    def _get_backend(self, device: DeviceLike) -> SimProcessGroup:
        self.wrapped_pg._get_backend(device)
        return self

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: the wrapped group's was set when this one was made."""

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self.passes_for = ""  # the last thing that torch does to a group before it registers it

    def get_error(self) -> object:
        """Return the wrapped group's.

        Raises:
            RuntimeError: it has no such function, as Gloo.
        """
        if not hasattr(self.wrapped_pg, "get_error"):
            raise RuntimeError(f"Backend {self.name()} does not support getError")
        return self.wrapped_pg.get_error()

    def __repr__(self) -> str:
        return f"<checked {self.wrapped_pg!r}>"

    def leave(self) -> None:
        """Leave both groups."""
        self.wrapped_pg.leave()
        self._helper.leave()

    def compare(self, operation: str, tensors: Sequence[Tensor]) -> None:
        """Meet all ranks, and check that all call the same.

        Raises:
            RuntimeError: a rank does not arrive, the helper's connections are closed, or a rank calls something else.
        """
        fingerprint = Fingerprint.of(operation, self.wrapped_pg._get_sequence_number_for_group(), tensors)
        text = f"ProcessGroupWrapper: Monitored Barrier encountered error running collective: {fingerprint}. Error: \n"
        self._helper._monitored_barrier(None, wait_all_ranks=True, prefix=text)
        numbers = fingerprint.numbers()
        self._require_equal(fingerprint, [len(numbers)])
        self._require_equal(fingerprint, numbers)

    def _require_equal(self, fingerprint: Fingerprint, numbers: list[int]) -> None:
        ours = torch.tensor(numbers)
        gathered = [torch.zeros_like(ours) for _ in range(self.size())]
        self._helper.allgather([gathered], [ours]).wait()
        for rank, theirs in enumerate(gathered):
            found = theirs.tolist()
            if found != numbers:
                raise RuntimeError(fingerprint.mismatch(self.rank(), rank, Fingerprint.from_numbers(found)))


def _listed(tensors: Lists) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _are_alike(tensors: Lists) -> bool:
    """True if the tensors of a list, or of the last of several lists, are of one shape."""
    lists = _listed(tensors)
    last = lists[-1] if lists and not isinstance(lists[-1], Tensor) else lists
    return all(tensor.shape == last[0].shape for tensor in last)


def _comparing(name: str, method: Method) -> Callable[..., object]:
    signature = inspect.signature(getattr(SimProcessGroup, method.name))
    names = list(signature.parameters)[1 : 1 + method.tensors]

    def call(self: CheckedProcessGroup, *args: object, **kwargs: object) -> object:
        given: Mapping[str, Lists] = signature.bind(self, *args, **kwargs).arguments
        tensors: list[Tensor] = []
        if method.if_alike is None or _are_alike(given[names[method.if_alike]]):
            tensors = [tensor for place in method.alike for tensor in _listed(given[names[place]])]
        sparse = method.name == "allreduce" and tensors and tensors[0].layout is not torch.strided
        self.wrapped_pg.announce("sparse_all_reduce" if sparse else name)  # a fault strikes before any of this
        try:
            self.compare(method.op_type, tensors)
            return getattr(self.wrapped_pg, method.name)(*args, **kwargs)
        finally:
            self._member.ahead = None

    call.__name__, call.__doc__ = method.name, f"Compare what the ranks call, then `{method.name}`."
    call.__signature__ = signature  # type: ignore[attr-defined]  # of any function
    return call


def _forwarding(name: str) -> Callable[..., object]:
    def forward(self: CheckedProcessGroup, *args: object, **kwargs: object) -> object:
        return getattr(self.wrapped_pg, name)(*args, **kwargs)

    forward.__name__ = name
    return forward


def _forwarded(name: str) -> property:
    def read(self: CheckedProcessGroup) -> object:
        return getattr(self.wrapped_pg, name)

    def write(self: CheckedProcessGroup, value: object) -> None:
        setattr(self.wrapped_pg, name, value)

    return property(read, write)


_OWN = ("group_name", "_set_group_name", "getGroupName", "setGroupName", "group_desc", "getGroupDesc", "setGroupDesc")
_ABILITIES = ("supports_splitting", "supports_coalescing", "supports_shrinking", "supports_time_estimate")
for _name in ("options", *_ABILITIES):
    setattr(CheckedProcessGroup, _name, _forwarded(_name))
for _row in TABLE:
    for _method in _row.methods:
        if _method.compared:
            setattr(CheckedProcessGroup, _method.name, _comparing(_row.name, _method))
_bases = SimProcessGroup.__mro__[: SimProcessGroup.__mro__.index(ProcessGroup)]
for _name, _value in [pair for base in _bases for pair in vars(base).items()]:
    if _name in vars(CheckedProcessGroup) or _name.startswith("__") or _name in _OWN:
        continue
    if isinstance(_value, property):
        setattr(CheckedProcessGroup, _name, _forwarded(_name))
    elif callable(_value):
        setattr(CheckedProcessGroup, _name, _forwarding(_name))
visible(CheckedProcessGroup)
