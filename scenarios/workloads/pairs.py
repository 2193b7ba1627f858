"""Point-to-point programs."""

from __future__ import annotations

import datetime
import time

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


def ring(laps: int = 2) -> list[float]:
    """Each rank hands a growing number to the next."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = []
    token = torch.zeros(1)
    for _ in range(laps):
        if rank == 0:
            token += 1
            dist.send(token, dst=1)
            dist.recv(token, src=size - 1)
        else:
            dist.recv(token, src=rank - 1)
            token += 1
            dist.send(token, dst=(rank + 1) % size)
        seen.append(token.item())
    dist.destroy_process_group()
    return seen


def exchange_with_the_dead(mode: str, timeout_seconds: float = 30.0) -> None:
    """Rank 0 sends to rank 1 ("send") or receives from it ("recv") a second after it has gone; rank 2 looks on."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    rank = dist.get_rank()
    dist.barrier()
    if rank == 1:
        dist.barrier()  # where it dies
    if rank == 0:
        time.sleep(1.0)  # noqa: TID251 - until rank 1 has gone
        if mode == "send":
            dist.send(torch.ones(4), dst=1)
        else:
            dist.recv(torch.ones(4), src=1)


def receives_what_nobody_sends(timeout_seconds: float = 2.0) -> None:
    """Rank 0 receives from rank 1, which is alive and never sends."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    dist.barrier()
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), src=1)
    else:
        time.sleep(timeout_seconds * 2)  # noqa: TID251 - the point of it


def any_source() -> list[int]:
    """Rank 0 takes one message from each other rank, the first first."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    senders = []
    if rank == 0:
        senders = [dist.recv(torch.zeros(4)) for _ in range(size - 1)]
    else:
        time.sleep(0.3 * rank)  # noqa: TID251 - so that the order is known
        dist.send(torch.full((4,), float(rank)), dst=0)
    dist.destroy_process_group()
    return senders


def talk_both_ways(pause_seconds: float = 1.0) -> dict[str, float]:
    """Two ranks send each other three messages at a time, and note in whole seconds how long they waited."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    peer = dist.get_rank() ^ 1
    dist.barrier()
    time.sleep(pause_seconds)  # noqa: TID251 - until the fault has begun
    began = time.monotonic()  # noqa: TID251 - virtual in a simulation
    sent = [dist.isend(torch.full((4,), float(index)), dst=peer) for index in range(3)]
    heard = []
    received = torch.zeros(4)
    for _ in range(3):
        dist.recv(received, src=peer)
        heard.append(received[0].item())
    waited = time.monotonic() - began  # noqa: TID251 - likewise
    for work in sent:
        assert work is not None  # only a rank outside the group has none
        work.wait()
    dist.barrier()
    return {"waited": float(int(waited)), "heard": sum(heard)}
