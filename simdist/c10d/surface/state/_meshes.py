"""DTensor's process-wide state, mostly about device meshes, separate for each rank.

Torch caches plans of redistribution, and results that depend on them, by the mesh. For torch a process is one rank, so
two meshes of the same shape are equal, although the plan depends on the rank's place in the mesh. For its own threaded
tests torch has a member of `DeviceMesh` that distinguishes threads (`_thread_id`); on a rank it is a number of the
rank's process.

DTensor's random numbers on devices come from one object of the process, whose creation begins with a broadcast; a rank
that found another rank's object would skip the broadcast. A sharding rule of an operator belongs to the rank that
registers it. `context_parallel` replaces attention by a function that knows the rank's mesh, and adds handlers and
rules for its operators.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from simdist.process import (
    Patches,
    Replacement,
    Slot,
    current_process,
    current_runtime,
    followed,
    imported_for_all,
    when_imported,
)

__all__ = ["install"]

_worlds = itertools.count(1)  # caches keep meshes of earlier worlds, which must differ from those of this world
_NAME = "_thread_id"
_LOSS = "torch.distributed.tensor.parallel.loss"
_RANDOM = "torch.distributed.tensor._random"
_COSTS = "torch.distributed.tensor._collective_utils"
_PLANS = "torch.distributed.tensor._redistribute"
_RULES = "torch.distributed.tensor._sharding_prop"
_CONTEXTS = "torch.distributed.tensor.experimental._context_parallel"


def install(patches: Patches) -> None:
    """Make meshes of different ranks differ, and let no plan outlive the world."""
    world = next(_worlds) << 32

    def get(mesh: DeviceMesh) -> int | None:
        process = current_process()
        stored: int | None = mesh.__dict__.get(_NAME)
        return stored if process is None or stored is not None else world + process.pid

    def put(mesh: DeviceMesh, value: int | None) -> None:
        mesh.__dict__[_NAME] = value

    patches.replace(DeviceMesh, _NAME, property(get, put))
    for module, holder, name, make in _FRESH:
        found = sys.modules.get(module)
        owner = getattr(found, holder, None) if holder else found
        if hasattr(owner, name):
            patches.replace(owner, name, make(getattr(owner, name)))


@functools.cache
def _of_losses(loss: ModuleType) -> tuple[Replacement, ...]:
    """Return replacements after which `loss_parallel()` on one rank handles no operators of another rank."""
    writers = [(loss, name) for name in ("_enable_custom_loss_ops", "_disable_custom_loss_ops")]
    handlers = loss.DTensor._op_dispatcher._custom_op_handlers

    def load(entries: dict[object, object]) -> None:
        if handlers != entries:
            handlers.clear()
            handlers.update(entries)

    return tuple(followed("operators of DTensor", writers, lambda: dict(handlers), load))


class _Rules:
    """The sharding rules of operators that ranks have registered, separate for each rank.

    Only the entries of these operators are exchanged; `_of_host` has their original entries.
    """

    def __init__(self, propagation: ModuleType, propagator: Any) -> None:
        names = [f"op_{name}" for name in ("to_rules", "strategy_funcs", "single_dim_strategy_funcs", "to_schema_info")]
        names.append("op_to_schema_info_for_single_dim_strategy")
        self._tables: list[dict[object, object]] = [
            getattr(propagator, name) for name in names if hasattr(propagator, name)
        ]
        self._of_host: dict[object, list[object]] = {}
        self.slot: Slot[dict[object, list[object]]] = Slot(
            "rules for sharding", self._save, self._load, lambda process, of_host: of_host
        )
        self.writers = tuple(
            Replacement(propagation.ShardingPropagator, name, self._following)
            for name in ("register_sharding_prop_rule", "register_op_strategy", "register_single_dim_op_strategy")
            if hasattr(propagation.ShardingPropagator, name)
        )

    def _entries(self, operator: object) -> list[object]:
        return [table.get(operator) for table in self._tables]

    def _save(self) -> dict[object, list[object]]:
        return {operator: self._entries(operator) for operator in self._of_host}

    def _load(self, state: dict[object, list[object]]) -> None:
        for operator, of_host in self._of_host.items():
            for table, entry in zip(self._tables, state.get(operator, of_host), strict=True):
                if entry is None:
                    table.pop(operator, None)
                else:
                    table[operator] = entry

    def _following(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def register(propagator: object, operator: object, *args: object, **kwargs: object) -> object:
            runtime = current_runtime()
            contexts = sys.modules.get(f"{_CONTEXTS}._attention")
            if contexts is not None and operator in contexts.custom_ops:
                pass  # `_of_contexts` exchanges the rules of these operators, which exist inside a context only
            elif runtime is not None and not imported_for_all(sys._getframe(1)):
                runtime.separate(self.slot)
                self._of_host.setdefault(operator, self._entries(operator))
            return original(propagator, operator, *args, **kwargs)

        return register

    def forget(self) -> None:
        """Forget the host's entries, which are back in the tables at the end of the world."""
        self._of_host.clear()


