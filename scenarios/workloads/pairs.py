"""Point-to-point programs."""

from __future__ import annotations

import torch
import torch.distributed as dist


def both_receive_first() -> None:
    """Each rank of a pair waits for the other's message before it sends its own: the classic deadlock."""
    dist.init_process_group("gloo")
    peer = dist.get_rank() ^ 1
    received = torch.zeros(4)
    dist.recv(received, src=peer)
    dist.send(torch.ones(4), dst=peer)
    dist.destroy_process_group()
