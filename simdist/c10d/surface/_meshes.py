"""What DTensor remembers, about a device mesh above all, kept apart for each rank.

Torch keys plans of redistribution, and what follows from them, by the mesh; and since a process is one rank, two meshes
of the same shape are equal although the plan depends on where in the mesh the rank is. For its own threaded tests torch
has a member of `DeviceMesh` that tells threads apart (`_thread_id`); on a rank it is a number of that rank's process.

What draws its random numbers on devices is one object for a process, which begins with a broadcast; whoever finds one
there does not.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from simdist.process import Patches, Replacement, current_process, followed, when_imported

__all__ = ["install"]

_worlds = itertools.count(1)  # meshes of an earlier world live on in caches; they are no meshes of this one
_NAME = "_thread_id"
_LOSS = "torch.distributed.tensor.parallel.loss"
_RANDOM = "torch.distributed.tensor._random"
_PLANS = "torch.distributed.tensor._redistribute"


def install(patches: Patches) -> None:
    """Make meshes of different ranks different, and let no plan outlive the world."""
    world = next(_worlds) << 32

    def get(mesh: DeviceMesh) -> int | None:
        process = current_process()
        stored: int | None = mesh.__dict__.get(_NAME)
        return stored if process is None or stored is not None else world + process.pid

    def put(mesh: DeviceMesh, value: int | None) -> None:
        mesh.__dict__[_NAME] = value

    patches.replace(DeviceMesh, _NAME, property(get, put))
    plans = sys.modules.get(_PLANS)
    if plans is not None:
        for name, make in _FRESH.items():
            if hasattr(plans, name):
                patches.replace(plans, name, make(getattr(plans, name)))


@functools.cache
def _of_losses(loss: Any) -> tuple[Replacement, ...]:
    """So that `loss_parallel()` on one rank answers no operator of another."""
    writers = [(loss, name) for name in ("_enable_custom_loss_ops", "_disable_custom_loss_ops")]
    handlers = loss.DTensor._op_dispatcher._custom_op_handlers

    def load(entries: dict[Any, Any]) -> None:
        if handlers != entries:
            handlers.clear()
            handlers.update(entries)

    return tuple(followed("operators of DTensor", writers, lambda: dict(handlers), load))


@functools.cache
def _of_random_numbers(random: Any) -> tuple[Replacement, ...]:
    def load(tracker: Any) -> None:
        random._rng_tracker = tracker

    writers = [(random._RNGStateTracker, "__init__")]
    return tuple(followed("DTensor's random numbers", writers, lambda: random._rng_tracker, load))


when_imported(_LOSS, lambda patches: patches.redirect(_of_losses(sys.modules[_LOSS])))
when_imported(_RANDOM, lambda patches: patches.redirect(_of_random_numbers(sys.modules[_RANDOM])))


def _same_cache_but_empty(cached: Any) -> Any:
    return functools.cache(cached.__wrapped__)


# Caches without a bound, and what torch warns of once per mesh.
_FRESH: dict[str, Callable[[Any], Any]] = {
    "_gen_transform_infos": _same_cache_but_empty,
    "_planner_cache": lambda _: {},
    "_warned_flatten_issues": lambda _: set(),
}
