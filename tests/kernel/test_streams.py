from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simdist.kernel import stream
from tests.strategies import seeds


@given(seeds, st.text(max_size=10))
def test_a_stream_repeats_itself(seed: int, name: str) -> None:
    assert stream(seed, name).random(4).tolist() == stream(seed, name).random(4).tolist()


def test_streams_of_other_names_and_seeds_are_others() -> None:
    draws = {stream(seed, name).random() for seed in (0, 1, -1, 2**63) for name in ("", "schedule", "link 0->1")}

    assert len(draws) == 12


def test_drawing_from_one_stream_leaves_the_others_alone() -> None:
    alone = stream(4, "b").random(3).tolist()
    ours, other = stream(4, "b"), stream(4, "a")

    draws = []
    for _ in range(3):
        other.random(100)
        draws.append(ours.random())

    assert draws == alone


def test_the_draws_of_a_stream_are_the_same_on_every_machine() -> None:
    assert stream(0, "schedule").integers(0, 2**62, 2).tolist() == [2244270100963584331, 225457505176881864]
