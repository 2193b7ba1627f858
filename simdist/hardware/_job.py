"""The job of a real run, which its processes carry out: plain data, pickled into the run's folder."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from simdist.faults import Fault, StoreFault

__all__ = ["Job", "Wait"]

Wait = Literal["", "blocking", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay, as its processes see it.

    `target` is "module:function", looked for in `folder` first, called with `args` and `kwargs`. Times of faults and
    timeouts are multiplied by `time_scale`. `board` is where the `Board` listens and `key` its password. A rank that
    has not ended `limit_s` seconds after the start counts as hung. `wait` is NCCL's mode of waiting. With link faults,
    `networks` has for each rank the path of an open handle of its network namespace. Without `record` no operation is
    recorded, which would cost time.
    """

    target: str
    folder: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    world_size: int
    backend: str
    seed: int
    max_restarts: int
    time_scale: float
    limit_s: float
    out: str
    board: tuple[str, int]
    key: bytes
    faults: tuple[Fault, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    wait: Wait = ""
    record: bool = True
    networks: tuple[str, ...] = ()

    @property
    def shares_store(self) -> bool:
        """True if torchrun serves the store that ranks use; else rank 0 serves one, a new one in each life.

        Torchrun's store outlives a restart, so that ranks of the next life may look for the others where those of the
        last one listened ("connectFullMesh ... Connection refused").
        """
        stale = any(isinstance(fault, StoreFault) and fault.keeps_store for fault in self.faults)
        return stale or not self.max_restarts

    def scaled_s(self, time_ns: int) -> float:
        """Return a virtual duration in seconds of this run."""
        return time_ns / 1e9 * self.time_scale

    def save(self, path: Path) -> None:
        """Write the job for the run's processes."""
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: str) -> Job:
        """Read the job in one of them."""
        job = pickle.loads(Path(path).read_bytes())
        assert isinstance(job, Job)
        return job
