"""Training that saves where it is when the launcher sends SIGTERM, and goes on from there in its next life."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEP_S = 1.0


def main(folder: str, steps: int = 10) -> dict[str, Any]:
    """Count steps; process 1 fails once, and process 0 saves when it is asked to end."""
    dist.init_process_group("gloo")
    checkpoint, rank = Path(folder) / "checkpoint.pt", dist.get_rank()
    state = {"step": 0}
    if checkpoint.exists():
        state = torch.load(checkpoint)
    first = state["step"]

    def save_and_leave(number: int, frame: object) -> None:
        if rank == 0:
            torch.save(state, checkpoint)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, save_and_leave)
    dist.barrier()  # nobody fails before all can save
    for step in range(first, steps):
        time.sleep(STEP_S)
        if rank == 1 and step == 7 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("this process fails")
        state["step"] = step + 1
        if rank == 0 and step == 4 and first == 0:
            time.sleep(100 * STEP_S)  # the signal arrives here, three steps later
    dist.destroy_process_group()
    return {"first": first, "steps": state["step"]}
