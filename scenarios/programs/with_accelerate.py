"""Training with Hugging Face's Accelerate, as `accelerate launch` or torchrun would start it."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main() -> dict[str, Any]:
    """Train a linear model for two epochs; what every process has in the end."""
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = torch.nn.Linear(4, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses: list[float] = []
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        mean: Any = accelerator.gather(loss.detach().reshape(1))
        losses.append(float(mean.mean()))
    accelerator.print(f"{accelerator.num_processes} processes, loss {losses[-1]:.4f}")
    parameters = [float(parameter.sum()) for parameter in model.parameters()]
    accelerator.end_training()
    return {"losses": losses, "parameters": parameters, "processes": accelerator.num_processes}
