"""Contents of tensors, the same wherever they are: a checksum for comparisons; and pickles of tensors.

The pickles have neither unwritten memory nor addresses.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, ParamSpec, TypeAlias

import torch

from simdist.inside.torch import keep_function, without_modes

__all__ = ["bytes_of", "content_checksum", "with_numbered_storages", "with_zero_padding"]

_P = ParamSpec("_P")

Tensors: TypeAlias = "torch.Tensor | Iterable[Tensors]"

# The beginning of a Linux process's heap without randomisation, and the size of a StorageImpl there.
_FIRST_ADDRESS = 0x5555_5555_6000
_BYTES_APART = 192


def content_checksum(tensors: Iterable[Tensors], crc: int = 0) -> int:
    """Return the CRC-32 over the bytes of `tensors`, in order, lists inside included; each in its logical order.

    It is the same on every device and for every layout; unlike the checksums of the digest it covers everything.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            crc = content_checksum(tensor, crc)
            continue
        data = tensor.detach()
        if data.layout is not torch.strided:
            data = data.to_dense()
        if data.numel():
            crc = zlib.crc32(bytes_of(data).numpy().data, crc)
    return crc


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a strided tensor in logical order, as one dimension of bytes on the CPU."""
    data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # `reshape` keeps the stride of a single element, which may be any; a view as bytes needs 1.
    return data.as_strided((data.numel(),), (1,)).view(torch.uint8)


class _Padded(torch.Tensor):
    """A tensor that grows by zeros, once: afterwards it is an ordinary one, with which torch is faster."""

    # Tensors made from this one are ordinary.
    __torch_function__ = keep_function

    def resize_(self, *sizes: Any, **options: Any) -> Any:
        before = self.numel()
        super().resize_(*sizes, **options)
        self.__class__ = torch.Tensor  # type: ignore[assignment]  # of the same layout: Python allows it
        if self.numel() > before:
            with without_modes():  # an operation of simdist's own
                self.view(-1)[before:].zero_()
        return self


def with_zero_padding(
    to_tensor: Callable[_P, tuple[torch.Tensor, torch.Tensor]],
) -> Callable[_P, tuple[torch.Tensor, torch.Tensor]]:
    """Wrap `torch.distributed.distributed_c10d._object_to_tensor`.

    Torch pickles an object into a tensor, grows that to the size of the largest among the ranks, and sends all of it,
    including the uninitialised rest (torch 2.13, `all_gather_object`, `gather_object`).
    """

    def padded(*args: _P.args, **kwargs: _P.kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        data, size = to_tensor(*args, **kwargs)
        return data.as_subclass(_Padded), size

    return padded


def with_numbered_storages(save: Callable[..., None]) -> Callable[..., None]:
    """Wrap `torch.serialization._legacy_save`.

    Torch's older format names storages by their addresses, and so writes different bytes in each process, and not even
    equally many (torch 2.13: `str(storage._cdata)`). A separately pickled tensor has that format, as do tensors in
    object collectives. Here storages are numbered in the order of their first use, from the first address in a process
    without randomised memory; the result is read like any other.
    """
    if not isinstance(save, FunctionType):
        return save
    code, known, name, defaults, closure = (
        save.__code__,
        save.__globals__,
        save.__name__,
        save.__defaults__,
        save.__closure__,
    )

    def numbered(*args: object, **kwargs: object) -> None:
        names: dict[int, str] = {}

        def named(address: int) -> str:
            return names.setdefault(address, str(_FIRST_ADDRESS + _BYTES_APART * len(names)))

        FunctionType(code, known | {"str": named}, name, defaults, closure)(*args, **kwargs)

    return numbered
