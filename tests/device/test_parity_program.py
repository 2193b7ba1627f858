"""What is compared with a real GPU where one is at hand: its virtual side, and what is said where there is none."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tools._device_parity import NAMES, PAIR, differences, simulated
from tools.parity_nccl import main


@pytest.fixture
def kernels() -> None:
    """Whatever is there: one form is enough."""


def test_a_virtual_device_answers_all_that_is_asked_of_a_gpu() -> None:
    found = simulated()

    assert tuple(found) == NAMES
    first, second = found[PAIR]
    assert first["all_reduce"] == second["all_reduce"] == [1.0, 3.0, 5.0, 7.0]
    assert first["gradient"] == second["gradient"] == [[1.5, 1.5]]
    assert found["mixed precision"]["scales"] == [4.0, 2.0, 2.0, 4.0]


def test_answers_part_where_they_part() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ["/a/c: simulated 2, real 3"]
    assert differences({"a": 1}, {"a": 1, "b": 2}) == ["/b: simulated None, real 2"]


def test_without_a_gpu_it_is_said_what_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.parity_nccl.unavailable", lambda *_: "this build of torch has no NCCL")

    result = CliRunner().invoke(main, [])

    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "skipped: this build of torch has no NCCL"
    assert all(name in result.output.splitlines()[1] for name in NAMES)
