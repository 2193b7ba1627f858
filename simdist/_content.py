"""What tensors hold, the same wherever they are: a checksum to compare by; and where they are pickled no memory that
nobody has written, and no address."""

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

# Where the heap of a Linux process begins if nothing is random, and what a StorageImpl takes there.
_FIRST_ADDRESS = 0x5555_5555_6000
_BYTES_APART = 192


def content_checksum(tensors: Iterable[Tensors], crc: int = 0) -> int:
    """CRC-32 over the bytes of `tensors`, in order, lists inside included; each in its logical order of elements.

    The same on every device and for every layout; unlike the checksums of the digest it leaves nothing out.
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
    """The elements of a strided tensor in their logical order, as one dimension of bytes on the CPU."""
    data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # `reshape` keeps the stride of a single element, which may be any; only one of 1 views as bytes.
    return data.as_strided((data.numel(),), (1,)).view(torch.uint8)


class _Padded(torch.Tensor):
    """A tensor that grows by zeros, once: it is an ordinary one from then on, with which torch is faster."""

    # What is made from it is an ordinary tensor.
    __torch_function__ = keep_function

    def resize_(self, *sizes: Any, **options: Any) -> Any:
        before = self.numel()
        super().resize_(*sizes, **options)
        self.__class__ = torch.Tensor  # type: ignore[assignment]  # of the same layout: Python allows it
        if self.numel() > before:
            with without_modes():  # nobody asked for it
                self.view(-1)[before:].zero_()
        return self


def with_zero_padding(
    to_tensor: Callable[_P, tuple[torch.Tensor, torch.Tensor]],
) -> Callable[_P, tuple[torch.Tensor, torch.Tensor]]:
    """Wrap `torch.distributed.distributed_c10d._object_to_tensor`.

    Torch pickles an object into a tensor, grows that to the size of the largest among the ranks, and sends all of it:
    the rest is whatever the memory held (torch 2.13, `all_gather_object`, `gather_object`).
    """

    def padded(*args: _P.args, **kwargs: _P.kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        data, size = to_tensor(*args, **kwargs)
        return data.as_subclass(_Padded), size

    return padded


def with_numbered_storages(save: Callable[..., None]) -> Callable[..., None]:
    """Wrap `torch.serialization._legacy_save`.

    Torch's older format names storages by their addresses, and so writes other bytes in each process, and not even
    equally many (torch 2.13: `str(storage._cdata)`). A tensor that is pickled by itself is in that format, as are those
    in object collectives. Here storages have addresses in the order in which they are met, from the one on that a
    process has whose memory is nowhere by chance; what is written is read like any other.
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
