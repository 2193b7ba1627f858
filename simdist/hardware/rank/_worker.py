"""A rank of a real run: it runs the user's function under a recorder, and reports how it ended.

The supervisor runs it as `python -m simdist.hardware.rank._worker JOB FD SUPERVISOR`, with its process id; torchrun's
environment is set already. Besides the workload it imports only torch, the standard library and simdist's plain data
types.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import signal
import sys
import traceback
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdist.hardware._board import BoardClient
from simdist.hardware._flight import save_record, watchdog_environment
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal
from simdist.hardware._lifeline import die_with
from simdist.hardware.links._namespaces import enter
from simdist.records import ended, started
from simdist.values import GENERATOR_WORDS, generator_words

if TYPE_CHECKING:
    from simdist.hardware.rank._strikes import Strikes

__all__ = ["main"]

_READY_S = 120.0  # until all ranks have imported their modules


def main(job_path: str, orders: int, supervisor: int) -> None:
    """Call the workload as this process's rank."""
    die_with(supervisor, signal.SIGKILL)
    job = Job.load(job_path)
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    os.environ.update({**watchdog_environment(job, life), **job.env})
    board = BoardClient(job.board, job.key)  # before this process leaves the host's network
    listener = BoardClient(job.board, job.key) if any(fault.after for fault in job.faults) else None
    if job.networks:
        enter(job.networks[rank])
    journal = Journal(Path(job.out), rank, life)
    sys.argv[:] = sys.argv[:1]

    function, strikes = _prepared(job, journal, (board, listener), rank, life, orders)
    began = board.call("begin", life, rank, _READY_S)
    if began is None:
        raise SystemExit("some rank of this life never got as far as its workload")
    journal.origin_ns = began[0]
    journal.note("origin", began[0])
    journal.record(started, life, os.getpid(), os.environ.get("GROUP_RANK", "0"))
    strikes.arm()
    code = _call(function, job, journal, rank, life)
    os.write(orders, f"exit {code}\n".encode())
    sys.exit(code)


def _prepared(
    job: Job, journal: Journal, boards: tuple[BoardClient, BoardClient | None], rank: int, life: int, orders: int
) -> tuple[Callable[..., object], Strikes]:
    """Import everything, and install the recorder before the workload can take names from torch."""
    import torch

    import simdist
    from simdist.hardware._device import use_device
    from simdist.hardware.links._loopback import serve_on_loopback
    from simdist.hardware.rank._recorder import Recorder
    from simdist.hardware.rank._scaling import scale_time
    from simdist.hardware.rank._strikes import Strikes

    torch.set_num_threads(1)  # intra-op, as torchrun sets it
    _seed_generators(job.seed, rank, life)
    strikes = Strikes(job, journal, boards[0], rank, life, orders, boards[1])
    recorder = Recorder(journal, strikes)
    serve_on_loopback("torch.distributed.rendezvous")  # with restarts, rank 0 serves the store itself
    scale_time(job.time_scale)
    use_device(job)
    # Set on the package, so that `simdist.step` and `from simdist import step` find them.
    simdist.step = strikes.on_step
    simdist.point = strikes.on_point
    sys.path.insert(0, job.folder)
    module, _, name = job.target.partition(":")
    function = getattr(importlib.import_module(module), name)
    if job.record:
        recorder.install()
    return function, strikes


def _seed_generators(seed: int, rank: int, life: int) -> None:
    """Start Python's, numpy's and torch's generators in the state of the simulated rank, instead of a random one."""
    import torch

    python, legacy, of_torch = generator_words(seed, rank, life)
    random.setstate((random.Random.VERSION, (*array("I", python), GENERATOR_WORDS), None))
    torch.manual_seed(int.from_bytes(of_torch, "little"))
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.set_state(("MT19937", np.frombuffer(legacy, dtype=np.uint32), GENERATOR_WORDS, 0, 0.0))


def _call(function: Callable[..., object], job: Job, journal: Journal, rank: int, life: int) -> int:
    status, content = "returned", None
    code: Any = 0
    try:
        content = function(*job.args, **job.kwargs)
    except SystemExit as leaving:
        status, code = "exited", leaving.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        code = (code or 0) & 0xFF
    except BaseException as error:
        status, code, content = "raised", 1, error
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace.tb_next if trace is not None else None)
    (Path(job.out) / f"rank{rank}-life{life}.pickle").write_bytes(_pickled(status, content))
    journal.record(ended, status, code, life)
    save_record(job, rank, life)
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


def _pickled(status: str, content: object) -> bytes:
    """Return the pickled value, or exception with the names of its class and bases, in case it can't be unpickled."""
    names = [base.__name__ for base in type(content).__mro__]
    try:
        pickle.loads(data := pickle.dumps(content))
    except Exception:  # a user's class may raise anything
        data = b""
    return pickle.dumps((status, names, str(content) if status == "raised" else repr(content), data))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
