"""Errors of NCCL's calls and communicators, with the texts of NCCL and torch."""

from __future__ import annotations

import torch.distributed as dist

from simdist.c10d.backends.nccl.watch._debug_lines import show_warning
from simdist.inside.torch import NCCL, NcclPlace, Place

__all__ = ["CONNECTING_NS", "async_error", "nccl_error", "refused"]

_RETRIES = 34  # NCCL_SOCKET_RETRY_CNT; before the n-th NCCL waits n times NCCL_SOCKET_RETRY_SLEEP_MSEC
CONNECTING_NS = sum(range(_RETRIES + 1)) * 100_000_000
"""How long NCCL tries to connect to an address that refuses it."""

_KINDS = {
    "ncclSystemError": (
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "System call (e.g. socket, malloc) or external library call failed or device error. ",
    ),
    "ncclInternalError": ("internal error - please report this issue to the NCCL developers", "Internal check failed."),
    "ncclInvalidArgument": (
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "Invalid value for an argument.",
    ),
    "ncclInvalidUsage": (
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "This usually reflects invalid usage of NCCL library.",
    ),
    "ncclRemoteError": (
        "remote process exited or there was a network error",
        "A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
}


def nccl_error(kind: str, warning: str, place: NcclPlace) -> dist.DistBackendError:
    """Return torch's error for a failed call of NCCL; NCCL logs the `warning`, from a `place` in its sources."""
    show_warning(warning, place)
    return dist.DistBackendError(f"NCCL error in: {Place.CALL_FAILED.path_for_cuda}, {_said(kind, warning)}")


def refused() -> dist.DistBackendError:
    """Return the error after `CONNECTING_NS` if no process listens at an ncclUniqueId's address.

    Sources: misc/socket.cc, os/linux.cc.
    """
    warning = (
        f"{NCCL.connects}: connect to 127.0.0.1<40000> returned Connection refused, "
        f"exceeded error retry count after {_RETRIES + 1} attempts"
    )
    return nccl_error("ncclRemoteError", warning, NcclPlace.CONNECTION_REFUSED)


def async_error(kind: str, warning: str) -> str:
    """Return torch's text for an asynchronous error that NCCL reports for a communicator."""
    return f"NCCL error: {_said(kind, warning)}"


def _said(kind: str, warning: str) -> str:
    said, detail = _KINDS[kind]
    return f"{said}, NCCL version {NCCL}\n{kind}: {detail}\nLast error:\n{warning}"
