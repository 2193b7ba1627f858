"""A program's registrations and temporary switches in torch: types as trees, divergences, hooks and their numbers.

Torch keeps these in tables of its modules, and refuses a second registration. A rank registers only for itself: from
its first registration on, each process has its own tables, and the host's return when the world has ended. A shared
module is imported once, by the first rank that arrives there, so its registrations apply to all ranks, in this world
and afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import distributions, serialization
from torch.autograd import graph
from torch.nn.utils import parametrize
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.hooks import RemovableHandle

from simdist.c10d.surface.state._cxx_trees import import_now
from simdist.inside.torch import decompositions, flattening, overloads, saved_places, trees
from simdist.process import (
    Patches,
    Replacement,
    Runtime,
    Slot,
    current_runtime,
    followed,
    followed_variables,
    imported_for_all,
    when_imported,
)

__all__ = ["Registry", "install"]

_Table = Any  # a dictionary, list or set
_optimizer = sys.modules["torch.optim.optimizer"]
_rendezvous = sys.modules["torch.distributed.rendezvous"]  # a function has the name, too
_kl = sys.modules["torch.distributions.kl"]
_TREES = tuple(
    getattr(trees, name)
    for name in (
        "SUPPORTED_NODES",
        "SUPPORTED_SERIALIZED_TYPES",
        "SERIALIZED_TYPE_TO_PYTHON_TYPE",
        "CONSTANT_NODES",
    )
    if hasattr(trees, name)
)
_OVERLOADS = tuple(
    getattr(overloads, name)
    for name in ("_overloaded_fns", "_overloaded_methods", "_overloaded_method_class_fileno")
    if hasattr(overloads, name)
)
_GROWING = tuple(
    (trees, name)
    for name in (
        "register_pytree_node",
        "_private_register_pytree_node",
        "_register_pytree_node",
        "_deregister_pytree_node",
        "register_constant",
    )
)


class Registry:
    """Tables that are written together. Entries for all processes go into the tables of each."""

    def __init__(self, name: str, tables: Sequence[_Table]) -> None:
        self._tables = tables
        self.slot: Slot[list[_Table]] = Slot(name, self._save, self._load, lambda process, of_host: of_host)

    def _save(self) -> list[_Table]:
        return [table.copy() for table in self._tables]

    def _load(self, contents: list[_Table]) -> None:
        for table, content in zip(self._tables, contents, strict=True):
            if table != content:
                table.clear()
                _add(table, content)

    def write_for_all(self, runtime: Runtime, write: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """Let `write`, or the decorator that it returns, add entries, and add these to the tables of every process."""
        found = self._write(runtime, write, *args, **kwargs)
        # Wrap a decorator, but not a decorated function, which is returned unchanged.
        is_decorator = isinstance(found, FunctionType) and not any(found is each for each in args)
        return functools.partial(self._write, runtime, found) if is_decorator else found

    def _write(self, runtime: Runtime, write: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        states = runtime.slots.states(self.slot)  # none before the first registration by a rank
        before = self._save() if states else []
        found = write(*args, **kwargs)
        if states:
            for number, (table, was) in enumerate(zip(self._tables, before, strict=True)):
                if isinstance(table, dict):
                    added: Any = {key: value for key, value in table.items() if key not in was}
                else:
                    added = [each for each in table if each not in was]
                for state in states:
                    _add(state[number], added)
        return found


def _add(table: _Table, entries: Iterable[Any]) -> None:
    if isinstance(table, list):
        table.extend(entries)
    else:
        table.update(entries)


def _separating(
    name: str,
    tables: Sequence[_Table],
    writers: Sequence[tuple[object, str]],
    prepare: Callable[[], None] | None = None,
) -> list[Replacement]:
    registry = Registry(name, tables)

    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def register(*args: object, **kwargs: object) -> object:
            runtime = current_runtime()
            if runtime is None:
                return original(*args, **kwargs)
            if imported_for_all(sys._getframe(1)):
                return registry.write_for_all(runtime, original, *args, **kwargs)
            if prepare is not None:
                prepare()
            runtime.separate(registry.slot)
            return original(*args, **kwargs)

        return register

    return [Replacement(owner, writer, make) for owner, writer in writers if hasattr(owner, writer)]


_VALIDATED = distributions.Distribution


def _save_validation() -> bool:
    return _VALIDATED._validate_args


def _load_validation(value: bool) -> None:
    if _VALIDATED._validate_args is not value:
        _VALIDATED._validate_args = value


def _set_next_hook(number: int) -> None:
    RemovableHandle.next_id = number


_REPLACEMENTS = (
    *_separating("types as trees", _TREES, _GROWING, import_now),
    *_separating(
        "types in traced programs",
        [flattening.SUPPORTED_NODES, flattening.SUPPORTED_NODES_EXACT_MATCH],
        [(flattening, "register_pytree_flatten_spec"), (flattening, "_deregister_pytree_flatten_spec")],
    ),
    *_separating(
        "rendezvous handlers", [_rendezvous._rendezvous_handlers], [(_rendezvous, "register_rendezvous_handler")]
    ),
    *_separating("places of saved tensors", [saved_places()], [(serialization, "register_package")]),
    *_separating(
        "functions of data pipes",
        [pipe.functions for pipe in (IterDataPipe, MapDataPipe)],
        [
            (getattr(pipe, name), "__func__")  # of the method that the class has
            for pipe in (IterDataPipe, MapDataPipe)
            for name in ("register_function", "register_datapipe_as_function")
        ],
    ),
    *_separating("overloads", _OVERLOADS, [(overloads, "_overload"), (overloads, "_overload_method")]),
    *_separating("divergences", [_kl._KL_REGISTRY, _kl._KL_MEMOIZE], [(_kl, "register_kl")]),
    *_separating(
        "decompositions",
        list(decompositions.global_decomposition_table.values()),
        [(decompositions, "register_decomposition")],
    ),
    *_separating(
        "hooks of all optimizers",
        [vars(_optimizer)[f"_global_optimizer_{when}_hooks"] for when in ("pre", "post")],
        [(_optimizer, f"register_optimizer_step_{when}_hook") for when in ("pre", "post")],
    ),
    # Cached weights are found by the identity of modules, so that each rank finds its own.
    *followed_variables("parametrized weights", parametrize, ("_cache_enabled", "_cache"), ("cached",)),
    *followed_variables(
        "changes of saved tensors",
        graph,
        ("_allow_mutation_on_saved_tensors_enabled",),
        ("allow_mutation_on_saved_tensors",),
    ),
    *followed_variables(
        "conversion of modules",
        torch.__future__,
        ("_overwrite_module_params_on_conversion", "_swap_module_params_on_conversion"),
        ("set_overwrite_module_params_on_conversion", "set_swap_module_params_on_conversion"),
    ),
    *followed_variables("the folder of torch.hub", torch.hub, ("_hub_dir",), ("set_dir",)),
    *followed(
        "validation by distributions",
        ((_VALIDATED, "set_default_validate_args"),),
        _save_validation,
        _load_validation,
    ),
    *followed(  # they are part of a pickled module with hooks
        "numbers of hooks",
        ((RemovableHandle, "__init__"), (RemovableHandle, "__setstate__")),
        lambda: RemovableHandle.next_id,
        _set_next_hook,
    ),
)


@functools.cache
def _of_module(name: str) -> tuple[Replacement, ...]:
    """Return the replacements for a module that has been imported."""
    module: Any = sys.modules[name]
    if name == _OPTIMIZERS:
        table, writer = module.functional_optim_map, (module, "register_functional_optim")
        return tuple(_separating("functional optimizers", [table], [writer]))
    if name == _INDUCTOR:
        writer = (module, "register_decomposition")
        return tuple(_separating("decompositions of the compiler", [module.decompositions], [writer]))
    if name == _TIMER:
        return tuple(followed_variables("the client of timers", module, ("_timer_client",), ("configure",)))

    def load(state: tuple[dict[str, object], object]) -> None:
        handlers, module._default_metrics_handler = state
        module._metrics_map.clear()
        module._metrics_map.update(handlers)

    def save() -> tuple[dict[str, object], object]:
        return dict(module._metrics_map), module._default_metrics_handler

    return tuple(followed("handlers of metrics", [(module, "configure")], save, load))


_INDUCTOR = "torch._inductor.decomposition"
_OPTIMIZERS = "torch.distributed.optim.utils"
_TIMER = "torch.distributed.elastic.timer.api"
_METRICS = "torch.distributed.elastic.metrics.api"
for _name in (_INDUCTOR, _OPTIMIZERS, _TIMER, _METRICS):
    when_imported(_name, lambda patches, name=_name: patches.redirect(_of_module(name)))  # type: ignore[misc]


def install(patches: Patches) -> None:
    """Give each process its own tables, from the first registration by a rank on."""
    patches.redirect(_REPLACEMENTS)
