"""What DTensor remembers about a device mesh, kept apart for each rank.

Torch keys plans of redistribution, and what follows from them, by the mesh; and since a process is one rank, two meshes
of the same shape are equal although the plan depends on where in the mesh the rank is. For its own threaded tests torch
has a member of `DeviceMesh` that tells threads apart (`_thread_id`); on a rank it is a number of that rank's process.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from simdist.process import Patches, Replacement, current_process, followed

__all__ = ["install"]

_worlds = itertools.count(1)  # meshes of an earlier world live on in caches; they are no meshes of this one
_NAME = "_thread_id"
_LOSS = "torch.distributed.tensor.parallel.loss"
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

    replacements = _loss_replacements()
    patches.replace(DeviceMesh, _NAME, property(get, put))
    if replacements:
        patches.redirect(replacements)
    plans = sys.modules.get(_PLANS)
    if plans is not None:
        for name, make in _FRESH.items():
            if hasattr(plans, name):
                patches.replace(plans, name, make(getattr(plans, name)))


@functools.cache
def _replacements_of(loss: Any) -> tuple[Replacement, ...]:
    writers = [(loss, name) for name in ("_enable_custom_loss_ops", "_disable_custom_loss_ops")]
    handlers = loss.DTensor._op_dispatcher._custom_op_handlers

    def load(entries: dict[Any, Any]) -> None:
        if handlers != entries:
            handlers.clear()
            handlers.update(entries)

    return tuple(followed("operators of DTensor", writers, lambda: dict(handlers), load))


def _loss_replacements() -> tuple[Replacement, ...]:
    """So that `loss_parallel()` on one rank answers no operator of another; where it has been imported."""
    loss = sys.modules.get(_LOSS)
    return () if loss is None else _replacements_of(loss)


def _same_cache_but_empty(cached: Any) -> Any:
    return functools.cache(cached.__wrapped__)


# Caches without a bound, and what torch warns of once per mesh.
_FRESH: dict[str, Callable[[Any], Any]] = {
    "_gen_transform_infos": _same_cache_but_empty,
    "_planner_cache": lambda _: {},
    "_warned_flatten_issues": lambda _: set(),
}
