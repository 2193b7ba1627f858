"""Questions that load torch or run a world: each has its own process, whose crash is an answer, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["ask", "main"]

_MARK = "simdist doctor: "
_LIMIT_S = 120


def ask(question: str) -> str:
    """Return why the subject of `question` does not work here, "" if it works; never raises and never hangs."""
    code = f"from simdist.cli._doctor_probes import main; main({question!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_LIMIT_S} s"
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return str(json.loads(line.removeprefix(_MARK)))
    if done.returncode < 0:
        return f"the process that tried it was ended by {_signal(-done.returncode)}"
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"the process that tried it ended with exit code {done.returncode}: {last}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(question: str) -> None:
    """Print the answer, in the process that `ask` starts."""
    try:
        answer = _QUESTIONS[question]()
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"\n{_MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)  # a regular exit of torch would take a second


def _total() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor.sum().item())


def _ranks() -> str:
    import simdist

    result = simdist.run(_total, world_size=2)
    result.raise_for_failure()
    values: Any = list(result.values)
    return "" if values == [8.0, 8.0] else f"an all_reduce of two ranks gave {values}, expected [8.0, 8.0]"


def _devices() -> str:
    from simdist.device import why_no_devices

    return why_no_devices()


def _inside() -> str:
    from simdist.inside import facts

    different = [(each, each.difference()) for each in facts()]
    return "; ".join(f"{each.name}: {said} (off: {each.feature})" for each, said in different if said)


def _crash() -> str:
    os.abort()


_QUESTIONS: dict[str, Callable[[], str]] = {"ranks": _ranks, "devices": _devices, "inside": _inside, "crash": _crash}
