"""`Raise`: a program gets an exception."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._rank_fault import RankFault
from simdist.values import Text, brief, guess

__all__ = ["DEVICE_ERRORS", "TORCH_ERRORS", "Raise"]

# Exceptions that can be raised besides Python's own, by their names in torch.distributed (torch 2.13).
TORCH_ERRORS = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "QueueEmptyError")
# And by their names in torch itself: those of its allocators and its devices.
DEVICE_ERRORS = ("AcceleratorError", "OutOfMemoryError")


class Raise(RankFault):
    """An exception in the rank's own program, in place of an operation or at the start of a step or at a point.

    `error` names it: one of Python's, one that torch.distributed exports, or torch's own "OutOfMemoryError" and
    "AcceleratorError". The operation is not issued; a program that catches the exception may call it again.

    Example:
        >>> Raise(rank=1, at_step=3, error="OutOfMemoryError", message="CUDA out of memory.").exception()
        OutOfMemoryError('CUDA out of memory.')
    """

    error: Annotated[str, Text()] = "RuntimeError"
    message: Annotated[str, Text()] = "injected by a fault"

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and a name of no exception."""
        yield from super().problems(world)
        if world.fine("error") and not _can_be_raised(self.error):
            known = (*TORCH_ERRORS, *DEVICE_ERRORS, *filter(_can_be_raised, dir(builtins)))
            yield (
                "error",
                f"unknown exception {brief(self.error)}; expected one of Python's that takes a text, or one of "
                f"torch.distributed: {', '.join(TORCH_ERRORS)}, or one of torch: {', '.join(DEVICE_ERRORS)}"
                f"{guess(self.error, known)}",
            )

    def exception(self) -> Exception:
        """Return the exception."""
        if self.error in TORCH_ERRORS:
            import torch.distributed as dist

            made: Exception = getattr(dist, self.error)(self.message)
        elif self.error in DEVICE_ERRORS:
            import torch

            made = getattr(torch, self.error)(self.message)
        else:
            made = getattr(builtins, self.error)(self.message)
        return made

    def begins(self) -> str:
        """Describe the exception."""
        return f"rank {self.rank} raises {self.error}: {self.message}"


def _can_be_raised(name: str) -> bool:
    kind = getattr(builtins, name, None)
    if name in TORCH_ERRORS or name in DEVICE_ERRORS:
        return True
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return False
    try:
        kind("text")
    except TypeError:  # it takes more than a text
        return False
    return True
