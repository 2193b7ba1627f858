"""Lightning Fabric around a loop of one's own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric


def main() -> dict[str, object]:
    """Train, save and load; the losses of all ranks, and the weights."""
    fabric: Any = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    rows: Any = torch.arange(64.0).reshape(16, 4) / 64
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(rows, batch_size=2, shuffle=True))
    loss = torch.zeros(())
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            fabric.backward(loss)
            optimizer.step()
    losses = fabric.all_gather(loss).tolist()
    folder = fabric.broadcast(tempfile.mkdtemp() if fabric.is_global_zero else "")
    before = model.weight.detach().clone()
    state = {"model": model, "optimizer": optimizer}
    fabric.save(f"{folder}/last.ckpt", state)
    with torch.no_grad():
        model.weight.zero_()
    fabric.load(f"{folder}/last.ckpt", state)
    assert torch.equal(model.weight, before)
    fabric.barrier()
    if fabric.is_global_zero:
        Path(folder, "last.ckpt").unlink()
        Path(folder).rmdir()
    return {"losses": losses, "weights": before.tolist()}


if __name__ == "__main__":
    main()
