"""Two dimensions of CUDA devices: tensor and sequence parallel within a host, FSDP2 between hosts."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WIDTH, HEADS, VOCABULARY = 16, 4, 32


class Attention(nn.Module):
    """Heads, of which each rank of a host has some."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention."""
        batch, length, _ = x.shape
        parts = [
            each(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for each in (self.wq, self.wk, self.wv)
        ]
        found = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        done: torch.Tensor = self.wo(found.transpose(1, 2).reshape(batch, length, -1))
        return done


class FeedForward(nn.Module):
    """A gated one."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both ways in, one out."""
        done: torch.Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return done


class Block(nn.Module):
    """A transformer's."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both halves, each beside what comes in."""
        x = x + self.attention(self.attention_norm(x))
        done: torch.Tensor = x + self.feed_forward(self.ffn_norm(x))
        return done


class Model(nn.Module):
    """A small Llama."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.output(self.norm(x))
        return found


def spread(model: Any, mesh: Any) -> Any:
    """Tensor parallel over the mesh's "tp", FSDP over its "dp"."""
    parallel: Any = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    model = parallelize_module(model, mesh["tp"], parallel)
    plan: Any = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
    return fully_shard(model, mesh=mesh["dp"])


def main(steps: int = 3, layers: int = 2) -> dict[str, Any]:
    """Train; ranks of one host have the same data."""
    local, size = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh: Any = init_device_mesh("cuda", (size // local, local), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = spread(Model(layers).to("cuda"), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=True)
    torch.manual_seed(1 + mesh["dp"].get_local_rank())
    tokens = torch.randint(VOCABULARY, (2, 17), device="cuda")
    losses = []
    for _ in range(steps):
        logits = model(tokens[:, :-1])
        loss: Any = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [float(each.full_tensor().double().sum()) for each in model.parameters()]
    shapes = [tuple(each.to_local().shape) for each in model.parameters()]
    dist.destroy_process_group()
    return {"weights": weights, "fell": losses[0] - losses[-1], "rows": shapes[0][0]}
