"""Ways to keep a checkpoint, most of them wrong: what a crash at the wrong moment makes of each.

| way | what is wrong | way that is right |
|---|---|---|
| in_place | the file is written under its own name | safe |
| no_fsync | renamed before its bytes are on the disk | safe |
| no_folder_fsync | the folder is not synced after the rename | safe |
| no_optimizer, no_scaler, no_generator, no_sampler | some of the state is not saved | safe |
| step_apart | the step has a file of its own | safe |
| removed_first | the old file goes before the new one is there | rotated |
| latest_first | `latest` names a checkpoint before all ranks have saved theirs | shards |
| live_tensors | a thread saves tensors that the next step changes | copied |
| trusts_local | what is on the host's own disk is taken, no matter who has written it | own_shards |
"""

from __future__ import annotations

import copy
import os
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import simdist

__all__ = ["BROKEN", "train"]

BROKEN = {
    "in_place": "safe",
    "no_fsync": "safe",
    "no_folder_fsync": "safe",
    "no_optimizer": "safe",
    "no_scaler": "safe",
    "no_generator": "safe",
    "no_sampler": "safe",
    "step_apart": "safe",
    "removed_first": "rotated",
    "latest_first": "shards",
    "live_tensors": "copied",
    "trusts_local": "own_shards",
}
"""The ways that are wrong, each with its repaired twin."""

State = dict[str, Any]
_LOCAL = ("trusts_local", "own_shards")
_SAMPLES = 3
_SIZE = 4096  # so that each tensor is a write of its own


class Training:
    """A model of a few numbers with all that a real training has to keep."""

    def __init__(self) -> None:
        self.weights = torch.zeros(_SIZE)
        self.momentum = torch.zeros(_SIZE)
        self.scale = 8.0  # of a gradient scaler
        self.generator = torch.Generator().manual_seed(1)  # of dropout
        self.position = 0  # of the sampler, in its epoch
        self.steps = 0
        self.seen = 0.0  # the sum of this rank's samples

    def step(self) -> None:
        """One step of SGD with momentum, dropout, a scaled loss, and samples in turn."""
        kept = torch.rand(_SIZE, generator=self.generator) < 0.9
        sample = float(self.position + dist.get_rank())
        gradient = (self.weights - sample) * kept
        gradient = (gradient * self.scale).round() / self.scale
        dist.all_reduce(gradient)
        self.momentum.mul_(0.9).add_(gradient)
        self.weights.sub_(0.1 * self.momentum)
        self.scale *= 2
        self.seen += sample
        self.position = (self.position + 1) % _SAMPLES
        self.steps += 1

    def state(self) -> State:
        """All that a checkpoint has to hold; the tensors are the live ones."""
        return {
            "model": self.weights,
            "optimizer": self.momentum,
            "scaler": self.scale,
            "generator": self.generator.get_state(),
            "sampler": self.position,
            "step": self.steps,
            "seen": self.seen,
        }

    def load(self, state: State) -> None:
        """Go on from there; what the checkpoint lacks stays as in a new training."""
        self.weights.copy_(state["model"])
        self.momentum.copy_(state.get("optimizer", self.momentum))
        self.scale = state.get("scaler", self.scale)
        self.generator.set_state(state.get("generator", self.generator.get_state()))
        self.position = state.get("sampler", self.position)
        self.steps = state["step"]
        self.seen = state["seen"]


