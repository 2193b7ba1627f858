"""Contents that are equal on ranks are copied once; a difference of one bit is found, with the sums of the copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from simdist.judges._bits import bits_of
from simdist.judges._contents import Content, copied_content, summed_content
from simdist.judges.replicas._tables import Row, Table
from tests.judges.programs import net


def stepped(seed: int = 0) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """Return parameters after a step of Adam, and the optimizer, which keeps tensors and numbers."""
    torch.manual_seed(seed)
    model = net(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return list(model.parameters()), optimizer


def copied(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> Content:
    content = copied_content(parameters, optimizer.state)
    assert content is not None
    return content


def test_the_sums_of_a_copy_are_those_of_the_memory() -> None:
    parameters, optimizer = stepped()

    content = copied(parameters, optimizer)

    assert content.bits == summed_content(parameters, optimizer.state).bits
    assert [bits[0] for bits in content.bits] == [bits_of(each) for each in parameters]


@pytest.mark.parametrize("what", ["parameter", "gradient", "state"])
def test_a_bit_distinguishes_contents(what: str) -> None:
    (parameters, optimizer), (others, other_optimizer) = stepped(), stepped()
    content = copied(parameters, optimizer)
    assert content.is_of(others, other_optimizer.state)
    changed = {"parameter": others[-1].data, "gradient": others[-1].grad, "state": None}[what]
    if changed is None:
        changed = other_optimizer.state[others[-1]]["exp_avg_sq"]

    changed.view(torch.int32).bitwise_xor_(1)

    assert not content.is_of(others, other_optimizer.state)
    assert content.bits != summed_content(others, other_optimizer.state).bits


def test_what_is_not_plain_memory_is_not_copied() -> None:
    weight = nn.Parameter(torch.ones(4, 2))
    weight.grad = torch.ones(4, 2).to_sparse()

    assert copied_content([weight], {}) is None
    assert copied_content([nn.Parameter(torch.ones(4, 2).t())], {}) is None


def test_ranks_that_hold_the_same_share_a_content_behind_one_that_differs() -> None:
    (parameters, optimizer), (others, other_optimizer), (different, third) = stepped(), stepped(), stepped(1)
    table = Table()

    first = table.content_after(0, parameters, optimizer.state)
    odd = table.content_after(0, different, third.state)
    second = table.content_after(0, others, other_optimizer.state)

    assert second is first
    assert odd.bits != first.bits


def test_a_rank_that_runs_ahead_leaves_the_sums_of_its_steps() -> None:
    (parameters, optimizer), (others, other_optimizer) = stepped(), stepped()
    table = Table()
    ahead = table.content_after(0, parameters, optimizer.state)
    table.rows[0] = {0: object.__new__(Row)}  # the other rank's is missing

    parameters[0].data.add_(1)
    later = table.content_after(1, parameters, optimizer.state)
    behind = table.content_after(0, others, other_optimizer.state)

    assert behind is not ahead
    assert behind.bits == ahead.bits != later.bits
