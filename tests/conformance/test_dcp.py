"""Distributed checkpoints on Gloo: which rank writes what, and the values after loading in another layout.

Covers PyTorch's tests of torch.distributed.checkpoint (test_file_system_checkpoint.py, test_dtensor_checkpoint.py,
test_dtensor_resharding.py, test_planner.py, test_dedup_tensors.py, e2e/test_e2e_save_and_load.py, test_state_dict.py)
with bodies of our own.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch import nn
from torch.distributed import tensor as _tensors
from torch.distributed.checkpoint import state_dict as torch_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.conformance.arms import Bodies, on_both_arms

dist: Any = torch.distributed
tensors: Any = _tensors  # its stubs leave out what a DTensor has
distribute_tensor = tensors.distribute_tensor
dcp: Any = torch.distributed.checkpoint
states: Any = torch_state_dict


def counted(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 7


class CheckpointBodies(Bodies):
    """Bodies with a folder that all ranks see."""

    __test__ = False

    def begin(self, *shape: int) -> Any:
        """Make the default group, an empty folder, and a mesh."""
        self.init()
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            Path(self.folder).mkdir()
        dist.barrier()
        return init_device_mesh("cpu", shape or (self.world_size,))

    def end(self) -> None:
        """Remove the folder once no rank reads it."""
        dist.barrier()
        if self.rank == 0:
            shutil.rmtree(self.folder)

    @property
    def folder(self) -> str:
        return f"{self.file_name}-checkpoint"

    def metadata(self) -> Any:
        return pickle.loads((Path(self.folder) / ".metadata").read_bytes())

    def files(self) -> list[str]:
        return sorted(path.name for path in Path(self.folder).iterdir())


@on_both_arms
class TestFiles(CheckpointBodies):
    ranks = 4

    def test_each_rank_writes_its_shard_and_the_first_the_rest(self) -> None:
        mesh = self.begin()
        state = {
            "sharded": distribute_tensor(counted(8, 4), mesh, [Shard(0)]),
            "copied": distribute_tensor(counted(3), mesh, [Replicate()]),
            "plain": torch.tensor([1.0, 2.0]),
            "step": 7,
        }
        dcp.save(state, checkpoint_id=self.folder)
        found = self.metadata()

        self.assertEqual(self.files(), [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))])
        kept = found.state_dict_metadata["sharded"]
        self.assertEqual(kept.size, torch.Size([8, 4]))
        self.assertEqual([list(chunk.offsets) for chunk in kept.chunks], [[0, 0], [2, 0], [4, 0], [6, 0]])
        places = {
            (index.fqn, tuple(index.offset or ())): info.relative_path for index, info in found.storage_data.items()
        }
        self.assertEqual(
            [places["sharded", (2 * rank, 0)] for rank in range(4)], [f"__{rank}_0.distcp" for rank in range(4)]
        )
        self.assertEqual(sum(name == "copied" for name, _ in places), 1)
        self.end()

    def test_what_is_on_every_rank_is_written_once(self) -> None:
        self.begin()
        state = {f"weight {number}": counted(64, 64) for number in range(8)}
        dcp.save(state, checkpoint_id=self.folder)
        found = self.metadata()
        size = sum((Path(self.folder) / name).stat().st_size for name in self.files())

        self.assertEqual(len(found.storage_data), 8)
        self.assertLess(size, 2 * 8 * 64 * 64 * 4)
        by_rank = sorted(info.relative_path for info in found.storage_data.values())
        self.assertEqual(by_rank, [f"__{rank}_0.distcp" for rank in range(4) for _ in range(2)])  # evenly distributed
        self.end()

    def test_or_by_the_first_rank_that_has_it(self) -> None:
        self.begin()
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        dcp.save({f"weight {number}": counted(8, 8) for number in range(8)}, checkpoint_id=self.folder, planner=planner)

        self.assertEqual({info.relative_path for info in self.metadata().storage_data.values()}, {"__0_0.distcp"})
        self.end()

    def test_two_threads_write_two_files_of_each_rank(self) -> None:
        mesh = self.begin()
        shards = {f"weight {n}": distribute_tensor(counted(8, 16) + n, mesh, [Shard(0)]) for n in range(6)}
        writer = dcp.FileSystemWriter(self.folder, thread_count=2, single_file_per_rank=False)
        dcp.save(shards, storage_writer=writer)
        empty = {name: tensors.zeros(8, 16, device_mesh=mesh, placements=[Shard(0)]) for name in shards}
        dcp.load(empty, checkpoint_id=self.folder)

        self.assertEqual(len(self.files()), 1 + 4 * 6)  # a file for each tensor and rank
        for number, tensor in enumerate(empty.values()):
            self.assertEqual(tensor.full_tensor(), counted(8, 16) + number)
        self.end()

    def test_threads_share_what_goes_into_one_file_of_each(self) -> None:
        self.begin()
        mine = {f"rank {self.rank} weight {n}": counted(5, 5) + n for n in range(7)}
        writer = dcp.FileSystemWriter(self.folder, thread_count=2)
        dcp.save(mine, storage_writer=writer)
        found = {name: torch.zeros(5, 5) for name in mine}
        dcp.load(found, checkpoint_id=self.folder)

        self.assertEqual(
            self.files(), [".metadata", *(f"__{rank}_{part}.distcp" for rank in range(4) for part in (0, 1))]
        )
        self.assertEqual(found, mine)
        self.end()

    def test_a_folder_is_written_over_or_not(self) -> None:
        self.begin()
        dcp.save({"step": torch.tensor(1)}, checkpoint_id=self.folder)
        dcp.save({"step": torch.tensor(2)}, checkpoint_id=self.folder)
        found = {"step": torch.tensor(0)}
        dcp.load(found, checkpoint_id=self.folder)
        self.assertEqual(found["step"].item(), 2)
        with self.assertRaises(dcp.api.CheckpointException):
            dcp.save({"step": torch.tensor(3)}, storage_writer=dcp.FileSystemWriter(self.folder, overwrite=False))
        self.end()


@on_both_arms
class TestLayouts(CheckpointBodies):
    ranks = 4

    def test_every_layout_is_read_into_every_other(self) -> None:
        mesh = self.begin()
        for shape, layouts in (((9, 5), (Shard(0), Shard(1), Replicate())), ((8, 6), (Shard(0), Replicate()))):
            whole = counted(*shape)
            for before in layouts:
                dcp.save({"weight": distribute_tensor(whole, mesh, [before])}, checkpoint_id=self.folder)
                for after in layouts:
                    found = {"weight": distribute_tensor(torch.zeros(shape), mesh, [after])}
                    dcp.load(found, checkpoint_id=self.folder)

                    self.assertEqual(found["weight"].full_tensor(), whole)
        self.end()

    def test_from_one_mesh_to_another(self) -> None:
        line = self.begin()
        square = init_device_mesh("cpu", (2, 2))
        whole = counted(9, 5)
        layouts = [
            (line, [Shard(0)]),
            (square, [Shard(0), Shard(0)]),
            (square, [Shard(1), Replicate()]),
            (square, [Shard(0), Shard(1)]),
        ]
        for mesh, before in layouts:
            dcp.save({"weight": distribute_tensor(whole, mesh, before)}, checkpoint_id=self.folder)
            for other, after in layouts:
                found = {"weight": distribute_tensor(torch.zeros(9, 5), other, after)}
                dcp.load(found, checkpoint_id=self.folder)

                self.assertEqual(found["weight"].full_tensor(), whole)
        self.end()

    def test_four_ranks_save_and_two_load(self) -> None:
        mesh = self.begin()
        whole = counted(10, 4)
        dcp.save({"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 3}, checkpoint_id=self.folder)
        pair = dist.new_group([0, 1])
        if self.rank < 2:
            small = torch.distributed.device_mesh.DeviceMesh.from_group(pair, "cpu")
            found = {"weight": distribute_tensor(torch.zeros(10, 4), small, [Shard(0)]), "step": 0}
            dcp.load(found, checkpoint_id=self.folder, process_group=pair)
            assert isinstance(found["weight"], DTensor)

            self.assertEqual(found["weight"].to_local(), whole.chunk(2)[self.rank])
            self.assertEqual(found["step"], 3)
        self.end()

    def test_one_process_loads_what_four_saved(self) -> None:
        mesh = self.begin()
        whole = counted(9, 4)
        dcp.save(
            {"model": {"weight": distribute_tensor(whole, mesh, [Shard(0)])}, "step": 3}, checkpoint_id=self.folder
        )
        found = {"model": {"weight": torch.zeros(9, 4)}, "step": 0}
        dcp.load(found, checkpoint_id=self.folder, no_dist=True)
        self.assertEqual(found["model"], {"weight": whole})
        if self.rank == 0:
            from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

            dcp_to_torch_save(self.folder, f"{self.folder}/whole.pt")
            kept = torch.load(f"{self.folder}/whole.pt", weights_only=False)
            self.assertEqual(kept["model"]["weight"], whole)
            self.assertEqual(kept["step"], 3)
        self.end()


class Renaming(DefaultSavePlanner):
    """Writes values under other names."""

    def set_up_planner(self, state_dict: Any, *args: Any, **kwargs: Any) -> None:
        super().set_up_planner({f"saved.{name}": value for name, value in state_dict.items()}, *args, **kwargs)


class Halving(DefaultLoadPlanner):
    """Halves the values that it reads."""

    def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
        tensor.mul_(0.5)
        super().commit_tensor(read_item, tensor)


@on_both_arms
class TestPlanners(CheckpointBodies):
    ranks = 4

    def test_names_and_values_are_the_planner_s(self) -> None:
        mesh = self.begin()
        whole = counted(8, 2)
        dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=self.folder, planner=Renaming())
        found = {"saved.w": distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)])}
        dcp.load(found, checkpoint_id=self.folder, planner=Halving())

        self.assertEqual(list(self.metadata().state_dict_metadata), ["saved.w"])
        self.assertEqual(found["saved.w"].full_tensor(), whole / 2)
        self.end()

    def test_a_part_that_is_missing_is_reported_or_left_out(self) -> None:
        self.begin()
        dcp.save({"there": torch.ones(2)}, checkpoint_id=self.folder)
        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.load({"there": torch.zeros(2), "missing": torch.zeros(2)}, checkpoint_id=self.folder)
        self.assertIn("Missing key in checkpoint state_dict: missing", str(caught.exception))
        found = {"there": torch.zeros(2), "missing": torch.zeros(2)}
        dcp.load(found, checkpoint_id=self.folder, planner=DefaultLoadPlanner(allow_partial_load=True))

        self.assertEqual(found, {"there": torch.ones(2), "missing": torch.zeros(2)})
        self.end()

    def test_another_shape_is_refused(self) -> None:
        self.begin()
        dcp.save({"weight": torch.ones(4)}, checkpoint_id=self.folder)
        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.load({"weight": torch.zeros(5)}, checkpoint_id=self.folder)
        self.assertIn("Size mismatch between saved torch.Size([4]) and current: torch.Size([5])", str(caught.exception))
        self.end()

    def test_a_rank_that_fails_is_named_on_all(self) -> None:
        self.begin()

        class Failing(DefaultSavePlanner):
            def create_local_plan(planner) -> Any:  # `self` is the test
                if self.rank == 2:
                    raise ValueError("no plan")
                return super().create_local_plan()

        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.save({"weight": torch.ones(4)}, checkpoint_id=self.folder, planner=Failing())
        self.assertEqual(list(caught.exception.failures), [2])
        self.assertEqual(str(caught.exception.failures[2][0]), "no plan")
        dist.barrier()


@on_both_arms
class TestTraining(CheckpointBodies):
    ranks = 4

    def model(self, mesh: Any) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
        fully_shard(model, mesh=mesh)
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    def step(self, model: nn.Module, optimizer: Any, number: int) -> None:
        generator = torch.Generator().manual_seed(100 * number + self.rank)
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()
        optimizer.step()

    def weights(self, model: nn.Module) -> list[torch.Tensor]:
        return [each.full_tensor() if isinstance(each, DTensor) else each.detach() for each in model.parameters()]

    def test_fsdp_goes_on_where_it_was(self) -> None:
        mesh = self.begin()
        model, optimizer = self.model(mesh)
        self.step(model, optimizer, 0)
        weights, moments = states.get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=self.folder)
        self.step(model, optimizer, 1)

        other, again = self.model(mesh)
        weights, moments = states.get_state_dict(other, again)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=self.folder)
        states.set_state_dict(other, again, model_state_dict=weights, optim_state_dict=moments)
        self.step(other, again, 1)

        self.assertEqual(self.weights(other), self.weights(model))
        self.end()

    def test_ddp_saves_what_fsdp_loads(self) -> None:
        mesh = self.begin()
        torch.manual_seed(5)
        plain = DDP(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)))
        dcp.save({"model": states.get_model_state_dict(plain)}, checkpoint_id=self.folder)
        model, _ = self.model(mesh)
        found = {"model": states.get_model_state_dict(model)}
        dcp.load(found, checkpoint_id=self.folder)
        states.set_model_state_dict(model, found["model"])

        self.assertEqual(self.weights(model), self.weights(plain))
        self.end()

    def test_a_full_state_dict_is_whole_on_the_first_rank(self) -> None:
        mesh = self.begin()
        model, _ = self.model(mesh)
        options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
        found = states.get_model_state_dict(model, options=options)

        whole = self.weights(model)

        self.assertEqual(list(found.values()), whole if self.rank == 0 else [])
        self.end()

    def test_async_save_in_a_thread(self) -> None:
        mesh = self.begin()
        model, optimizer = self.model(mesh)
        beside = dist.new_group()  # the ranks train on meanwhile
        futures: list[Any] = []
        kept = []
        for number in range(2):
            self.step(model, optimizer, number)
            kept.append([each.clone() for each in self.weights(model)])
            if futures:
                futures[-1].result()
            weights = {"model": states.get_model_state_dict(model)}
            futures.append(dcp.async_save(weights, checkpoint_id=f"{self.folder}/{number}", process_group=beside))
        self.step(model, optimizer, 9)  # while the last checkpoint is written
        futures[-1].result()
        dist.barrier()
        for number, expected in enumerate(kept):
            other, _ = self.model(mesh)
            found = {"model": states.get_model_state_dict(other)}
            dcp.load(found, checkpoint_id=f"{self.folder}/{number}")
            self.assertEqual(self.weights(other), expected)
        self.end()

    def test_async_save_with_two_writers(self) -> None:
        mesh = self.begin()
        model, _ = self.model(mesh)
        weights: Any = {"model": states.get_model_state_dict(model)}
        dcp.async_save(weights, storage_writer=dcp.FileSystemWriter(self.folder, thread_count=2)).result()
        dist.barrier()
        found = {"model": {name: torch.zeros_like(value) for name, value in weights["model"].items()}}
        dcp.load(found, checkpoint_id=self.folder)
        for name, value in weights["model"].items():
            mine: Any = found["model"][name]
            self.assertEqual(mine.full_tensor(), value.full_tensor())
        self.end()
