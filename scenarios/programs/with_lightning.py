"""Training with Lightning's Trainer: its progress bar, its logging across processes, its SIGTERM handler."""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        """The loss of a batch."""
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder: str) -> dict[str, Any]:
    """Train for two epochs with `folder` for its files; what every process has in the end."""
    lightning.seed_everything(3)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        default_root_dir=folder,
        enable_checkpointing=False,  # whose folder would be broadcast, and has another name in each run
        logger=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, DataLoader(data, batch_size=8))
    return {
        "loss": float(trainer.callback_metrics["loss"]),
        "parameters": [float(parameter.sum()) for parameter in model.parameters()],
        "processes": trainer.world_size,
        "steps": trainer.global_step,
    }
