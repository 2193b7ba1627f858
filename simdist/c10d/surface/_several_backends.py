"""One group with a backend for each type of device: `cpu:gloo,cuda:nccl`.

Torch has a C++ group that holds several backends. Here the group and its parts are Python groups. A call goes to the
part for the device of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from simdist.c10d.calls import METHODS
from simdist.c10d.surface._compat import ProcessGroup
from simdist.c10d.surface._identity import GroupBackend
from simdist.c10d.surface._modes import visible

if TYPE_CHECKING:
    from datetime import timedelta

    from simdist.c10d.surface._identity import DeviceLike

__all__ = ["SeveralBackends"]


class SeveralBackends(GroupBackend):
    """A rank's handle on a group with `parts` by type of device; NCCL's part answers for the whole group.

    Example:
        >>> def main():
        ...     dist.init_process_group("cpu:gloo,cuda:nccl")
        ...     return [each.type for each in dist.group.WORLD._device_types]
        >>> simdist.run(main, world_size=2, backend="nccl").values
        [['cpu', 'cuda'], ['cpu', 'cuda']]
    """

    passes_for = ""  # while torch makes the group: the backend that torch will ask it for next

    def __init__(self, parts: Mapping[str, GroupBackend], bound: torch.device | None) -> None:
        self.parts = dict(parts)
        # Torch's default backend of several: NCCL, if it is among them (`_new_process_group_helper` of 2.13).
        ordered = list(self.parts.values())
        self._main = next((part for part in ordered if part.name() == "nccl"), ordered[-1])
        ProcessGroup.__init__(self, self._main.rank(), self._main.size())
        self._member = self._main._member
        self._communicator = self._member.communicator
        self._backend = self._communicator.backend
        self._store = self._main.get_group_store()
        self._size = self._main.size()
        self._calls_under_way = []
        self._name = self._description = ""
        self.options = self._main.options
        self._bound = bound
        for device, part in self.parts.items():
            if part is not self._main:
                self._distinguish(device, part)

    def _distinguish(self, device: str, part: GroupBackend) -> None:
        """Name a part after the main one: both count their own calls, and a log would mix them up."""
        part._member.communicator.name = f"{self._communicator.name}/{device}"

    @property
    def main_part(self) -> GroupBackend:
        """Torch's default backend of the group."""
        return self._main

    @property
    def supports_splitting(self) -> bool:  # type: ignore[override]
        """True if the main part supports splitting."""
        return bool(self._main.supports_splitting)

    def _get_backend(self, device: DeviceLike) -> GroupBackend:
        kind = torch.device(device).type
        part = self.parts.get(kind)
        if part is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        return part

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.parts]

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device that the program passed to `init_process_group`."""
        return self._bound

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound = device

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        for part in self.parts.values():
            part._set_group_name(name)

    setGroupName = _set_group_name

    def _set_group_desc(self, description: str) -> None:
        self._description = str(description)
        self.passes_for = ""  # torch's last call before it registers the group
        for part in self.parts.values():
            part._set_group_desc(description)

    setGroupDesc = _set_group_desc

    def _get_sequence_number_for_group(self) -> int:
        return int(self._main._get_sequence_number_for_group())

    def _set_sequence_number_for_group(self) -> None:
        for part in self.parts.values():
            part._set_sequence_number_for_group()

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set the timeout of all parts."""
        for part in self.parts.values():
            part.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> object:
        """Pass the barrier to the part of the options' device; by default, to the main part."""
        device = getattr(opts, "device", None)
        part = self._main if device is None else self._get_backend(device)
        return part.barrier(opts) if timeout is None else part.barrier(opts, timeout)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> object:
        """Pass the barrier to the part for the CPU."""
        return self._get_backend("cpu").monitored_barrier(timeout, wait_all_ranks)

    def eager_connect_single_device(self, device: DeviceLike) -> None:
        """Connect the device's part."""
        self._get_backend(device).eager_connect_single_device(device)

    def _start_coalescing(self, device_type: DeviceLike | None = None) -> object:
        return self._coalescing(device_type)._start_coalescing(device_type)

    def _end_coalescing(self, device_type: DeviceLike | None = None) -> object:
        return self._coalescing(device_type)._end_coalescing(device_type)

    def _coalescing(self, device: DeviceLike | None) -> GroupBackend:
        return self._main if device is None else self._get_backend(device)

    def _part_for(self, kind: str | None) -> GroupBackend:
        """Return the part for tensors of a type of device; `kind` is None if a call has no tensors."""
        return self._main if kind is None else self._get_backend(kind)

    def shutdown(self) -> None:
        """Shut all parts down."""
        for part in self.parts.values():
            part.shutdown()

    def abort(self) -> None:
        """Abort all parts."""
        for part in self.parts.values():
            part.abort()

    def leave(self) -> None:
        """Leave all parts."""
        for part in self.parts.values():
            part.leave()

    # Not `__getattr__`: Dynamo compiles no method of a group whose class has that (2.13).
    def __getattribute__(self, name: str) -> Any:
        try:
            return super().__getattribute__(name)
        except AttributeError:
            main = super().__getattribute__("__dict__").get("_main")
            if main is None or name.startswith("__"):
                raise
            return getattr(main, name)


def _device_of(value: object) -> str | None:
    """Return the type of device of the first tensor in a nested value; None if there is none."""
    if isinstance(value, torch.Tensor):
        return value.device.type
    if isinstance(value, (list, tuple)):
        return next((found for each in value if (found := _device_of(each)) is not None), None)
    return None


def _forwarding(name: str) -> Callable[..., object]:
    def forward(self: SeveralBackends, *args: object, **kwargs: object) -> object:
        return getattr(self._part_for(_device_of((*args, *kwargs.values()))), name)(*args, **kwargs)

    forward.__name__ = name
    forward.__doc__ = "Of the part of the tensors' device."
    return forward


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SeveralBackends, *args: object, **kwargs: object) -> NoReturn:
        getattr(self._main, name)(*args, **kwargs)
        raise AssertionError(name)

    return refuse


for _name in (name for name, row in METHODS.items() if row.tensors):
    setattr(SeveralBackends, _name, _forwarding(_name))
for _name in ("_register_on_completion_hook", "_wait_for_pending_works"):
    setattr(SeveralBackends, _name, _refusing(_name))
visible(SeveralBackends)
