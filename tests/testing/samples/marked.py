"""Tests whose body runs on every rank, with everything that pytest offers. Each has the outcome that its name says."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simdist
from simdist.faults import Crash, Fault, Hang

pytestmark = pytest.mark.simdist(world_size=3)


def test_passes_on_every_rank(rank: int, world_size: int) -> None:
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == 3
    assert world_size == dist.get_world_size() == 3
    assert rank == dist.get_rank() == int(os.environ["RANK"])


@pytest.mark.simdist(2)
def test_passes_with_the_closest_world_size(world_size: int) -> None:
    assert world_size == dist.get_world_size() == 2


@pytest.mark.simdist(init=False)
def test_passes_with_a_group_of_its_own(rank: int) -> None:
    assert not dist.is_initialized()
    dist.init_process_group("gloo", timeout=timedelta(seconds=9))
    assert dist.get_rank() == rank


@pytest.mark.simdist(timeout="2s")
def test_passes_with_a_timeout_in_virtual_time(rank: int) -> None:
    if rank == 0:
        time.sleep(5)
        return
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="Timed out waiting 2000ms"):
        dist.barrier()
    assert 2 <= time.monotonic() - begin < 2.1


@pytest.mark.simdist(backend="sim")
def test_passes_on_the_ideal_backend() -> None:
    assert dist.get_backend() == "sim"


@pytest.mark.parametrize("world_size", [1, 5])
@pytest.mark.parametrize("value", ["a", "b c"])
def test_passes_with_parameters(world_size: int, value: str) -> None:
    assert dist.get_world_size() == world_size
    assert value in ("a", "b c")


@pytest.mark.parametrize(
    ("faults", "lost"), [([], False), ([Crash(rank=0, op="barrier")], True)], ids=["quiet", "crash"]
)
def test_passes_with_faults_as_parameters(faults: list[Fault], lost: bool) -> None:
    if not lost:
        dist.barrier()
        return
    with pytest.raises(RuntimeError):
        dist.barrier()


def test_passes_with_a_shared_folder(rank: int, tmp_path: Path) -> None:
    (tmp_path / str(rank)).write_text("here")
    dist.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_passes_with_its_own_output(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    print("hello from", rank)
    dist.barrier()
    sys.stderr.write("no end of line")
    assert capsys.readouterr() == (f"hello from {rank}\n", "no end of line")
    assert capsys.readouterr() == ("", "")
    with capsys.disabled():
        dist.barrier()
    print("again")
    assert capsys.readouterr().out == "again\n"


def test_passes_with_its_own_output_in_bytes(rank: int, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print("é", rank)
    assert capsysbinary.readouterr().out == f"é {rank}\n".encode()


def test_passes_with_its_own_log(rank: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger("training").info("loss of %d", rank)
    dist.barrier()
    assert caplog.messages == [f"loss of {rank}"]
    assert caplog.text.endswith(f"loss of {rank}\n")
    assert caplog.text.count("\n") == 1
    caplog.clear()
    dist.barrier()
    logging.getLogger("training").info("more")
    assert [record.getMessage() for record in caplog.records] == ["more"]


def test_passes_with_its_own_environment(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", str(rank))
    monkeypatch.setenv("RANK", "seventeen")
    monkeypatch.delenv("HOME")
    with monkeypatch.context() as inner:
        inner.setenv("MINE", "inner")
        assert os.environ["MINE"] == "inner"
    dist.barrier()
    assert os.environ["MINE"] == str(rank)
    assert "HOME" not in os.environ


@pytest.mark.simdist(world_size=1, init=False)
def test_passes_because_no_other_test_changed_its_environment() -> None:
    assert "MINE" not in os.environ
    assert "HOME" in os.environ
    assert os.environ["RANK"] == "0"


def test_passes_with_a_patched_module(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "choice", lambda _: 2)
    dist.barrier()
    assert random.choice([1]) == 2


def test_passes_because_the_patch_is_gone() -> None:
    assert random.choice([1]) == 1


@pytest.fixture
def inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")


@pytest.mark.usefixtures("inherited")
def test_passes_with_what_a_fixture_put_into_the_environment() -> None:
    assert os.environ["INHERITED"] == "yes"


@pytest.mark.simdist(env={"GIVEN": "by the marker"})
def test_passes_with_what_the_marker_put_into_the_environment() -> None:
    assert os.environ["GIVEN"] == "by the marker"


def test_passes_with_warnings_that_are_expected() -> None:
    with pytest.warns(UserWarning, match="mine"):  # noqa: PT031
        dist.barrier()  # all ranks are inside their blocks at once
        warnings.warn("mine", stacklevel=1)
        dist.barrier()


@pytest.mark.filterwarnings("error")
def test_passes_with_warnings_as_errors() -> None:
    with pytest.raises(UserWarning):
        warnings.warn("bad", stacklevel=1)


def test_passes_with_filters_of_its_own(rank: int) -> None:
    warnings.simplefilter("error" if rank == 1 else "ignore")
    dist.barrier()
    if rank == 1:
        with pytest.raises(UserWarning):
            warnings.warn("bad", stacklevel=1)
    else:
        warnings.warn("bad", stacklevel=1)


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 2)


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_passes_with_a_model_of_its_own(rank: int, model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    assert optimizer.param_groups[0]["params"][0] is model.weight
    with torch.no_grad():
        model.weight.fill_(rank)
    dist.barrier()
    assert model.weight[0, 0].item() == rank


@pytest.fixture
def seen() -> list[int]:
    return []


def test_passes_with_one_list_for_all(rank: int, seen: list[int]) -> None:
    seen.append(rank)
    dist.barrier()
    assert sorted(seen) == [0, 1, 2]


class TestClass:
    limit = 3

    def setup_method(self) -> None:
        self.tensor = torch.zeros(1)
        self.where = "set up"

    def teardown_method(self) -> None:
        assert self.where == "set up"  # what ranks set is theirs

    def test_passes_with_attributes_of_its_own(self, rank: int) -> None:
        self.where = f"rank {rank}"
        self.tensor += rank
        dist.barrier()
        assert (self.where, self.tensor.item(), self.limit) == (f"rank {rank}", rank, 3)

    @staticmethod
    def test_passes_without_self(rank: int) -> None:
        assert dist.get_rank() == rank


def test_passes_where_a_fixture_is_asked_for_on_a_rank(request: pytest.FixtureRequest) -> None:
    dist.barrier()
    assert isinstance(request.getfixturevalue("model"), nn.Module)


@pytest.mark.simdist(faults=[Crash(rank=1, op="all_reduce", when="during")])
def test_passes_because_the_crash_was_asked_for() -> None:
    with pytest.raises(RuntimeError, match="Connection"):
        dist.all_reduce(torch.ones(1))


@pytest.mark.simdist(faults=[Hang(rank=0, at_step=1)], timeout="1s")
def test_passes_because_the_hang_was_asked_for(rank: int) -> None:
    simdist.step(1)
    with pytest.raises(RuntimeError, match="Timed out"):
        dist.barrier()


@pytest.mark.simdist(faults=lambda seed: [Crash(rank=seed, op="barrier")], seeds=[1, 2])
def test_passes_with_faults_made_from_the_seed(rank: int, simdist_seed: int) -> None:
    with pytest.raises(RuntimeError):
        dist.barrier()
    assert rank != simdist_seed


@pytest.mark.simdist(faults=[Crash(rank=0, at_step=1)], max_restarts=1)
def test_passes_after_a_restart() -> None:
    for step in range(3):
        simdist.step(step)
        dist.barrier()
    assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"


@pytest.mark.simdist(world_size=2, backend="nccl")
def test_passes_over_nccl_on_a_device_for_each_rank(rank: int) -> None:
    tensor = torch.full((1,), float(rank), device="cuda")
    dist.all_reduce(tensor)
    assert tensor.device.index == rank
    assert tensor.item() == 1


@pytest.mark.simdist(cluster=lambda size: simdist.cluster.build(size, hosts=size))
def test_passes_on_a_cluster() -> None:
    assert os.environ["LOCAL_RANK"] == "0"


@pytest.mark.simdist(faults=[Crash(rank=0, op="all_reduce", nth=5)])
def test_fails_because_the_fault_never_struck() -> None:
    dist.barrier()


def test_skipped_on_every_rank(rank: int) -> None:
    dist.barrier()
    pytest.skip("not today")


def test_skipped_without_a_module() -> None:
    pytest.importorskip("no_such_module")


@pytest.mark.skip(reason="never")
def test_skipped_by_a_marker() -> None:
    raise AssertionError


def test_fails_where_only_some_skip(rank: int) -> None:
    if rank == 1:
        pytest.skip("nothing to do")


@pytest.mark.xfail(raises=AssertionError, strict=True)
def test_xfail_by_a_marker(rank: int) -> None:
    assert rank != 1


def test_xfail_in_the_body(rank: int) -> None:
    if rank == 2:
        pytest.xfail("known")
    dist.barrier()


@pytest.mark.xfail(strict=False)
def test_xpass_by_a_marker() -> None:
    dist.barrier()


def test_fails_with_an_exit_code(rank: int) -> None:
    if rank == 1:
        sys.exit(3)


def test_fails_with_pytests_own_words() -> None:
    pytest.fail("in my own words", pytrace=False)


async def test_fails_because_it_is_async() -> None:
    dist.barrier()


def test_fails_because_the_group_is_there() -> None:
    dist.init_process_group("gloo")


@pytest.fixture
def early(rank: int) -> int:
    return rank + 1


def test_error_where_a_fixture_asks_for_the_rank(early: int) -> None:
    raise AssertionError(early)


def test_passes_with_a_warning_that_it_returned_something() -> int:
    return 5


def decorated(test: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return test(*args, **kwargs)

    return wrapper


@decorated
def test_passes_under_a_decorator(rank: int, tmp_path: Path) -> None:
    assert dist.get_rank() == rank
    assert tmp_path.is_dir()
