"""Classes that modules register for `torch.load` on import stay registered, for all ranks and for later worlds."""

from __future__ import annotations

import io
import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values
from tests.warm import Interpreters

SAVING = """
    import io, sys
    import torch, torch.distributed as dist
    import simdist

    def saves():
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            torch.serialization.add_safe_globals([io.BytesIO])  # from here on it has types of its own
        dist.barrier()
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

        mesh = init_device_mesh("cpu", (2,))
        file = io.BytesIO()
        torch.save(distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]), file)
        file.seek(0)
        found = torch.load(file, weights_only=True).to_local().tolist()
        return found, io.BytesIO in torch.serialization.get_safe_globals()

    if __name__ == "__main__":
        for isolate in (False, True, True):
            print([rank.value or rank.exception for rank in simdist.run(saves, world_size=2, isolate=isolate).ranks])
        print(io.BytesIO in torch.serialization.get_safe_globals())
"""


def test_a_dtensor_can_be_loaded_in_every_world_and_on_every_rank(interpreters: Interpreters, tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(textwrap.dedent(SAVING))

    done = interpreters.run([sys.executable, str(tmp_path / "saves.py")])

    assert done.returncode == 0, done.stderr
    *worlds, left = done.stdout.splitlines()
    assert worlds == ["[([0.0, 1.0], False), ([2.0, 3.0], True)]"] * 3
    assert left == "False"


class Config:
    """A class that `torch.load` takes only if a program allows it."""


def test_ranks_may_load_a_type_for_different_whiles() -> None:
    def body() -> bool:
        dist.init_process_group("gloo")
        file = io.BytesIO()
        torch.save(Config(), file)
        file.seek(0)
        with torch.serialization.safe_globals([Config]):
            dist.barrier()
            if dist.get_rank() == 1:
                dist.barrier()  # the other rank has left by then
            torch.load(file)
        if dist.get_rank() == 0:
            dist.barrier()
        return Config in torch.serialization.get_safe_globals()

    assert values(body, 2) == [False, False]


def test_what_a_rank_itself_declares_safe_is_gone_with_its_world() -> None:
    def body() -> None:
        torch.serialization.add_safe_globals([io.BytesIO])

    before = set(torch.serialization.get_safe_globals())
    simdist.run(body, world_size=2).raise_for_failure()

    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("flag", [False, True], ids=["alone", "beside settings"])
def test_types_and_hooks_stay_those_of_the_rank_that_added_them(flag: bool) -> None:
    def body() -> tuple[list[bool], list[bool]]:
        dist.init_process_group("gloo")
        mine = type("Mine", (), {})

        def hook(*values: object) -> None:
            """A hook of this rank."""

        handle = modules.register_module_forward_hook(hook)
        torch.serialization.add_safe_globals([mine])
        if flag:
            torch.use_deterministic_algorithms(dist.get_rank() == 1, warn_only=True)
        for _ in range(3):  # other ranks run meanwhile
            dist.barrier()
        types = torch.serialization.get_safe_globals()
        found = [each is mine for each in types if getattr(each, "__name__", "") == "Mine"]
        hooks = [each is hook for each in modules._global_forward_hooks.values()]
        handle.remove()
        return found, hooks

    modules: Any = torch.nn.modules.module
    assert simdist.run(body, world_size=2, isolate=True).values == [([True], [True])] * 2


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")  # torch 2.14 says so each time
def unchecked() -> list[torch.Tensor]:
    """What waits for a check by `torch.load`; since torch 2.15 each thread has a list of its own."""
    utilities: Any = torch._utils
    shared: list[torch.Tensor] | None = getattr(utilities, "_sparse_tensors_to_validate", None)
    found: list[torch.Tensor] = utilities._get_sparse_tensors_to_validate() if shared is None else shared
    return found


@pytest.mark.filterwarnings(
    "ignore:Validating sparse tensor invariants:UserWarning"
)  # torch 2.15 says that it takes time
def test_sparse_tensors_are_checked_by_the_rank_that_loads_them() -> None:
    ahead = torch.sparse_coo_tensor(torch.tensor([[7]]), torch.ones(1), (2,), check_invariants=False)

    def load_sparse_tensors() -> tuple[int, list[float]]:
        dist.init_process_group("gloo")
        found = io.BytesIO()
        torch.save(torch.eye(2).to_sparse(), found)
        found.seek(0)
        if dist.get_rank() == 0:
            pickle.loads(pickle.dumps(ahead))  # no index is valid, but only `torch.load` checks them
        for rank in (1, 0):
            dist.barrier()
            if dist.get_rank() == rank:
                waiting = len(unchecked())
                with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]  # torch gives it no types
                    loaded = torch.load(found).to_dense().diag().tolist()
        return waiting, loaded

    first, second = simdist.run(load_sparse_tensors, world_size=2).ranks

    assert "size is inconsistent with indices" in str(first.exception)
    assert second.value == (0, [1.0, 1.0])
    assert unchecked() == []