def train(folder: str, way: str = "safe", steps: int = 4) -> dict[str, Any]:
    """Train for `steps`, with a checkpoint after each, or from the last checkpoint to there."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    training = Training()
    saver = Saver(Path(folder), way)
    state = saver.newest()
    if state is not None:
        training.load(state)
    dist.barrier()
    while training.steps < steps:
        simdist.step(training.steps)
        training.step()
        saver.save(training.state())
        dist.barrier()  # nobody runs ahead of a checkpoint that is not there yet
    saver.wait()
    dist.destroy_process_group()
    found = {"weights": training.weights, "momentum": training.momentum}
    return {**found, "seen": training.seen} if way in _LOCAL else found  # other ways keep what rank 0 has seen


class Saver:
    """Saves and finds checkpoints in one of the ways."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder = folder
        self.way = way
        self.thread: threading.Thread | None = None

    def save(self, state: State) -> None:
        """Save a checkpoint; in the threaded ways, begin to."""
        forgotten = self.way.removeprefix("no_")
        state = {key: value for key, value in state.items() if key != forgotten}
        if self.way in _LOCAL:
            self._save_local(state)
        elif self.way in ("latest_first", "shards"):
            self._save_shards(state)
        elif dist.get_rank() == 0:
            self._save_whole(state)

    def _save_whole(self, state: State) -> None:
        path = self.folder / "last.pt"
        if self.way == "in_place":
            torch.save(state, path)
        elif self.way == "step_apart":
            step = state.pop("step")
            _write(path, state)
            _write(self.folder / "step.pt", step)
        elif self.way == "removed_first":
            path.unlink(missing_ok=True)
            _write(path, state)
        elif self.way == "rotated":
            _write(self.folder / f"step{state['step']}.pt", state)
            (self.folder / f"step{state['step'] - 1}.pt").unlink(missing_ok=True)
        elif self.way in ("live_tensors", "copied"):
            self.wait()
            held = state if self.way == "live_tensors" else copy.deepcopy(state)
            self.thread = threading.Thread(target=_write, args=(path, held))
            self.thread.start()
        else:
            _write(path, state, sync=self.way != "no_fsync", sync_folder=self.way != "no_folder_fsync")

    def _save_shards(self, state: State) -> None:
        step = state["step"]
        if self.way == "latest_first" and dist.get_rank() == 0:
            _write(self.folder / "latest.pt", step)
        _write(self.folder / f"step{step}-rank{dist.get_rank()}.pt", state)
        dist.barrier()
        if self.way == "shards" and dist.get_rank() == 0:
            _write(self.folder / "latest.pt", step)

    def _save_local(self, state: State) -> None:
        """To the host's own disk, which is fast; in the way that is right, to the shared one as well."""
        step = state["step"]
        _write(self._local(step), state)
        if self.way == "own_shards":
            _write(self.folder / f"step{step}-rank{dist.get_rank()}.pt", state)
        dist.barrier()
        if dist.get_rank() == 0:
            _write(self.folder / "latest.pt", step)

    def _local(self, step: int) -> Path:
        whose = f"-rank{dist.get_rank()}" if self.way == "own_shards" else ""
        return Path(os.environ["SIMDIST_LOCAL_DISK"]) / f"step{step}{whose}.pt"

    def wait(self) -> None:
        """Until the last checkpoint is written."""
        if self.thread is not None:
            self.thread.join()

    def newest(self) -> State | None:
        """The last checkpoint, or None if there is none yet."""
        path = self.folder / "last.pt"
        if self.way in (*_LOCAL, "latest_first", "shards"):
            latest = self.folder / "latest.pt"
            if latest.exists():
                if self.way in _LOCAL and self._local(torch.load(latest)).exists():
                    return _read(self._local(torch.load(latest)))
                path = self.folder / f"step{torch.load(latest)}-rank{dist.get_rank()}.pt"
                return _read(path)
        elif self.way == "rotated":
            path = max(self.folder.glob("step*.pt"), default=path)
        if not path.exists():
            return None
        state = _read(path)
        if self.way == "step_apart":
            apart = self.folder / "step.pt"
            state["step"] = torch.load(apart) if apart.exists() else 0
        return state


def _read(path: Path) -> State:
    state: State = torch.load(path)
    return state


def _write(path: Path, content: Any, *, sync: bool = True, sync_folder: bool = True) -> None:
    """Write beside the file, bring it to the disk, and only then give it its name."""
    beside = path.with_suffix(f".tmp{dist.get_rank()}")
    with beside.open("wb") as file:
        torch.save(content, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)
    if sync_folder:
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
