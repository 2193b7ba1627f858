"""Moving data so that no mode of a program sees it.

All functions that move data do so without modes, and in inference mode from the first inference tensor on, like Gloo,
which works on memory. Any rank that parks may run the world's events, under its own modes, and these events touch the
tensors of all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from simdist.inside.torch import (
    count_dispatch_modes,
    count_function_modes,
    with_inference,
    without_functions,
    without_modes,
)

__all__ = ["dispatch_modes", "function_modes", "unseen", "unseen_steps"]

_P = ParamSpec("_P")

# How many modes of each kind the calling thread has pushed.
dispatch_modes = count_dispatch_modes
function_modes = count_function_modes

# True once a tensor of inference mode was given to an operation. From then on all data moves in that mode, in which
# any tensor may be written. Entering it costs more than moving a few bytes, and hardly any program needs it.
inference_tensors = False


def unseen(method: Callable[_P, None]) -> Callable[_P, None]:
    """Decorate a function that moves data of any rank, so that no mode sees what it does."""

    @functools.wraps(method)
    def do(*args: _P.args, **kwargs: _P.kwargs) -> None:
        if not (inference_tensors or dispatch_modes() or function_modes()):
            method(*args, **kwargs)
            return
        with with_inference(inference_tensors), without_modes(), without_functions():
            method(*args, **kwargs)

    return do


def unseen_steps(step: Callable[[], None]) -> Callable[[], None]:
    """Decorate a step of the simulation likewise. Hot: it keeps neither name nor arguments, unlike `unseen`."""

    def do() -> None:
        if not (inference_tensors or dispatch_modes() or function_modes()):
            step()
            return
        with with_inference(inference_tensors), without_modes(), without_functions():
            step()

    return do
