"""Single numbers over Gloo: they are summed in place, with the same bits as torch's sums."""

from __future__ import annotations

import random

import pytest
import torch

import simdist
from simdist.c10d.backends.gloo import _folds

WORDS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int32: torch.int32, torch.int64: torch.int64}
ODD = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 2.0**24, 2.0**-24, 1 + 2.0**-23, float("inf")]
ODD += [-float("inf"), float("nan"), -float("nan")]


def _drawn(chance: random.Random, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point and chance.random() < 0.5:
        return torch.tensor([chance.choice(ODD)], dtype=dtype)
    bits = 8 * dtype.itemsize
    return torch.tensor([chance.getrandbits(bits) - (1 << (bits - 1))], dtype=WORDS[dtype]).view(dtype)


@pytest.mark.parametrize("ranks", [2, 3, 8, 20])
@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [*((dtype, "sum") for dtype in WORDS), *((dtype, "avg") for dtype in WORDS if dtype.is_floating_point)],
)
def test_a_sum_of_single_numbers_has_the_bits_of_torchs(
    dtype: torch.dtype, ranks: int, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(0)
    drawn = [[_drawn(chance, dtype) for _ in range(ranks)] for _ in range(200)]
    sums = [[tensor.clone() for tensor in tensors] for tensors in drawn]

    for tensors in sums:
        _folds.all_reduce(tensors, reduction)
    monkeypatch.setattr(_folds, "_sum_numbers", lambda tensors: False)
    for tensors in drawn:
        _folds.all_reduce(tensors, reduction)

    words = WORDS[dtype]
    assert [[one.view(words).item() for one in each] for each in sums] == [
        [one.view(words).item() for one in each] for each in drawn
    ]


def test_a_message_of_few_bytes_has_what_its_tensor_held_when_it_left() -> None:
    def body() -> list[float]:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        found = []
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensor = torch.full((3,), 1.0 + dist.get_rank(), dtype=dtype)
            work = dist.isend(tensor, 1) if dist.get_rank() == 0 else dist.irecv(tensor, 0)
            assert work is not None
            if dist.get_rank() == 0:
                tensor += 4
            work.wait()
            found += tensor.tolist()
        return found

    result = simdist.run(body, world_size=2)

    result.raise_for_failure()
    assert [rank.value for rank in result.ranks] == [[5.0] * 9] * 2
