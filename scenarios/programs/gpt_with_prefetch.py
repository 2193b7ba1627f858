"""A small GPT in the manner of nanoGPT: DDP, gradients that add up over micro-batches, batches made by a thread."""

from __future__ import annotations

import math
import os
import queue
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BLOCK, VOCABULARY, WIDTH, HEADS, LAYERS = 16, 32, 32, 2, 2
STEPS, MICRO_BATCHES = 5, 4

Batch = tuple[torch.Tensor, torch.Tensor]


class Prefetcher(threading.Thread):
    """Makes batches ahead of the training, from a generator of its own."""

    def __init__(self, data: torch.Tensor, seed: int) -> None:
        super().__init__(daemon=True)
        self._data = data
        self._generator = torch.Generator().manual_seed(seed)
        self._batches: queue.Queue[Batch] = queue.Queue(2)
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Until somebody stops it."""
        while not self._stop_asked.is_set():
            begins = torch.randint(len(self._data) - BLOCK - 1, (4,), generator=self._generator)
            inputs = torch.stack([self._data[begin : begin + BLOCK] for begin in begins])
            targets = torch.stack([self._data[begin + 1 : begin + 1 + BLOCK] for begin in begins])
            while not self._stop_asked.is_set():
                try:
                    self._batches.put((inputs, targets), timeout=0.1)
                    break
                except queue.Full:
                    continue

    def next(self) -> Batch:
        """The next batch, as soon as it is there."""
        return self._batches.get()

    def stop(self) -> None:
        """End the thread."""
        self._stop_asked.set()
        self.join()


class Layer(nn.Module):
    """Attention to what came before, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.second_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next layer's input."""
        normed = self.first_norm(x)
        later = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), 1)
        x = x + self.attention(normed, normed, normed, attn_mask=later, need_weights=False)[0]
        return x + self.mlp(self.second_norm(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Predicts the next token, and says how wrong that is."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # one tensor under two names

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = self.tokens(inputs) + self.places(torch.arange(inputs.size(1)))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).view(-1, VOCABULARY), targets.view(-1))


def main() -> dict[str, object]:
    """Train; the losses of this rank, and a sum over all weights."""
    dist.init_process_group("gloo")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(1337)
    raw = GPT()
    model = DDP(raw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    batches = Prefetcher(torch.arange(5000) * 7 % VOCABULARY, seed=rank)
    batches.start()
    micro_batches = MICRO_BATCHES // size
    losses = []
    inputs, targets = batches.next()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for micro in range(micro_batches):
            model.require_backward_grad_sync = micro == micro_batches - 1
            loss = model(inputs, targets) / micro_batches
            inputs, targets = batches.next()  # while the gradients are reduced
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss) * micro_batches)
    batches.stop()
    dist.destroy_process_group()
    return {"losses": losses, "weights": sum(float(each.detach().double().sum()) for each in raw.parameters())}


if __name__ == "__main__":
    main()
