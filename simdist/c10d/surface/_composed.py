"""A group that a program puts together itself: `ProcessGroup(store, rank, size)`, with registered backends.

Torch makes its groups like this, and so do `torch.distributed._dist2` and libraries with groups of their own:

    group = ProcessGroup(store, rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, rank, size))

Torch's C++ group takes only C++ backends. On a rank, the same call of `ProcessGroup` makes a group that takes our
backends. The class's `__new__` does this, so it does not matter how a program imports the name, and subclasses are
unaffected. While torch makes a group, the call makes torch's own group, and our backend then takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from simdist.c10d.surface._compat import ProcessGroup, Store, said_by
from simdist.c10d.surface._identity import GroupBackend
from simdist.c10d.surface._several_backends import SeveralBackends
from simdist.inside.torch import c10d_bindings
from simdist.process import Patches, current_process

if TYPE_CHECKING:
    from datetime import timedelta

    from simdist.c10d.surface._identity import DeviceLike
    from simdist.c10d.surface._store import SimStore

__all__ = ["ComposedGroup", "install"]

_Type = ProcessGroup.BackendType
_COUNTING = (_Type.GLOO, _Type.NCCL, _Type.XCCL, _Type.UCC)  # backends with sequence numbers in torch (2.13)


class ComposedGroup(SeveralBackends):
    """A rank's handle on a group with registered backends, each for a type of device.

    Example:
        >>> def main():
        ...     store, rank, size = next(dist.rendezvous("env://"))
        ...     group = dist.ProcessGroup(store, rank, size)
        ...     gloo = dist.ProcessGroupGloo(store, rank, size)
        ...     group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        ...     return group.size()
        >>> simdist.run(main, world_size=2).values
        [2, 2]
    """

    is_bare = False

    def __init__(self, store: SimStore, rank: int, size: int) -> None:
        ProcessGroup.__init__(self, rank, size)
        self.parts = {}
        self._types: dict[str, Any] = {}  # backend types, by device; a device may have a type but no backend
        self._default: Any = _Type.UNDEFINED
        self._main: Any = None  # the first registered backend
        self._rank = rank
        self._size = size
        self._own_store = store
        self._calls_under_way = []
        self._name = self._description = ""
        self._bound = None

    def _set_default_backend(self, backend_type: object) -> None:
        if not isinstance(backend_type, _Type):
            raise said_by(ProcessGroup._set_default_backend, self, backend_type)
        self._default = backend_type

    def _register_backend(self, device: object, backend_type: object, backend: object = None) -> None:
        fits = isinstance(device, torch.device) and isinstance(backend_type, _Type)
        if not fits or not _is_backend(backend):
            raise said_by(ProcessGroup._register_backend, self, device, backend_type, backend)
        assert isinstance(device, torch.device)
        kind = device.type
        self._types[kind] = backend_type
        self.parts.pop(kind, None)
        # A second backend of a type is ignored: the first one serves this device as well.
        part: Any = self._part_of(backend_type) or backend
        if part is None:
            return
        self.parts[kind] = part
        if self._bound is not None:
            part.bound_device_id = self._bound
        if self._main is None:
            self._main = part
            if isinstance(part, GroupBackend):
                self._member, self._communicator, self._backend = part._member, part._communicator, part._backend
                self._arguments, self.options = part._arguments, part.options
        elif part is not self._main:
            self._distinguish(kind, part)

    # -- identity ------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        """Return the caller's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def name(self) -> str:
        """Return the name of the group's default backend type."""
        return str(self._default.name).lower()

    _get_backend_name = name

    def getBackendName(self) -> str:
        """Do the same as `GroupBackend.getBackendName`."""
        return f"simdist:{self.name()}"

    def get_group_store(self) -> SimStore:
        """Return the store that the group was made with."""
        return self._own_store

    def _get_backend(self, device: DeviceLike) -> GroupBackend:
        kind = torch.device(device).type
        if kind not in self._types:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        part = self._part_of(self._types[kind])
        if part is None:
            shown = chr(int(self._types[kind]))  # C++ prints the number as a character
            raise RuntimeError(f"Could not retrieve or create the backend {shown} for device type {kind}")
        return self.parts.setdefault(kind, part)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in reversed(self._types)]  # in the order of C++'s set

    @property
    def group_name(self) -> str:
        """The name of a backend: the group has no name of its own."""
        for part in reversed(self.parts.values()):
            return str(part.group_name)
        raise RuntimeError("ProcessGroup name not set")

    def getGroupName(self) -> str:
        """Return `group_name`; for C++."""
        return self.group_name

    def __repr__(self) -> str:
        held = ", ".join(f"{device}:{part.name()}" for device, part in self.parts.items()) or "no backend"
        return f"<simdist group of {held}, rank {self._rank} of {self._size}>"

    # -- calls of the default backend ----------------------------------------------------------------------------

    def _part_of(self, backend_type: object) -> GroupBackend | None:
        return next((part for kind, part in self.parts.items() if self._types[kind] == backend_type), None)

    def _default_part(self) -> GroupBackend:
        part = self._part_of(self._default)
        if part is None:
            raise RuntimeError(
                f"Could not find the default backend type {int(self._default)} for Process Group with name "
                f"{self.name()}."
            )
        return part

    def _counting_part(self) -> GroupBackend:
        if self._default not in _COUNTING:
            raise RuntimeError(f"ProcessGroup {self.name()} does not yet support sequence numbers.")
        return self._default_part()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._counting_part()._get_sequence_number_for_group())

    def _set_sequence_number_for_group(self) -> None:
        self._counting_part()._set_sequence_number_for_group()

    def _register_on_completion_hook(self, *args: object) -> NoReturn:
        self._default_part()._register_on_completion_hook(*args)
        raise AssertionError

    def _wait_for_pending_works(self) -> NoReturn:
        self._default_part()._wait_for_pending_works()
        raise AssertionError

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> object:
        """Pass the barrier to the backend of the options' device; by default, of the default type's device."""
        device = getattr(opts, "device", None)
        if device is None:
            device = "cuda" if self._default == _Type.NCCL else "cpu"
        part = self._get_backend(device)
        return part.barrier(opts) if timeout is None else part.barrier(opts, timeout)

    def _coalescing(self, device: DeviceLike | None) -> GroupBackend:
        return self._get_backend("cpu" if device is None else device)

    def _part_for(self, kind: str | None) -> GroupBackend:
        return self._get_backend("cpu" if kind is None else kind)


def _is_backend(value: object) -> bool:
    if isinstance(value, GroupBackend):
        return not isinstance(value, ComposedGroup)
    return value is None or isinstance(value, c10d_bindings.Backend)


def _made_on_ranks(original: Callable[..., object]) -> Callable[..., object]:
    def new(cls: type, *args: object, **kwargs: object) -> object:
        if cls is ProcessGroup and _asks_for_backends(*args, **kwargs):
            process = current_process()
            if process is not None and process.torch_state is not None and process.torch_state.making is None:
                return original(ComposedGroup)
        return original(cls)

    return new


def _asks_for_backends(store: object = None, rank: object = None, size: object = None, *more: object) -> bool:
    return isinstance(store, Store) and isinstance(rank, int) and isinstance(size, int) and not more


def install(patches: Patches) -> None:
    """Let `ProcessGroup` make groups that take simulated backends, on ranks."""
    patches.wrap(ProcessGroup, "__new__", _made_on_ranks)
