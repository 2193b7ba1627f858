"""The Gloo personality: its words, its checks, its defaults.

Texts were taken from real Gloo (torch 2.13); the location in brackets varies with the build there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["GLOO", "SIM", "Personality"]

_SOURCE = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
_ADVICE = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
_DTYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
}


_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")  # in the order of c10d::ReduceOp


@dataclass(frozen=True, slots=True)
class Personality:
    """How a backend behaves and speaks. `has_timeouts` is False for the ideal backend, which only ever deadlocks."""

    name: str
    has_timeouts: bool

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        """A wait for a transfer ran out of time; `kind` is "send" or "recv"."""
        line = 78 if kind == "recv" else 129
        return (
            f"{_SOURCE}/unbound_buffer.cc:{line}] Timed out waiting {timeout_ns // 1_000_000}ms "
            f"for {kind} operation to complete"
        )

    def closed_by_peer(self, peer: int) -> str:
        """The peer's process has gone, or has given the group up."""
        return (
            f"{_SOURCE}/pair.cc:553] Connection closed by peer {_address(peer)}. "
            f"This is typically caused by a remote worker crashing. {_ADVICE}"
        )

    def reset_by_peer(self, peer: int) -> str:
        """The peer's process went while data was under way."""
        return (
            f"{_SOURCE}/pair.cc:537] Read error {_address(peer)}: Connection reset by peer. "
            f"This is typically caused by a remote worker hanging or bugs in the application. {_ADVICE}"
        )

    def pair_closed(self) -> str:
        """This rank itself timed out before, and closed all its connections."""
        return "Application timeout caused pair closure"

    def check(self, name: str, reduction: str, dtype: torch.dtype) -> None:
        """Refuse an operation that the backend has no function for.

        Raises:
            RuntimeError: with Gloo's text.
        """
        self.check_dtype(dtype)
        if reduction == "premul_sum":
            raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
        if dtype.is_complex and reduction not in ("", "sum", "avg"):
            # The enum's number is printed as a character there.
            said = "reduce" if name == "reduce" else "all_reduce"
            raise RuntimeError(f"{said} does not support{chr(_REDUCTIONS.index(reduction))}on complex tensors")
        if reduction in ("band", "bor", "bxor") and dtype.is_floating_point:
            raise RuntimeError(f"Cannot use ReduceOp.{reduction.upper()} with non-integral dtype")
        if dtype.is_complex and name == "gather":
            raise RuntimeError("Invalid scalar type")

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse a type that Gloo has no functions for (`ProcessGroupGloo.hpp`, GENERATE_ALL_TYPES)."""
        if dtype not in _DTYPES:
            raise RuntimeError("Invalid scalar type")


def _address(peer: int) -> str:
    return f"[127.0.0.1]:{40000 + peer}"


GLOO = Personality("gloo", has_timeouts=True)
SIM = Personality("sim", has_timeouts=False)
