"""`StoreStale`: a restart finds the launcher's store as it was left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simdist.faults._fault import Machine, Problem, Surroundings
from simdist.faults._stage import Stage
from simdist.faults._store_fault import StoreFault

__all__ = ["StoreStale"]


class StoreStale(StoreFault):
    """A restart finds the launcher's store at its old port, with all keys that the life before left in it.

    Torchrun does so, of torch 2.13 and others, unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set
    (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py). Without this fault each life has a store of its own. A
    rank that reads a key before another rank has set it anew reads the value of an earlier life. The same holds for the
    keys of process groups: a rank that is early looks for the others where they listened before, and fails with
    "Connection refused".

    Example:
        >>> import os, simdist
        >>> import torch.distributed as dist
        >>> def work():
        ...     store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        ...     if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        ...         store.set("epoch", "7")
        ...         raise RuntimeError("once")
        ...     return store.check(["epoch"])
        >>> simdist.run(work, world_size=1, max_restarts=1).values
        [False]
        >>> simdist.run(work, world_size=1, max_restarts=1, faults=[StoreStale()]).values
        [True]
    """

    keeps_store = True

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every store fault, and a run without a restart."""
        yield from super().problems(world)
        if world.max_restarts == 0:
            yield "kind", "no restart finds the store; give max_restarts"

    def arm(self, stage: Stage) -> None:
        """Keep the store from now on."""
        stage.keep_store()

    def begins(self) -> str:
        """Describe the origin of the keys."""
        return "the launcher's store is as the life before left it"

    def real_obstacle(self, machine: Machine) -> str:
        """Allows restarts, other than the base."""
        return super().real_obstacle(replace(machine, max_restarts=0))
