"""Recurrent layers, as cuDNN computes them on a GPU.

It has no gradients of layers in evaluation mode, and every autocast makes it compute in float16 (cudnn/RNN.cpp and
AutocastRNN.cpp, torch 2.13). Where a program turns cuDNN off, they are what their operators are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from simdist.inside.torch import find_operator, schema_of

__all__ = ["COMPOSITES"]

Tensor = torch.Tensor
_NAMES = [f"aten::{name}.{form}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")]


def _refuse(gradient: object) -> NoReturn:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")


def _narrowed(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.half() if value.is_floating_point() and value.dtype is not torch.float64 else value
    return [_narrowed(each) for each in value] if isinstance(value, (list, tuple)) else value


def _kernel_of(name: str) -> Callable[..., object]:
    op: Any = find_operator(name)
    place = [each.name for each in schema_of(op).arguments].index("train")

    @functools.wraps(op)
    def kernel(*args: Any) -> object:
        if not torch.backends.cudnn.enabled:
            return op.decompose(*args)
        if torch.is_autocast_enabled("cuda"):
            with torch.autocast("cuda", enabled=False):
                made = op.decompose(*map(_narrowed, args))
        else:
            made = op.decompose(*args)
        if not args[place]:
            for each in made:
                if each.requires_grad:
                    each.register_hook(_refuse)
        return made

    return kernel


# Above autograd, as the operators are that these consist of.
COMPOSITES: dict[str, Callable[..., object]] = {name: _kernel_of(name) for name in _NAMES}
