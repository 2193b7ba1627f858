"""State of one rank that installed libraries keep in modules which all ranks share: a slot for each library.

Accelerate keeps what it knows of its process in dictionaries of three classes, Lightning the rank in an attribute of a
function, Hydra and OmegaConf what is initialized and registered in tables of a class, TensorBoard a count of its files,
tqdm the bars that are on the screen, trio the threads that are free.
With modules per rank each rank has these for itself anyway. `simdist.run` shares modules, and there the slots give each
rank its own. A rank begins with what an import gives a new process, and with what the program registered when it was
imported.

In doubt: ranks share the state of libraries that are not listed here; these need `isolate=True`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, active_runtime, current_process
from simdist.process._slots import Slot
from simdist.process.stdlib._environ import variable_of

__all__ = ["ADAPTERS", "APART"]

_S = TypeVar("_S")
_Table = dict[object, object]

APART = frozenset(("accelerate", "hydra", "lightning", "lightning_fabric", "omegaconf", "pytorch_lightning"))
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # as Lightning looks for its rank
_OF_ONE_RUN = frozenset(("GlobalHydra", "HydraConfig"))  # among Hydra's singletons; the others hold what is registered


def _separate(slot: Slot[_S]) -> None:
    runtime = active_runtime()
    if runtime is not None:
        runtime.slots.separate(slot, current_process())


def _of_accelerate(patches: Patches) -> None:
    module = sys.modules["accelerate.state"]
    _separate_tables(
        "accelerate",
        [(getattr(module, name), "_shared_state") for name in ("PartialState", "AcceleratorState", "GradientState")],
        lambda of_host: {},
    )


def _of_hydra(patches: Patches) -> None:
    table: dict[type, object] = vars(sys.modules["hydra.core.singleton"])["Singleton"]._instances

    def save() -> dict[type, object]:
        return {kind: each for kind, each in table.items() if kind.__name__ in _OF_ONE_RUN}

    def load(of_run: dict[type, object]) -> None:
        for kind in save():
            del table[kind]
        table.update(of_run)

    _separate(Slot("hydra", save, load, lambda process, of_host: {}, dict))


def _of_omegaconf(patches: Patches) -> None:
    module = sys.modules["omegaconf.basecontainer"]
    _separate_tables("omegaconf", [(module.BaseContainer, "_resolvers")], dict)


def _separate_tables(name: str, places: list[tuple[type, str]], begin: Callable[[_Table], _Table]) -> None:
    """Give each process dictionaries of its own in these attributes of classes."""
    if not all(type(vars(owner).get(attribute)) is dict for owner, attribute in places):
        return  # another version of the library, or another kind of device

    def save() -> list[_Table]:
        return [vars(owner)[attribute] for owner, attribute in places]

    def load(tables: list[_Table]) -> None:
        for (owner, attribute), table in zip(places, tables, strict=True):
            type.__setattr__(owner, attribute, table)

    def fresh(process: SimProcess, tables: list[_Table]) -> list[_Table]:
        return [begin(table) for table in tables]

    _separate(Slot(name, save, load, fresh, lambda tables: [dict(table) for table in tables]))


def _of_lightning(name: str) -> Callable[[Patches], None]:
    def adapt(patches: Patches) -> None:
        function: Any = vars(sys.modules[name])["rank_zero_only"]
        if current_process() is not None:
            function.rank = 0  # a rank has just imported the module, and the host has no rank

        def load(rank: int) -> None:
            function.rank = rank

        def fresh(process: SimProcess, of_host: int) -> int:
            found = (variable_of(process, name) for name in _RANKS)
            return next((int(rank) for rank in found if rank is not None), 0)

        _separate(Slot("lightning", lambda: function.rank, load, fresh))

    return adapt


def _of_tensorboard(patches: Patches) -> None:
    module: Any = sys.modules["tensorboard.summary.writer.event_file_writer"]
    counter = getattr(module, "_global_uid", None)  # of files, whose names contain it
    if counter is None:
        return

    def load(counter: object) -> None:
        module._global_uid = counter

    kind = type(counter)
    _separate(Slot("tensorboard", lambda: module._global_uid, load, lambda process, of_host: kind(0), copy.copy))


def _of_tqdm(patches: Patches) -> None:
    kind: Any = vars(sys.modules["tqdm.std"])["tqdm"]
    if "_instances" not in vars(kind):  # the bars, whose number gives a new one its line on the screen
        return

    def load(bars: WeakSet[object]) -> None:
        kind._instances = bars

    _separate(Slot("tqdm", lambda: kind._instances, load, lambda process, of_host: WeakSet(), WeakSet.copy))


def _of_trio(patches: Patches) -> None:
    module: Any = sys.modules["trio._core._thread_cache"]

    def load(threads: object) -> None:
        module.THREAD_CACHE = threads

    def fresh(process: SimProcess, of_host: object) -> object:
        return module.ThreadCache()

    _separate(Slot("trio", lambda: module.THREAD_CACHE, load, fresh))


ADAPTERS: dict[str, Callable[[Patches], None]] = {
    "accelerate.state": _of_accelerate,
    "hydra.core.singleton": _of_hydra,
    "omegaconf": _of_omegaconf,
    "tensorboard.summary.writer.event_file_writer": _of_tensorboard,
    "tqdm.std": _of_tqdm,
    "trio._core._thread_cache": _of_trio,
    **{
        name: _of_lightning(name)
        for name in ("lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero")
    },
}
"""By module: called once it is imported, gives each rank its own state."""
