"""The checkpoints that a run leaves on disk, as hashes by which runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from simdist.scenario._plan import Plan
from simdist.scenario._workload import fill

__all__ = ["state_of"]


def state_of(plan: Plan, tmp: str) -> dict[str, str]:
    """Return for each checkpoint that the plan expects a hash of its content; or that it is missing or broken."""
    return {path: _loaded(fill(path, tmp)) for path in plan.expect.checkpoints}


def _loaded(path: str) -> str:
    import torch

    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        return "missing"
    except Exception:  # a damaged file may raise anything
        return "does not load"
    digest = hashlib.blake2b(digest_size=16)
    _take(content, digest)
    return digest.hexdigest()


def _take(value: object, digest: Any) -> None:
    import torch

    from simdist._content import bytes_of

    digest.update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(bytes_of(value).numpy().data)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            digest.update(repr(key).encode())
            _take(item, digest)
    elif isinstance(value, list | tuple):
        for item in value:
            _take(item, digest)
    else:
        digest.update(repr(value).encode())
