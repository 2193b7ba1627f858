"""A server that keeps the parameters, a thread of it for each worker, and workers that play episodes for gradients."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS, EPISODE = 5, 10
Inbox = queue.Queue[tuple[int, torch.Tensor]]


class Cart:
    """Something to be kept in the middle."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.state = torch.rand(4, generator=self.generator)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Push it; where it is then, and the reward."""
        noise = 0.05 * torch.randn(4, generator=self.generator)
        self.state = (self.state + 0.1 * (action - 0.5) + noise).clamp(-2, 2)
        return self.state, 1 - self.state.abs().mean().item()


def flat(policy: torch.nn.Module) -> torch.Tensor:
    """All parameters in one tensor of its own."""
    return parameters_to_vector(policy.parameters()).detach().clone()


def serve(policy: torch.nn.Module, workers: list[int]) -> list[float]:
    """Gather a gradient from each worker, step, and send them what comes of it; the mean rewards."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    inbox: Inbox = queue.Queue(maxsize=2)
    size = flat(policy).numel()

    def listen(worker: int) -> None:
        for _ in range(ROUNDS):
            gradient = torch.empty(size + 1)
            dist.recv(gradient, src=worker, tag=worker)
            inbox.put((worker, gradient))

    threads = [threading.Thread(target=listen, args=(worker,), name=f"for worker {worker}") for worker in workers]
    for thread in threads:
        thread.start()
    rewards = []
    for number in range(ROUNDS):
        got = dict(inbox.get(timeout=60) for _ in workers)
        mean: Any = torch.stack([got[worker] for worker in sorted(got)]).mean(0)
        for parameter, gradient in zip(
            policy.parameters(), mean[:-1].split([each.numel() for each in policy.parameters()]), strict=True
        ):
            parameter.grad = gradient.view_as(parameter).clone()
        optimizer.step()
        works = [dist.isend(flat(policy), dst=worker, tag=100 + number) for worker in workers]
        for work in works:
            assert work is not None
            work.wait()
        rewards.append(mean[-1].item())
    for thread in threads:
        thread.join()
    return rewards


def play(policy: torch.nn.Module, rank: int) -> None:
    """Play an episode, send the gradient, and go on with the server's parameters."""
    cart = Cart(1000 + rank)
    torch.manual_seed(rank)
    for number in range(ROUNDS):
        chances, rewards = [], []
        state = cart.state
        for _ in range(EPISODE):
            choice: Any = torch.distributions.Bernoulli(logits=policy(state).squeeze())
            action = choice.sample()
            chances.append(choice.log_prob(action))
            state, reward = cart.step(action)
            rewards.append(reward)
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        loss: Any = -(torch.stack(chances) * (returns - returns.mean())).mean()
        policy.zero_grad()
        loss.backward()
        gradients = [each.grad.flatten() for each in policy.parameters() if each.grad is not None]
        dist.send(torch.cat([*gradients, torch.tensor([sum(rewards)])]), dst=0, tag=rank)
        fresh = torch.empty_like(flat(policy))
        work = dist.irecv(fresh, src=0, tag=100 + number)
        assert work is not None
        work.wait()
        vector_to_parameters(fresh, policy.parameters())


def main() -> dict[str, Any]:
    """The rewards on the server, and on every rank the sum of its parameters; then a message from anyone."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    rewards: list[float] = []
    heard: list[Any] = []
    if rank == 0:
        rewards = serve(policy, list(range(1, size)))
        for _ in range(1, size):
            word = torch.empty(1)
            source = dist.recv(word)
            heard.append([source, word.item()])
    else:
        play(policy, rank)
        dist.send(torch.tensor([10.0 * rank]), dst=0)
    total = flat(policy).double().sum().item()
    dist.barrier()
    dist.destroy_process_group()
    return {"rewards": rewards, "parameters": total, "heard": sorted(heard)}


if __name__ == "__main__":
    main()
