"""Recurrent layers on devices are what cuDNN makes of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.device.worlds import cuda, on_devices

LAYERS = [nn.LSTM, nn.GRU, nn.RNN]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("packed", [False, True])
@on_devices
def test_a_backward_pass_wants_training_mode(layer: Any, packed: bool) -> None:
    module, rows = layer(3, 5).cuda(1), torch.randn(4, 2, 3, device=cuda(1))

    def backward() -> None:
        result = module(pack_padded_sequence(rows, torch.tensor([4, 2])) if packed else rows)[0]
        (result.data if packed else result).sum().backward()

    backward()
    module.eval()
    with torch.no_grad():
        assert module(rows)[0].shape == (4, 2, 5)
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        backward()
    with torch.backends.cudnn.flags(enabled=False):
        backward()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16, None])
@on_devices
def test_an_autocast_makes_it_compute_in_float16(layer: Any, autocast: torch.dtype | None) -> None:
    module, rows = layer(3, 5).cuda(1), torch.randn(4, 2, 3, device=cuda(1))
    expected = module(rows)[0]

    with torch.autocast("cuda", autocast) if autocast is not None else contextlib.nullcontext():
        result, hidden = module(rows)
    result.float().sum().backward()

    kind = torch.float32 if autocast is None else torch.float16
    assert {result.dtype, *(each.dtype for each in (hidden if isinstance(hidden, tuple) else (hidden,)))} == {kind}
    assert {each.grad.dtype for each in module.parameters()} == {torch.float32}
    torch.testing.assert_close(result.float(), expected, rtol=1e-2, atol=1e-2)
