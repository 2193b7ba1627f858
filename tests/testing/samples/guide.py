"""The examples of the README's chapter on tests; each of them passes."""

# mypy: ignore-errors
# (as users write them)

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simdist
from simdist.faults import Crash

# -- a test on every rank --


@pytest.mark.simdist(world_size=4)
def test_sum(rank):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == 0 + 1 + 2 + 3


# -- a fault --


@pytest.mark.simdist(world_size=4, timeout="30s", faults=[Crash(rank=2, op="all_reduce", nth=2, when="during")])
def test_survivors_hear_of_it_when_a_rank_dies(rank):
    dist.all_reduce(torch.ones(1000))
    with pytest.raises(RuntimeError, match=r"Connection|Timed out"):
        dist.all_reduce(torch.ones(1000))


# -- a checkpoint --


def train(folder, steps=6):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint, first = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        first = saved["step"] + 1
    for step in range(first, steps):
        simdist.step(step)  # names the step for faults; does nothing outside a simulation
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step}, checkpoint)
        dist.barrier()
    return first, model.module.weight.detach().clone()


@pytest.mark.parametrize(("when", "resumes_at"), [("before", 3), ("during", 3), ("after", 4)])
def test_training_resumes_where_it_was(sim, tmp_path, when, resumes_at):
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "disturbed").mkdir()
    undisturbed = sim.run(train, args=(tmp_path / "undisturbed",), world_size=4)

    sim.crash(3, step=3, op="all_reduce", when=when)
    result = sim.run(train, args=(tmp_path / "disturbed",), world_size=4, max_restarts=1)

    first_step, weight = result.values[0]
    assert first_step == resumes_at
    assert torch.equal(weight, undisturbed.values[0][1])


# -- a world driven by hand --


def test_a_partition_heals_before_the_timeout(sim):
    def work():
        dist.init_process_group("gloo")
        for _ in range(3):
            time.sleep(60)
            dist.all_reduce(torch.ones(1))
        return time.monotonic()

    world = sim.start(work, world_size=4)
    world.advance("90s")
    cut = sim.partition([0, 1], [2, 3])
    world.advance("10min")
    assert all(rank.waiting.startswith("all_reduce") for rank in world.ranks)
    cut.heal()
    result = world.finish()

    assert all(690 + 60 <= ended < 690 + 61 for ended in result.values)
