from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from simdist.process import current_process
from tests.device.worlds import cuda, on_devices, values


def drawn(index: int = 0) -> list[float]:
    return torch.randn(4, device=cuda(index)).tolist()


@on_devices
def test_equal_seeds_draw_equal_numbers_on_every_device() -> None:
    torch.manual_seed(3)
    first = drawn(0), drawn(1)
    torch.cuda.manual_seed_all(3)
    second = drawn(0), drawn(1)
    torch.cuda.manual_seed(4)

    assert first == second
    assert first[0] == first[1]
    assert drawn(0) != first[0]


@on_devices
def test_the_cpu_s_generator_and_a_device_s_do_not_move_each_other() -> None:
    torch.manual_seed(3)
    alone = torch.randn(4)
    torch.manual_seed(3)
    of_device = drawn()

    torch.nn.functional.dropout(torch.ones(8, device="cuda"))
    torch.rand(3, device="cuda").bernoulli_()
    beside = torch.randn(4)

    assert torch.equal(alone, beside)
    torch.manual_seed(3)
    torch.randn(9)
    assert drawn() == of_device


@on_devices
def test_a_state_is_a_seed_and_an_offset() -> None:
    torch.cuda.manual_seed(7)
    drawn()
    state = torch.cuda.get_rng_state()
    first = drawn()

    torch.cuda.set_rng_state(state)

    assert state.numel() == 16
    assert drawn() == first
    assert torch.cuda.initial_seed() == 7
    assert len(torch.cuda.get_rng_state_all()) == 4
    assert torch.cuda._get_rng_state_offset() == 8


@on_devices
def test_a_generator_of_a_device_draws_for_it_only() -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    first = torch.randn(3, device=cuda(1), generator=generator)

    again = torch.randn(3, device=cuda(1), generator=generator.manual_seed(5))

    assert isinstance(generator, torch.Generator)
    assert generator.device == cuda(1)
    assert torch.equal(first, again)
    assert isinstance(torch.Generator(), torch.Generator)
    assert torch.Generator().device.type == "cpu"
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, device=cuda(1), generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randn(3, generator=generator)


@on_devices
def test_a_generator_is_pickled_with_its_state() -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    torch.randn(3, device=cuda(1), generator=generator)

    again = pickle.loads(pickle.dumps(generator))

    assert (again.device, again.initial_seed(), again.get_offset()) == (cuda(1), 5, 4)


@on_devices
def test_wrong_states_are_refused_in_torch_s_words() -> None:
    generator = torch.Generator(device="cuda")

    with pytest.raises(TypeError, match="RNG state must be a torch"):
        generator.set_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        generator.set_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        generator.set_offset(3)


@on_devices
def test_forked_generators_come_back() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0]):
        inside = drawn()

    assert drawn() == inside


def test_runs_draw_alike_and_each_rank_has_a_seed_of_its_own() -> None:
    def body() -> list[float]:
        process = current_process()
        assert process is not None
        unseeded = drawn()
        process.simulation.sleep(0)
        torch.manual_seed(process.rank)
        process.simulation.sleep(0)
        return unseeded + drawn()

    first, second = values(body, world_size=2), values(body, world_size=2)

    assert first == second
    assert first[0][:4] != first[1][:4]
    assert first[0][4:] != first[1][4:]


@on_devices
def test_a_graph_safe_state_counts_on_with_its_generator() -> None:
    generator = torch.Generator(cuda()).manual_seed(3)
    shared, copied = generator.graphsafe_get_state(), generator.clone_state()
    generator.graphsafe_set_state(shared)
    torch.rand(2, device=cuda(), generator=generator)

    assert shared.get_offset() == generator.get_offset() == 4
    assert copied.get_offset() == 0
    generator.graphsafe_set_state(copied)
    assert (generator.get_offset(), shared.get_offset()) == (0, 4)


class _Restores(TorchDispatchMode):
    """Sets a state before each operation, as torch's LocalTensorMode does."""

    def __init__(self, state: torch.Tensor) -> None:
        super().__init__()
        self.state = state
        self.seen = torch.empty(0)

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        torch.cuda.set_rng_state(self.state)
        self.seen = torch.cuda.get_rng_state()
        return func(*args, **(kwargs or {}))


@on_devices
def test_a_mode_may_set_and_read_states_where_tensors_are_fake() -> None:
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(5)

    with FakeTensorMode(), _Restores(state) as mode:
        torch.empty(4, device="cuda")

    assert type(mode.seen) is torch.Tensor
    assert torch.equal(mode.seen, state)
    assert torch.equal(torch.cuda.get_rng_state(), state)