@functools.cache
def _of_rules(propagation: ModuleType, propagator: Any) -> _Rules:
    return _Rules(propagation, propagator)


def _report_rules(patches: Patches) -> None:
    tensors = sys.modules["torch.distributed.tensor._api"]
    rules = _of_rules(sys.modules[_RULES], tensors.DTensor._op_dispatcher.sharding_propagator)
    patches.on_undo(rules.forget)
    patches.redirect(rules.writers)


@functools.cache
def _of_random_numbers(random: Any) -> tuple[Replacement, ...]:
    def load(tracker: object) -> None:
        random._rng_tracker = tracker

    writers = [(random._RNGStateTracker, "__init__")]
    return tuple(followed("DTensor's random numbers", writers, lambda: random._rng_tracker, load))


@functools.cache
def _of_contexts(attention: ModuleType, rules: ModuleType) -> tuple[Replacement, ...]:
    """Return replacements that make context-parallel attention separate for each rank."""
    functional, dispatcher, options = attention.F, attention.DTensor._op_dispatcher, vars(attention._cp_options)
    propagator = dispatcher.sharding_propagator
    tables = propagator.op_strategy_funcs, propagator.op_to_schema_info
    operators = tuple(attention.custom_ops)
    variables = [(attention, name) for name in ("_dispatch_mode", "_replaced_functions")]
    variables += [(rules, name) for name in ("_cp_strategy_contexts", "_original_strategies")]
    variables += [(functional, "scaled_dot_product_attention"), (dispatcher, "_custom_op_handlers")]

    def save() -> Any:
        entries = [{each: table[each] for each in operators if each in table} for table in tables]
        return [getattr(*each) for each in variables], dict(options), entries

    def load(state: Any) -> None:
        values, chosen, entries = state
        for (owner, name), value in zip(variables, values, strict=True):
            if getattr(owner, name) is not value:
                setattr(owner, name, value)
        options.update(chosen)
        for table, entry in zip(tables, entries, strict=True):
            for each in operators:
                if each not in entry:
                    table.pop(each, None)
            table.update(entry)

    def copied(state: Any) -> Any:
        (mode, *tables, attend, handlers), chosen, entries = state
        return [mode, *map(dict, tables), attend, handlers], chosen, entries

    writers = ("context_parallel", "_context_parallel_shard", "set_rotate_method")
    switches = ("_enable_cp_dtensor_dispatcher", "_disable_cp_dtensor_dispatcher", "_distribute_function")
    return tuple(followed("shared contexts", [(attention, each) for each in (*writers, *switches)], save, load, copied))


def _report_contexts(patches: Patches) -> None:
    rules = importlib.import_module(f"{_CONTEXTS}._sharding_rules")
    patches.redirect(_of_contexts(sys.modules[f"{_CONTEXTS}._attention"], rules))


when_imported(f"{_CONTEXTS}._attention", _report_contexts)
when_imported("torch.distributed.tensor", _report_rules)
when_imported(_LOSS, lambda patches: patches.redirect(_of_losses(sys.modules[_LOSS])))
when_imported(_RANDOM, lambda patches: patches.redirect(_of_random_numbers(sys.modules[_RANDOM])))


def _same_cache_but_empty(cached: Any) -> Any:
    return functools.cache(cached.__wrapped__)


def _static(cached: Any) -> object:
    return staticmethod(_same_cache_but_empty(cached))


# Caches by meshes, and a table of warnings that torch gives once per mesh: a module, a class in it or "", a name there,
# and a function that makes a new one from the present one. A mesh has its groups, and these have their world.
_FRESH: tuple[tuple[str, str, str, Callable[[Any], object]], ...] = (
    (_PLANS, "", "_gen_transform_infos", _same_cache_but_empty),
    (_PLANS, "", "_planner_cache", lambda _: {}),
    (_PLANS, "", "_warned_flatten_issues", lambda _: set()),
    (_COSTS, "MeshTopoInfo", "build_from_mesh", _static),
    (_RULES, "ShardingPropagator", "_propagate_tensor_meta_cached", _same_cache_but_empty),
)
