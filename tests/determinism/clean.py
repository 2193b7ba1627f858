"""Programs that look nondeterministic but are not."""

from __future__ import annotations

import dataclasses
import datetime
import os
import random
import secrets
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist
from tests.determinism import helper
from tests.determinism.planted import Plain, begin, report


def sorted_set() -> list[str]:
    begin()
    names = sorted({"bias", "weight", "running_mean", "running_var"})
    for name in names:
        dist.all_reduce(torch.ones(len(name)))
    return names


def set_as_a_set() -> int:
    begin()
    seen = {f"shard {number}" for number in range(50)}
    report(len(seen))
    return sum(int(name[6:]) for name in seen)


def seeded_generators() -> list[float]:
    begin()
    mine, theirs = random.Random(1), np.random.default_rng(2)
    tensor = torch.randn(8, generator=torch.Generator().manual_seed(3)) + mine.random() + theirs.random()
    dist.all_reduce(tensor)
    return tensor.tolist()


def generators_of_the_rank() -> float:
    begin()
    tensor = torch.rand(4) + random.random() + np.random.random()
    dist.all_reduce(tensor)
    return float(tensor.sum())


def virtual_time() -> str:
    begin()
    time.sleep(0.25)
    report(time.time() * 1e6 + time.perf_counter() * 1e3)
    return datetime.datetime.now().isoformat()


def temporary_folder_that_nobody_sees() -> int:
    rank = begin()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.pt"
        torch.save(torch.full((4,), float(rank)), path)
        loaded = torch.load(path)
    dist.all_reduce(loaded)
    return int(loaded.sum())


def sorted_folder() -> list[str]:
    begin()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("b", "a", "c"):
            (Path(folder) / name).touch()
        return sorted(os.listdir(folder))  # noqa: PTH208 - as users write it


def identity_as_a_key() -> int:
    begin()
    things = [Plain() for _ in range(10)]
    seen = {id(thing): number for number, thing in enumerate(things)}
    report(seen[id(things[7])])
    return len(seen)


def name_derived_from_the_rank() -> str:
    rank = begin()
    name = uuid.uuid5(uuid.NAMESPACE_DNS, f"rank {rank}")
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, name)
    return str(gathered)


def random_name_that_stays_inside() -> int:
    begin()
    name = uuid.uuid4().hex
    report(len(name))
    return len({name})


def weak_reference_to_the_living() -> bool:
    begin()
    thing = Plain()
    reference = weakref.ref(thing)
    report(reference() is thing)
    del thing
    return reference() is None


def objects_without_a_text() -> dict[str, Any]:
    begin()

    @dataclasses.dataclass
    class Settings:
        rate: float
        layers: list[int]

    print(Settings(0.1, [1, 2]))
    return {"settings": Plain(), "function": begin}


def training() -> float:
    rank = begin()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(3):
        simdist.step(step)
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    return float(next(model.parameters()).detach().sum())


def ring_of_messages() -> list[float]:
    rank = begin()
    size = dist.get_world_size()
    received = torch.zeros(3)
    works = [dist.isend(torch.full((3,), float(rank)), (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
    for work in works:
        assert work is not None
        work.wait()
    return received.tolist()


def large_payload() -> int:
    begin()
    tensor = torch.arange(100_000, dtype=torch.int64)
    dist.all_reduce(tensor)
    return int(tensor[-1])


def failing_rank() -> None:
    rank = begin()
    if rank == 1:
        raise ValueError("bad batch")
    dist.barrier()


def sub_groups() -> list[Any]:
    rank = begin()
    group = dist.new_group([0, 1])
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": rank, "names": sorted({"a", "b", "c"})}, group=group)
    return gathered


def environment_of_the_rank() -> str:
    begin()
    os.environ["SCRATCH"] = f"scratch-{os.environ['RANK']}"
    print(os.environ["SCRATCH"], os.environ["WORLD_SIZE"], os.getpid())
    return os.environ["SCRATCH"]


def zeros_that_were_empty() -> list[float]:
    begin()
    tensor = torch.empty(64)
    tensor.zero_()
    dist.all_reduce(tensor)
    return tensor.tolist()


def state_that_is_reset() -> int:
    begin()
    _calls.clear()
    dist.barrier()
    _calls.append(1)
    dist.barrier()
    report(len(_calls))
    return len(_calls)


_calls: list[int] = []


def wall_clock_in_another_module() -> None:
    begin()
    report(helper.microseconds())


def unseeded_batches_of_a_training() -> None:
    begin()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    started = helper.microseconds()
    permutation = np.random.default_rng().permutation(16)
    data = torch.arange(64, dtype=torch.float32).reshape(16, 4)

    def batches() -> Iterator[torch.Tensor]:
        for index in range(0, 16, 8):
            yield data[torch.from_numpy(permutation[index : index + 8])]

    for batch in batches():
        model(batch).square().sum().backward()
    assert helper.microseconds() >= started


def unseeded_random() -> None:
    begin()
    generator = random.Random()
    report(generator.randrange(10**6))


def unseeded_numpy() -> None:
    begin()
    generator = np.random.default_rng()
    tensor = torch.from_numpy(generator.standard_normal(8))
    dist.all_reduce(tensor)


def unseeded_torch() -> None:
    begin()
    generator = torch.Generator()
    generator.seed()
    tensor = torch.randn(8, generator=generator)
    dist.all_reduce(tensor)


def global_generator_seeded_by_chance() -> None:
    begin()
    torch.seed()
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()


def entropy_of_a_seed_sequence() -> int:
    begin()
    sequence = np.random.SeedSequence()
    return int(sequence.generate_state(1)[0])


def uuid4() -> None:
    begin()
    name = uuid.uuid4()
    dist.all_gather_object([None, None], str(name))


def token() -> None:
    rank = begin()
    word = secrets.token_hex(4)
    if rank == 1:
        print(f"run {word}")


def name_of_a_temporary_folder() -> None:
    rank = begin()
    folder = tempfile.mkdtemp()
    os.rmdir(folder)  # noqa: PTH106 - as users write it
    if rank == 0:
        print(f"logs in {folder}")
