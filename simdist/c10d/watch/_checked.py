"""A group whose ranks compare what they are about to call: `TORCH_DISTRIBUTED_DEBUG=DETAIL`.

Stands in for torch's `_ProcessGroupWrapper` (torch 2.13). Before a collective, the ranks pass a monitored barrier of a
second group of the same members, and gather each other's fingerprints there; who finds one that differs from its own
raises, and the collective is not called. Point-to-point operations, `monitored_barrier` and the coalesced gather of
single tensors are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from simdist.c10d.surface._compat import ProcessGroup, group_class_aliases
from simdist.c10d.surface._group import SimProcessGroup
from simdist.c10d.surface._modes import visible
from simdist.c10d.watch._fingerprint import Fingerprint

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
        self.passes_for = ""  # the wrapped backend, while torch makes it, and would make the wrapper itself only later
        self._name = self._description = ""  # torch names the wrapper, and not what is in it
        self._helper = helper
        self._member = wrapped._member
        helper._communicator.counted = 0
        wrapped._set_sequence_number_for_group()

    def allreduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, then all-reduce."""
        return self._compared(
            lambda: self.wrapped_pg.allreduce(tensors, *args, **kwargs), "ALLREDUCE", _listed(tensors)
        )

    def allreduce_coalesced(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors, then all-reduce."""
        return self._compared(
            lambda: self.wrapped_pg.allreduce_coalesced(tensors, *args, **kwargs), "ALLREDUCE_COALESCED"
        )

    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the root, then reduce."""
        return self._compared(lambda: self.wrapped_pg.reduce(tensors, *args, **kwargs), "REDUCE", _listed(tensors))

    def broadcast(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the root, then broadcast."""
        return self._compared(
            lambda: self.wrapped_pg.broadcast(tensors, *args, **kwargs), "BROADCAST", _listed(tensors)
        )

    def allgather(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors where a rank expects several shapes, then gather."""
        outputs = _listed(output_tensors)
        lists = outputs[-1] if outputs and not isinstance(outputs[-1], Tensor) else outputs
        return self._compared(
            lambda: self.wrapped_pg.allgather(output_tensors, input_tensors, *args, **kwargs),
            "ALLGATHER",
            _listed(input_tensors) if _of_one_shape(lists) else [],
        )

    def all_gather_single(self, output: Tensor, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Compare, then gather."""
        return self._compared(
            lambda: self.wrapped_pg.all_gather_single(output, tensor, *args, **kwargs), "_ALLGATHER_BASE", [tensor]
        )

    def allgather_coalesced(self, output_lists: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors, then gather."""
        return self._compared(
            lambda: self.wrapped_pg.allgather_coalesced(output_lists, tensors, *args, **kwargs), "ALLGATHER_COALESCED"
        )

    def gather(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the root, then gather."""
        return self._compared(
            lambda: self.wrapped_pg.gather(output_tensors, input_tensors, *args, **kwargs),
            "GATHER",
            _listed(input_tensors),
        )

    def scatter(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the root, then scatter."""
        return self._compared(
            lambda: self.wrapped_pg.scatter(output_tensors, input_tensors, *args, **kwargs),
            "SCATTER",
            _listed(output_tensors),
        )

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors where a rank's list holds several shapes, then reduce."""
        inputs = _listed(input_tensors)
        lists = inputs[-1] if inputs and not isinstance(inputs[-1], Tensor) else inputs
        return self._compared(
            lambda: self.wrapped_pg.reduce_scatter(output_tensors, input_tensors, *args, **kwargs),
            "REDUCE_SCATTER",
            _listed(output_tensors) if _of_one_shape(lists) else [],
        )

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Compare, then reduce."""
        return self._compared(
            lambda: self.wrapped_pg.reduce_scatter_single(output, tensor, *args, **kwargs),
            "_REDUCE_SCATTER_BASE",
            [tensor, output],
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors, then reduce."""
        return self._compared(
            lambda: self.wrapped_pg.reduce_scatter_single_coalesced(outputs, tensors, *args, **kwargs),
            "REDUCE_SCATTER_TENSOR_COALESCED",
        )

    def alltoall(self, output_tensors: Any, input_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors, then exchange."""
        return self._compared(
            lambda: self.wrapped_pg.alltoall(output_tensors, input_tensors, *args, **kwargs), "ALLTOALL"
        )

    def all_to_all_single(self, output: Tensor, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Compare, but for the tensors, then exchange."""
        return self._compared(
            lambda: self.wrapped_pg.all_to_all_single(output, tensor, *args, **kwargs), "ALLTOALL_BASE"
        )

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        """Compare, then wait for every rank."""
        return self._compared(lambda: self.wrapped_pg.barrier(*args, **kwargs), "BARRIER")

    def _get_backend(self, device: Any) -> SimProcessGroup:
        self.wrapped_pg._get_backend(device)
        return self

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: the wrapped group's was set when this one was made."""

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self.passes_for = ""  # the last thing that torch does to a group before it registers it

    def get_error(self) -> NoReturn:
        """What Gloo does not have."""
        raise RuntimeError(f"Backend {self.name()} does not support getError")

    def __repr__(self) -> str:
        return f"<checked {self.wrapped_pg!r}>"

    def leave(self) -> None:
        """Give both groups up."""
        self.wrapped_pg.leave()
        self._helper.leave()

    def _compared(self, call: Callable[[], Any], operation: str, tensors: Sequence[Tensor] = ()) -> Any:
        """Meet everyone, see that all call the same, and then `call`; a fault strikes before any of this.

        Raises:
            RuntimeError: a rank does not come, the helper's connections are closed, or a rank calls something else.
        """
        name = _ANNOUNCED[operation]
        sparse = operation == "ALLREDUCE" and tensors and tensors[0].layout is not torch.strided
        self.wrapped_pg.announce("sparse_all_reduce" if sparse else name)
        try:
            self._compare(operation, tensors)
            return call()
        finally:
            self.wrapped_pg.ahead = None

    def _compare(self, operation: str, tensors: Sequence[Tensor]) -> None:
        fingerprint = Fingerprint.of(operation, self.wrapped_pg._get_sequence_number_for_group(), tensors)
        told = f"ProcessGroupWrapper: Monitored Barrier encountered error running collective: {fingerprint}. Error: \n"
        self._helper._monitored_barrier(None, wait_all_ranks=True, prefix=told)
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


# What the calls are in announcements, and so in faults.
_ANNOUNCED = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "REDUCE": "reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather",
    "ALLGATHER_COALESCED": "all_gather",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "BARRIER": "barrier",
}


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _of_one_shape(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.shape == tensors[0].shape for tensor in tensors)


def _forwarding(name: str) -> Callable[..., Any]:
    def forward(self: CheckedProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.wrapped_pg, name)(*args, **kwargs)

    forward.__name__ = name
    return forward


def _forwarded(name: str) -> Any:
    def read(self: CheckedProcessGroup) -> Any:
        return getattr(self.wrapped_pg, name)

    def write(self: CheckedProcessGroup, value: Any) -> None:
        setattr(self.wrapped_pg, name, value)

    return property(read, write)


_OWN = ("group_name", "_set_group_name", "getGroupName", "setGroupName", "group_desc", "getGroupDesc", "setGroupDesc")
CheckedProcessGroup.options = _forwarded("options")
for _old, _new in group_class_aliases.items():
    if _new in vars(CheckedProcessGroup):
        setattr(CheckedProcessGroup, _old, vars(CheckedProcessGroup)[_new])
_bases = SimProcessGroup.__mro__[: SimProcessGroup.__mro__.index(ProcessGroup)]
for _name, _value in [pair for base in _bases for pair in vars(base).items()]:
    if _name in vars(CheckedProcessGroup) or _name.startswith("__") or _name in _OWN:
        continue
    if isinstance(_value, property):
        setattr(CheckedProcessGroup, _name, _forwarded(_name))
    elif callable(_value):
        setattr(CheckedProcessGroup, _name, _forwarding(_name))
visible(CheckedProcessGroup)
