"""The sources of the events that judges listen to, installed when the first judge listens to an event.

Torch has public hooks for all optimizers. The constructor of DDP and the iterators of loaders are wrapped for the
length of a world, like everything else that a world replaces. On a thread that is not a rank's, nothing changes.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch
from torch.autograd.graph import GradientEdge
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import get_worker_info
from torch.utils.hooks import RemovableHandle

from simdist.inside.torch import (
    count_dispatch_modes,
    count_function_modes,
    loader_iterators,
    loader_watchdog,
    seed_of_workers,
    without_functions,
    without_modes,
)
from simdist.judges._events import (
    BackwardCalled,
    BatchDrawn,
    BatchRead,
    FileUsed,
    LoaderBegan,
    LoaderEnded,
    ModelWrapped,
    OptimizerBegins,
    OptimizerStepped,
    StateLoaded,
    WorkerReady,
)
from simdist.judges._file_calls import wrap_files
from simdist.judges._sites import forget_sites, site_of
from simdist.kernel import Bus
from simdist.process import Patches, SimProcess, current_process

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["Instruments", "hear_of_files"]

_T = TypeVar("_T")
_Root: TypeAlias = torch.Tensor | GradientEdge  # of a backward pass


class Instruments:
    """The sources of one world's events; `close` removes them."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._placed: set[Callable[[], None]] = set()

    def prepare(self, kind: type) -> None:
        """Install the source of events of this kind."""
        place = {
            OptimizerBegins: self._hook_optimizers,
            OptimizerStepped: self._hook_optimizers,
            BackwardCalled: self._wrap_backward,
            ModelWrapped: self._wrap_models,
            StateLoaded: self._wrap_modules,
            FileUsed: self._wrap_files,
            LoaderBegan: self._wrap_loaders,
            BatchDrawn: self._wrap_loaders,
            BatchRead: self._wrap_loaders,
            LoaderEnded: self._wrap_loaders,
            WorkerReady: self._wrap_workers,
        }.get(kind)
        if place is not None and place not in self._placed:
            self._placed.add(place)
            place()

    def close(self) -> None:
        """Restore everything."""
        self._placed.clear()
        forget_sites()
        self._patches.undo()

    def _hook_optimizers(self) -> None:
        steps = _Steps()
        # Programs pickle the numbers of hooks, so the program's hooks must have the same numbers as without us.
        numbers, RemovableHandle.next_id = RemovableHandle.next_id, -2
        try:
            for handle in (
                register_optimizer_step_pre_hook(steps.before),
                register_optimizer_step_post_hook(steps.after),
            ):
                self._patches.on_undo(handle.remove)
        finally:
            RemovableHandle.next_id = numbers

    def _wrap_backward(self) -> None:
        self._patches.wrap(torch.autograd, "backward", _reporting_backward)

    def _wrap_files(self) -> None:
        wrap_files(self._patches)

    def _wrap_models(self) -> None:
        self._patches.wrap(DistributedDataParallel, "__init__", _reporting_models)

    def _wrap_modules(self) -> None:
        self._patches.wrap(torch.nn.Module, "load_state_dict", _reporting_states)

    def _wrap_loaders(self) -> None:
        self._patches.on_undo(_begun.clear)
        self._patches.wrap(loader_iterators, "__init__", _reporting_first_beginnings)
        self._patches.wrap(loader_iterators, "_reset", _reporting_beginnings)
        self._patches.wrap(loader_iterators, "_next_index", _reporting_indices)
        self._patches.wrap(loader_iterators, "__next__", _reporting_ends)

    def _wrap_workers(self) -> None:
        self._patches.wrap(loader_watchdog, "is_alive", _reporting_workers)


# -- optimizers ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Counted:
    """The counts of one optimizer of one rank, and the line of its current step."""

    optimizer: weakref.ref[Optimizer]
    index: int  # in the order of the first steps; -1: it has only stepped inside another's step so far
    number: int = 0  # finished steps
    where: str = ""


class _Steps:
    """Counts the steps of each rank's optimizers."""

    def __init__(self) -> None:
        self._under_way: dict[SimProcess, list[_Counted]] = {}
        self._counted: dict[SimProcess, weakref.WeakKeyDictionary[Optimizer, _Counted]] = {}
        self._seen: dict[SimProcess, int] = {}

    def before(self, optimizer: Optimizer, _: object, __: object) -> None:
        process = _rank()
        if process is None:
            return
        counted = self._counted.get(process)
        if counted is None:
            counted, self._under_way[process] = weakref.WeakKeyDictionary(), []
            self._counted[process] = counted
        stack = self._under_way[process]
        step = counted.get(optimizer)
        for place, other in enumerate(stack):
            if other is step:  # an earlier step raised, so its end was not seen
                del stack[place:]
                break
        if step is None:
            step = counted[optimizer] = _Counted(weakref.ref(optimizer), -1)
        stack.append(step)
        if len(stack) == 1:
            if step.index < 0:
                step.index = self._seen.get(process, 0)
                self._seen[process] = step.index + 1
            step.where = site_of(sys._getframe(1))
            if process.simulation.bus.hears(OptimizerBegins):
                _report(process, OptimizerBegins(process, optimizer, step.index, step.number, step.where))

    def after(self, optimizer: Optimizer, _: object, __: object) -> None:
        process = _rank()
        if process is None:
            return
        stack = self._under_way.get(process, [])
        step = stack.pop() if stack else None
        if step is None or step.optimizer() is not optimizer:
            stack.clear()
            return
        if not stack:
            if process.simulation.bus.hears(OptimizerStepped):
                _report(process, OptimizerStepped(process, optimizer, step.index, step.number, step.where))
            step.number += 1


