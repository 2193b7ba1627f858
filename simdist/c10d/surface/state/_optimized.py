"""The parameters that ranks optimize: no two ranks may have the same ones, as no two processes could.

A model that a function closes over, or that is global in a module that ranks share, is one object for all ranks. Each
of them would train it, and what they compute would be wrong without any error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from simdist.errors import SimdistError
from simdist.inside.torch import SwapReferences, TensorRef
from simdist.process import Patches, SimProcess, current_process

__all__ = ["forget", "install"]

_owners: dict[int, tuple[TensorRef, SimProcess]] = {}  # by the parameter's id, in the present world


def _noting_owners(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        original(self, param_group)
        process = current_process()
        if process is not None and process.parent is None and process.rank >= 0:
            for parameter in param_group["params"]:
                _note(parameter, process)

    return add_param_group


def _note(parameter: torch.Tensor, process: SimProcess) -> None:
    known = _owners.get(id(parameter))
    if known is None or known[0]() is not parameter:
        _owners[id(parameter)] = TensorRef(parameter), process
    elif known[1].rank != process.rank:
        raise SimdistError(
            f"rank {process.rank} optimizes the same parameter as rank {known[1].rank}, of shape "
            f"{list(parameter.shape)}; ranks share what a function closes over, the object of a method and what is "
            "global in a module, while each process has a model of its own: make it on the rank, pass it in args= "
            "(each rank gets a copy), or use isolate=True for one that is global"
        )


def install(patches: Patches) -> None:
    """Refuse a parameter that another rank optimizes."""
    patches.wrap(torch.utils, "weakref", SwapReferences)
    patches.wrap(torch.optim.Optimizer, "add_param_group", _noting_owners)


def forget() -> None:
    """Forget the owners: the world is gone."""
    _owners.clear()
