"""FSDP2 on CUDA devices: begun on "meta", bfloat16 beside float32, prefetching by hand, clipping, and checkpoints."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    """A transformer's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, and what is done to each token."""
        batch, length, width = x.shape
        parts = self.inputs(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.output(found.transpose(1, 2).reshape(batch, length, width))
        done: torch.Tensor = x + self.feed_forward(self.norms[1](x))
        return done


class Model(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, vocabulary: int = 32, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits

    def begin(self) -> None:
        """Values for parameters that had none."""
        for module in self.modules():
            begin: Any = getattr(module, "reset_parameters", None)
            if begin is not None:
                begin()


def make() -> Any:
    """The sharded model, on its device."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    with torch.device("meta"):
        model: Any = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for here, following in itertools.pairwise(model.blocks):
        here.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([here])
    model.to_empty(device="cuda")
    torch.manual_seed(0)
    model.begin()
    return model


def main(folder: str, steps: int = 3) -> dict[str, Any]:
    """Train, save, and load into another model."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    generator = torch.Generator("cuda").manual_seed(dist.get_rank())
    tokens = torch.randint(0, 32, (4, 12), device="cuda", generator=generator)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss: Any = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.full_tensor().item())
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    state_dict_saver.save(state, checkpoint_id=Path(folder) / "checkpoint")

    other = make()
    others = torch.optim.AdamW(other.parameters(), lr=0.02)
    empty: Any = dict(zip(("model", "optimizer"), get_state_dict(other, others), strict=True))
    state_dict_loader.load(empty, checkpoint_id=Path(folder) / "checkpoint")
    set_state_dict(other, others, model_state_dict=empty["model"], optim_state_dict=empty["optimizer"])
    same = all(
        torch.equal(one.full_tensor(), two.full_tensor())
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    )
    sharded = all(isinstance(each, DTensor) and each.device.type == "cuda" for each in model.parameters())
    dist.destroy_process_group()
    return {"same": float(same), "sharded": float(sharded), "fell": losses[0] - losses[-1], "norms": norms}