def _report(process: SimProcess, event: object) -> None:
    """Report an event; modes of the program do not see the work of listeners."""
    bus = process.simulation.bus
    if count_dispatch_modes() or count_function_modes():
        with without_modes(), without_functions():
            bus.report(event)
    else:
        bus.report(event)


def _rank() -> SimProcess | None:
    """Return the running rank; None for its child processes, and for the host."""
    process = current_process()
    return None if process is None or process.parent is not None or process.rank < 0 else process


def _reporting_backward(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(tensors: _Root | Sequence[_Root], *args: object, **kwargs: object) -> None:
        process = _rank()
        if process is not None and process.simulation.bus.hears(BackwardCalled):
            roots: list[torch.Tensor]
            edges: Sequence[GradientEdge]
            if isinstance(tensors, torch.Tensor):  # hot
                roots, edges = [tensors], ()
            else:
                given = (tensors,) if isinstance(tensors, GradientEdge) else tuple(tensors)
                roots = [each for each in given if isinstance(each, torch.Tensor)]
                edges = [each for each in given if isinstance(each, GradientEdge)]
            _report(process, BackwardCalled(process, roots, site_of(sys._getframe(1)), edges))
        original(tensors, *args, **kwargs)

    return backward


# -- models ----------------------------------------------------------------------------------------------------------


def _reporting_models(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: DistributedDataParallel, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        process = _rank()
        if process is not None and process.simulation.bus.hears(ModelWrapped):
            _report(process, ModelWrapped(process, self, site_of(sys._getframe(1))))

    return __init__


def _reporting_states(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def load_state_dict(self: torch.nn.Module, *args: object, **kwargs: object) -> _T:
        result = original(self, *args, **kwargs)
        process, missing = _rank(), getattr(result, "missing_keys", None)
        if process is not None and missing is not None and process.simulation.bus.hears(StateLoaded):
            unexpected = getattr(result, "unexpected_keys", ())
            _report(process, StateLoaded(process, self, missing, unexpected, site_of(sys._getframe(1))))
        return result

    return load_state_dict


# -- loaders ---------------------------------------------------------------------------------------------------------

# By iterator, whose attributes belong to torch.
_numbers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_begun: dict[SimProcess, int] = {}  # the number of a rank's last iteration


def _reporting_first_beginnings(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: object, loader: DataLoader[object]) -> None:
        _report_beginning(self, loader)
        original(self, loader)

    return __init__


def _reporting_beginnings(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _reset(self: object, loader: DataLoader[object], first_iter: bool = False) -> None:
        if not first_iter:  # persistent workers begin the next epoch
            _report_beginning(self, loader)
        original(self, loader, first_iter)

    return _reset


def _report_beginning(iterator: object, loader: DataLoader[object]) -> None:
    from torch.utils.data import DataLoader

    process = _rank()
    if process is None or not process.simulation.bus.hears(LoaderBegan) or not isinstance(loader, DataLoader):
        return  # libraries such as fastai give torch's iterators an object of their own
    number = _numbers[iterator] = _begun[process] = _begun.get(process, -1) + 1
    _report(process, LoaderBegan(process, loader, number, site_of(sys._getframe(2))))


def _reporting_indices(original: Callable[[object], _T]) -> Callable[[object], _T]:
    @functools.wraps(original)
    def _next_index(self: object) -> _T:
        found = original(self)
        number = _numbers.get(self)
        if number is not None and (process := _rank()) is not None and process.simulation.bus.hears(BatchDrawn):
            indices = found if isinstance(found, list | tuple) else [found]
            _report(process, BatchDrawn(process, number, tuple(indices)))
        return found

    return _next_index


def _reporting_ends(original: Callable[[object], _T]) -> Callable[[object], _T]:
    @functools.wraps(original)
    def __next__(self: object) -> _T:
        number = _numbers.get(self)
        process = None if number is None else _rank()
        if number is None or process is None:
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            _report(process, LoaderEnded(process, number))
            raise
        _report(process, BatchRead(process, number, batch, seed_of_workers(self)))
        return batch

    return __next__


def _reporting_workers(original: Callable[[object], bool]) -> Callable[[object], bool]:
    @functools.wraps(original)
    def is_alive(self: object) -> bool:
        process, info = current_process(), get_worker_info()
        if process is not None and info is not None and process.parent is not None:
            while process.parent is not None:
                process = process.parent
            if process.rank >= 0 and process.simulation.bus.hears(WorkerReady):
                event = WorkerReady(process, info.id, info.num_workers, info.seed, info.dataset)
                _report(process, event)
        return original(self)

    return is_alive


def hear_of_files(bus: Bus, listener: Callable[[FileUsed], None]) -> Callable[[], None]:
    """Call `listener` for every file that a rank uses. Returns a function that ends this."""
    instruments = Instruments()
    if not bus.hears(FileUsed):  # otherwise a judge has installed the source
        instruments.prepare(FileUsed)
    end = bus.listen(FileUsed, listener)

    def close() -> None:
        end()
        instruments.close()

    return close
