"""A rank's next call as ranks compare it under `TORCH_DISTRIBUTED_DEBUG=DETAIL`, in torch's words.

A fingerprint is sent as whole numbers. Before the numbers themselves the ranks compare how many there are. Torch reads
a count that differs as if it were a fingerprint, and takes the count for the operation: a barrier's three numbers
look like a REDUCE. (ProcessGroupWrapper, measured on torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from simdist.inside.torch import Place, op_types
from simdist.records import SCALAR_TYPES

__all__ = ["Fingerprint"]

_CODES: dict[str, int] = op_types()
_OPERATIONS = {code: name for name, code in _CODES.items()}
_DTYPES = list(SCALAR_TYPES)
# Torch prints a device type as the default options that it derives from it.
_DEVICE = (
    "TensorOptions(dtype=float (default), device={}, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))"
)
_DEVICES = ("cpu", "cuda")  # by their numbers in C++


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """An operation, the group's sequence number, and the types and shapes of the tensors, where these are compared."""

    operation: str
    sequence: int = 0
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, operation: str, sequence: int, tensors: Sequence[torch.Tensor]) -> Fingerprint:
        """Return the fingerprint of a call with these tensors."""
        names = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        devices = tuple(tensor.device.type for tensor in tensors)
        return cls(operation, sequence, names, tuple(tuple(tensor.shape) for tensor in tensors), devices)

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Fingerprint:
        """Return the fingerprint that `numbers` stand for; a single number is taken for an operation.

        Raises:
            RuntimeError: torch has no such operation.
        """
        operation = _OPERATIONS.get(numbers[0])
        if operation is None:
            raise RuntimeError(Place.NO_OPERATION.asserts("false", "Unknown op type!"))
        if len(numbers) == 1:
            return cls(operation)
        _, sequence, count, *rest = numbers
        dtypes = tuple(_DTYPES[number] for number in rest[:count])
        shapes = []
        position = 2 * count
        for _ in range(count):
            dimensions = rest[position]
            shapes.append(tuple(rest[position + 1 : position + 1 + dimensions]))
            position += 1 + dimensions
        devices = tuple(_DEVICES[number] for number in rest[count : 2 * count])
        return cls(operation, sequence, dtypes, tuple(shapes), devices)

    def numbers(self) -> list[int]:
        """The numbers that are sent."""
        count = len(self.dtypes)
        numbers = [_CODES[self.operation], self.sequence, count]
        numbers += [_DTYPES.index(name) for name in self.dtypes] + [_DEVICES.index(name) for name in self.devices]
        for shape in self.shapes:
            numbers += [len(shape), *shape]
        return numbers

    def __str__(self) -> str:
        """Return torch's text, including the missing comma of a call without tensors."""
        if not self.dtypes:
            return f"CollectiveFingerPrint(SequenceNumber={self.sequence}OpType={self.operation})"
        return (
            f"CollectiveFingerPrint(SequenceNumber={self.sequence}, OpType={self.operation}, "
            f"TensorShape=[{', '.join(self._shape())}], TensorDtypes={' '.join(self._types())}, "
            f"TensorDeviceTypes={' '.join(self._devices())})"
        )

    def mismatch(self, rank: int, other_rank: int, other: Fingerprint) -> str:
        """Return the error of `rank`, whose fingerprint this is and differs from that of `other_rank`."""
        differences = []
        if self.sequence != other.sequence:
            differences.append(f"\t Sequence number: {self.sequence}vs {other.sequence}")
        if self.operation != other.operation:
            differences.append(f"  Op type: {self.operation}vs {other.operation}")
        for what, ours, theirs in (
            ("shapes", self._shape(), other._shape()),
            ("dtypes", self._types(), other._types()),
            ("devices", self._devices(), other._devices()),
        ):
            if ours != theirs:
                differences.append(f"  Tensor Tensor {what}: {' '.join(ours)}vs {' '.join(theirs)}")
        text = (
            f"Detected mismatch between collectives on ranks. Rank {rank} is running collective: {self}, "
            f"but Rank {other_rank} is running collective: {other}."
        )
        if differences:  # none, where only the shape of a second tensor differs
            text += f"Collectives differ in the following aspects: {''.join(differences)}"
        return text

    def _shape(self) -> list[str]:
        """The shape of the first tensor, which stands for all."""
        return [str(size) for size in self.shapes[0]] if self.shapes else []

    def _types(self) -> list[str]:
        return [SCALAR_TYPES[name] for name in self.dtypes]

    def _devices(self) -> list[str]:
        return [_DEVICE.format(name) for name in self.devices]
