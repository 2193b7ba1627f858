"""The backends that torch knows: class attributes of `dist.Backend`. A rank may register its own.

A rank's own registration applies to this rank. A module's registration at its import applies to all ranks, in this
world and afterwards: the module is imported once, by the first rank that arrives there, and stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed.distributed_c10d as c10d

from simdist.errors import SimdistError
from simdist.process import Patches, current_process

__all__ = ["BackendTables"]

_TABLES = (
    "backend_list",
    "backend_capability",
    "backend_type_map",
    "_plugins",
    "default_device_backend_map",
)

Tables = dict[str, Any]  # attributes of `Backend`: the tables, and a name for each backend registered


class BackendTables:
    """Swaps the tables of ranks that have their own tables.

    Example:
        >>> tables = BackendTables()
        >>> tables.install(patches, {"sim": make_group}, default="gloo")
        >>> tables.load(None)               # what the running rank has registered, or None
        >>> patches.undo()
        >>> tables.uninstall()
    """

    def __init__(self) -> None:
        self.loaded: Tables | None = None  # the running rank's own tables, if it has any
        self._shared: Tables = {}
        self._own: list[Tables] = []  # the own tables of all ranks
        self._made: list[str] = []  # backends that torch does not know
        self._lasting: list[Callable[[], None]] = []  # registrations by modules at their import

    def install(self, patches: Patches, makers: Mapping[str, Callable[..., object]], *, default: str) -> None:
        """Add backends, given the functions that make their groups, and separate the registrations of ranks.

        Raises:
            SimdistError: there is already a backend of that name.
        """
        backend = c10d.Backend
        for name in makers:
            if name in backend.backend_list:
                raise SimdistError(f"a backend named {name!r} is registered already; simdist needs that name")
        patches.replace_all(backend, {name: getattr(backend, name).copy() for name in _TABLES})
        for name, make in makers.items():
            self._made.append(name.upper())
            backend.register_backend(name, make, devices=["cpu"])
        if default in makers:
            backend.default_device_backend_map["cpu"] = default
        elif "cpu" not in backend.default_device_backend_map:
            backend.default_device_backend_map["cpu"] = "gloo"
        self._shared = {name: getattr(backend, name) for name in _TABLES}
        patches.replace(backend, "register_backend", self._registering(backend.register_backend))

    def uninstall(self) -> None:
        """Remove added backends and the registrations of ranks. The patches are already undone."""
        for name in self._made:
            if hasattr(c10d.Backend, name):
                delattr(c10d.Backend, name)
        while self._lasting:
            self._lasting.pop(0)()

    def load(self, own: Tables | None) -> None:
        """Replace the current tables by a rank's own; None: by the shared ones."""
        if own is self.loaded:
            return
        backend = c10d.Backend
        for name in self.loaded or ():
            if name not in self._shared:
                delattr(backend, name)
        for name, value in {**self._shared, **(own or {})}.items():
            setattr(backend, name, value)
        self.loaded = own

    def _registering(self, original: Callable[..., None]) -> Callable[..., None]:
        def register(*args: object, **kwargs: object) -> None:
            process = current_process()
            if process is None or process.torch_state is None:
                original(*args, **kwargs)
                return
            state = process.torch_state
            if _is_importing():
                self._register_for_all(lambda: original(*args, **kwargs), state.backends)
                return
            if state.backends is None:
                state.backends = {**self._shared, **{name: self._shared[name].copy() for name in _TABLES}}
                self._own.append(state.backends)
                self.load(state.backends)
            self._register_for(state.backends, lambda: original(*args, **kwargs))

        return register

    def _register_for(self, tables: Tables, register: Callable[[], None]) -> None:
        known = set(vars(c10d.Backend))
        register()
        tables |= {name: value for name, value in vars(c10d.Backend).items() if name not in known}

    def _register_for_all(self, register: Callable[[], None], current: Tables | None) -> None:
        self._lasting.append(register)
        self.load(None)
        self._register_for(self._shared, register)
        for own in self._own:
            self.load(own)
            register()
        self.load(current)


def _is_importing() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and getattr(frame.f_globals.get("__spec__"), "_initializing", False):
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return False
