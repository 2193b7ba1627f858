"""Checkpoints of widely used libraries, on a disk that loses power; each is swept in part."""

from __future__ import annotations

import json
import logging
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import simdist
from simdist.cluster import make
from simdist.faults import Crash, HostCrash
from simdist.sweeps import SweepReport

dcp: Any = checkpoint


def _named(path: Path) -> int:
    return int(path.name[4:])


def _sync(folder: str | Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def _swept(program: Any, *, world_size: int = 2, **settings: Any) -> SweepReport:
    return simdist.sweep(
        program,
        world_size=world_size,
        cluster=make(world_size, hosts=2),
        max_steps_lost=1,
        outcomes=2,
        **settings,
    )


def _reported(report: SweepReport) -> str:
    assert report.wrong == ()
    return "\n".join(failure.account for failure in report.failures)


def by_safetensors(folder: str, *, sync: bool = True) -> float:
    """Train two steps."""
    from safetensors.torch import load_file, save_file

    dist.init_process_group("gloo")
    path = Path(folder) / "model.safetensors"
    state = load_file(path) if path.exists() else {"w": torch.zeros(64), "step": torch.tensor(0)}
    weights = state["w"]
    for step in range(int(state["step"]), 2):
        simdist.step(step)
        weights = weights + 1
        dist.all_reduce(weights.clone())
        if dist.get_rank() == 0:
            new = path.with_suffix(".new") if sync else path
            save_file({"w": weights, "step": torch.tensor(step + 1)}, new)
            if sync:
                with new.open("rb+") as file:
                    os.fsync(file.fileno())
                new.replace(path)
                _sync(folder)
        dist.barrier()
    return float(weights.sum())


def test_safetensors_does_not_sync() -> None:
    pytest.importorskip("safetensors", reason="safetensors is in the extra `programs`")

    reported = _reported(_swept(by_safetensors, kwargs={"sync": False}, strikes=["all"]))

    assert "model.safetensors is empty, of 384 bytes; rank 0 raised SafetensorError" in reported


def test_safetensors_under_a_name_that_comes_last_survives() -> None:
    pytest.importorskip("safetensors", reason="safetensors is in the extra `programs`")

    report = _swept(by_safetensors, limit=30)

    assert _reported(report) == ""
    assert report.unseen == ("model.new",)


def by_save_pretrained(folder: str) -> float:
    """Train two steps."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    path = Path(folder) / "model"
    first = 0
    if (path / "step.json").exists():
        model: Any = GPT2LMHeadModel.from_pretrained(path)
        first = json.loads((path / "step.json").read_text())
    else:
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8))
    for step in range(first, 2):
        simdist.step(step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
        dist.barrier()
        if dist.get_rank() == 0:
            model.save_pretrained(path)
            (path / "step.json").write_text(json.dumps(step + 1))
        dist.barrier()
    return float(sum(parameter.detach().double().sum() for parameter in model.parameters()))


def test_save_pretrained_empties_the_old_config_first() -> None:
    pytest.importorskip("transformers", reason="transformers is in the extra `programs`")

    report = _swept(by_save_pretrained, only=[Crash(rank=0, op="storage", nth=9)], strikes=["rank"])

    assert "rank 0 died before write of model/config.json" in _reported(report)
    assert "is not a valid JSON file" in _reported(report)


def by_accelerate(folder: str) -> list[float]:
    """Train two steps."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model: Any = nn.Linear(4, 4)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    done = sorted(Path(folder).glob("step*"), key=_named)
    if done:
        accelerator.load_state(str(done[-1]))
    for step in range(_named(done[-1]) + 1 if done else 0, 2):
        simdist.step(step)
        accelerator.backward(model(torch.full((2, 4), float(step + 1))).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state(str(Path(folder) / f"step{step}"))
        accelerator.wait_for_everyone()
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def test_a_folder_of_accelerate_s_is_there_before_it_is_whole() -> None:
    pytest.importorskip("accelerate", reason="accelerate is in the extra `programs`")

    crash = Crash(rank=0, op="storage", nth=3, when="during")

    reported = _reported(_swept(by_accelerate, only=[crash], strikes=["rank"], isolate=True))

    assert "rank 0 died during write of step0/optimizer.bin" in reported
    assert "rank 0 raised RuntimeError: PytorchStreamReader failed" in reported


def by_fabric(folder: str) -> list[float]:
    """Train two steps."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    model: Any = nn.Linear(4, 4)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    path = Path(folder) / "last.ckpt"
    state = {"model": model, "optimizer": optimizer, "step": 0}
    if path.exists():
        fabric.load(path, state)
    fabric.barrier()
    for step in range(state["step"], 2):
        simdist.step(step)
        fabric.backward(model(torch.full((2, 4), float(step + 1))).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        state["step"] = step + 1
        fabric.save(path, state)
        fabric.barrier()
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def test_fabric_empties_the_old_checkpoint_first() -> None:
    pytest.importorskip("lightning", reason="lightning is in the extra `programs`")

    reported = _reported(_swept(by_fabric, only=[Crash(rank=0, op="storage", nth=4)], strikes=["rank"]))

    assert "rank 0 died before write of last.ckpt" in reported
    assert "in step 1; rank 0 raised EOFError" in reported


def by_lightning(folder: str) -> list[float]:
    """Train three epochs of one step with ModelCheckpoint, beginning from `last.ckpt`."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Regression(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            simdist.step(self.global_step)
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
    keeps = ModelCheckpoint(Path(folder) / "kept", save_last=True, save_on_train_epoch_end=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=3,
        default_root_dir=folder,
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[keeps],
    )
    model = Regression()
    last = Path(folder) / "kept" / "last.ckpt"
    trainer.fit(model, DataLoader(data, batch_size=4), ckpt_path=last if last.exists() else None)
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


@pytest.mark.real
def test_model_checkpoint_of_lightning_empties_the_last_one_unsynced() -> None:
    pytest.importorskip("lightning", reason="lightning is in the extra `programs`")

    report = _swept(by_lightning)

    reported = _reported(report)
    assert len(report.cases) > 200
    assert {failure.problems[0][0] for failure in report.failures} == {"outcomes", "max_steps_lost"}
    assert "rank 0 died before write of kept/last.ckpt" in reported
    assert "rank 0 raised EOFError" in reported
    assert "kept/last.ckpt is not there; 2 steps were lost to a restart, at most 1" in reported


def by_hsdp(folder: str, *, steps: int = 2) -> float:
    """Train on a mesh of two by two; DCP saves to a folder that is renamed when all of it is on the disk."""
    warnings.simplefilter("ignore")  # DCP's warning that it overwrites
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = nn.Linear(8, 8, bias=False)
    fully_shard(net, mesh=mesh)
    weight: Any = net.weight
    done = sorted(Path(folder).glob("step*"), key=_named)
    state = {"w": weight, "step": 0}
    if done:
        dcp.load(state, checkpoint_id=done[-1])
    dist.barrier()
    for step in range(state["step"], steps):
        simdist.step(step)
        net(torch.full((4, 8), float(step + 1))).square().mean().backward()
        with torch.no_grad():
            weight -= 0.01 * weight.grad
        net.zero_grad()
        new = Path(folder) / f"new{step}"
        if dist.get_rank() == 0:
            shutil.rmtree(new, ignore_errors=True)
        dist.barrier()
        dcp.save({"w": weight, "step": step + 1}, checkpoint_id=new)
        dist.barrier()
        if dist.get_rank() == 0:
            os.sync()
            new.rename(Path(folder) / f"step{step}")
            _sync(folder)
        dist.barrier()
    return round(float(weight.full_tensor().double().sum()), 4)


# The writer of a rank that died is collected after its file, and Python 3.13 reports that its flush fails.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <torch.distributed.checkpoint.filesystem")
def test_hsdp_comes_back_on_its_mesh() -> None:
    report = _swept(by_hsdp, world_size=4, strikes=["all", "host"], limit=4)

    assert _reported(report) == ""
    assert {case.strike for case in report.cases} == {"all", "host"}


@pytest.mark.filterwarnings("ignore:Exception ignored in. <torch.distributed.checkpoint.filesystem")
def test_four_ranks_go_on_as_two_from_the_same_shards() -> None:
    report = _swept(by_hsdp, world_size=4, strikes=["lost"], limit=2)

    assert _reported(report) == ""
    assert any(isinstance(case.fault, HostCrash) and case.fault.down_ns is None for case in report.cases)
