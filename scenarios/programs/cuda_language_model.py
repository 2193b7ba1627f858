"""A small GPT on CUDA devices, as minGPT trains one: DDP, bfloat16, gradients of several batches, text in the end."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEXT = "the same scenario and the same seed give the same run, event for event. " * 8
LETTERS = sorted(set(TEXT))
LENGTH = 16


class GPT(nn.Module):
    """Letters in, letters out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of what comes next, for each place."""
        length = tokens.shape[1]
        x = self.letters(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device, dtype=x.dtype)
        found: torch.Tensor = self.head(self.blocks(x, mask=mask, is_causal=True))
        return found


@torch.no_grad()
def continued(model: nn.Module, text: str, letters: int) -> str:
    """The most likely text."""
    model.eval()
    tokens = torch.tensor([[LETTERS.index(each) for each in text]], device="cuda")
    for _ in range(letters):
        following = model(tokens[:, -LENGTH:])[:, -1].argmax(1, keepdim=True)
        tokens = torch.cat([tokens, following], 1)
    return "".join(LETTERS[each] for each in tokens[0].tolist())


def main(steps: int = 8, pieces: int = 2) -> dict[str, Any]:
    """Train; `pieces` batches make one step."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    torch.manual_seed(1337)
    model: Any = DistributedDataParallel(GPT().cuda(), device_ids=[local], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), fused=True)
    data = torch.tensor([LETTERS.index(each) for each in TEXT]).pin_memory()
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    for _ in range(steps):
        total = torch.zeros((), device="cuda")
        for piece in range(pieces):
            begins = torch.randint(len(data) - LENGTH, (4,), generator=generator).tolist()
            batch = torch.stack([data[each : each + LENGTH + 1] for each in begins]).to("cuda", non_blocking=True)
            with model.no_sync() if piece < pieces - 1 else nullcontext(), torch.autocast("cuda", torch.bfloat16):
                logits = model(batch[:, :-1])
                loss: Any = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / pieces
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(total)
    end.record()
    torch.cuda.synchronize()
    curve = torch.stack(losses).tolist()
    weights = float(sum(each.detach().double().sum() for each in model.parameters()))
    text = continued(model.module, "the same scen", 4)
    peak = torch.cuda.max_memory_allocated()
    dist.destroy_process_group()
    return {
        "losses": curve,
        "fell": curve[0] - curve[-1],
        "weights": weights,
        "text": text,
        "step_us": start.elapsed_time(end) * 1000 / steps,
        "peak": peak,
    }
