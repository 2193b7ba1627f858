"""Operators that ranks define (`torch.library`): each rank has its own, under one name.

C++ has one table of operators and kernels for the process, and refuses duplicates. So equal definitions by several
ranks share one operator, which lives until the last of these ranks releases it, or the world ends. Their registrations
for a dispatch key share one kernel, which calls the function of the running rank. A rank without a function for an
operator that existed before gets the original kernel. Torch's tables in Python are a slot.

Definitions by a shared module at its import apply to all ranks, as without simdist.

In doubt: a rank that has not defined an operator still finds another rank's. Fallbacks for a whole dispatch key apply
to all ranks.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import operator_schemas

from simdist.c10d.surface.state._registries import Registry
from simdist.errors import UnsupportedError
from simdist.inside.torch import (
    compiled_kernel,
    core_bindings,
    forget_operators,
    has_kernel,
    kernel_library,
    operator_tables,
    strict_fake_kernels,
    unwarned,
)
from simdist.process import Patches, Runtime, SimProcess, current_process, current_runtime, imported_for_all

if TYPE_CHECKING:
    from simdist.inside.torch import KernelLibrary

__all__ = ["install"]

_IN_PYTHON = Registry("operators", operator_tables())
_library = torch.library
_make_real = kernel_library


class _Operator:
    """An operator that ranks have defined."""

    def __init__(self, said: tuple[str, str, object], real: KernelLibrary, name: object) -> None:
        self.said = said  # schema, aliases and tags
        self.real = real  # the library that holds only this operator
        self.name = name  # the result of its definition
        self.owners: dict[SimProcess, _RanksLibrary] = {}


class _Kernel:
    """The kernel of one operator for one dispatch key."""

    def __init__(self, before: Any) -> None:
        self.real: KernelLibrary
        self.warnings: list[str] = []  # what C++ shows a process that registers it
        # The last one of each rank counts.
        self.functions: dict[SimProcess, list[tuple[_RanksLibrary, Callable[..., object], bool]]] = {}
        self._before = before  # the original kernel; None for an operator of ranks

    def __call__(self, keys: object, *args: object, **kwargs: object) -> object:
        process: Any = current_process()
        own = self.functions.get(process)
        if own is None:
            if self._before is not None:
                return self._before.call_boxed(keys, *args, **kwargs)
            own = next(iter(self.functions.values()))
        _, function, with_keys = own[-1]
        return function(keys, *args, **kwargs) if with_keys else function(*args, **kwargs)


class _Namespace:
    """A namespace that ranks define; each rank may have only one such library at a time."""

    def __init__(self, real: KernelLibrary) -> None:
        self.real = real
        self.owners: dict[SimProcess, _RanksLibrary] = {}


class _Operators:
    """All operators and kernels of one world's ranks, by full names."""

    def __init__(self) -> None:
        self.operators: dict[str, _Operator] = {}
        self.kernels: dict[tuple[str, str], _Kernel] = {}
        self.namespaces: dict[str, _Namespace] = {}
        self.others: list[KernelLibrary] = []
        self.libraries: list[_RanksLibrary] = []

    def end(self) -> None:
        """Undefine everything. Torch keeps kernels and libraries that ended, so these forget the world."""
        names = list(self.operators)
        held: list[_Operator | _Kernel] = [*self.kernels.values(), *self.operators.values()]
        for real in (
            *(each.real for each in held),
            *self.others,
            *(each.real for each in self.namespaces.values()),
        ):
            real.reset()
        for kernel in self.kernels.values():
            kernel.functions.clear()
        for library in self.libraries:
            library.forget()
        self.libraries.clear()
        tables: tuple[dict[Any, Any], ...] = self.operators, self.kernels, self.namespaces
        for table in tables:
            table.clear()
        self.others.clear()
        _forget(names)


def _forget(names: list[str]) -> None:
    """Remove undefined operators from Python's caches."""
    forget_operators(names)
    cache: dict[object, object] = vars(operator_schemas)["_SCHEMA_TO_SIGNATURE_CACHE"]
    for name in names:
        base, _, overload = name.partition(".")
        cache.pop((base, overload), None)


class _RanksLibrary:
    """A rank's stand-in for the C++ object of a `torch.library.Library`."""

    def __init__(self, world: _Operators, process: SimProcess, arguments: tuple[str, ...]) -> None:
        self._world = world
        self._process = process
        world.libraries.append(self)
        self._others: list[KernelLibrary] = []  # with what is registered for all ranks
        kind, self._namespace, *self._where = arguments
        self._kind = "FRAGMENT" if kind == "DEF" else kind
        if kind == "DEF":
            known = world.namespaces.get(self._namespace)
            if known is None or process in known.owners:  # torch refuses a second one, and a namespace of the host
                known = world.namespaces[self._namespace] = _Namespace(_make_real("DEF", *arguments[1:]))
            known.owners[process] = self

    def forget(self) -> None:
        """Refer to no process any more: the world is over, and its tables are empty."""
        del self._process

    def _real(self) -> KernelLibrary:
        return _make_real(self._kind, self._namespace, *self._where)

    def _full(self, name: str) -> str:
        return name if "::" in name else f"{self._namespace}::{name}"

    def define(self, schema: str, alias_analysis: str = "", tags: object = ()) -> object:
        name = self._full(schema.partition("(")[0].strip())
        said = schema, alias_analysis, tags
        known = self._world.operators.get(name)
        if known is None or self._process in known.owners:  # for a second definition C++ raises
            real = self._real()
            known = self._world.operators[name] = _Operator(said, real, real.define(*said))
        elif known.said != said:
            raise UnsupportedError(
                f"rank {self._process.rank} defines the operator {name} as {schema!r}, and another rank as "
                f"{known.said[0]!r}: ranks share torch's table of operators; use names of their own"
            )
        known.owners[self._process] = self
        return known.name

    def impl(self, name: str, dispatch_key: str, function: Callable[..., object], with_keyset: bool = False) -> None:
        name = self._full(name)
        kernel = self._world.kernels.get((name, dispatch_key))
        if function is _library.fallthrough_kernel:
            self._keep(lambda real: real.impl(name, dispatch_key, function, with_keyset))
            return
        if kernel is None:
            kernel = _Kernel(None if name in self._world.operators else _kernel_before(name, dispatch_key))
            kernel.real = self._real()
            with unwarned() as kernel.warnings:
                kernel.real.impl(name, dispatch_key, functools.wraps(function)(_calling(kernel)), True)
            self._world.kernels[name, dispatch_key] = kernel
        kernel.functions.setdefault(self._process, []).append((self, function, with_keyset))
        for text in kernel.warnings:
            warnings.warn(text, UserWarning, stacklevel=2)

    def fallback(self, dispatch_key: str, function: Callable[..., object], with_keyset: bool = False) -> None:
        self._keep(lambda real: real.fallback(dispatch_key, function, with_keyset))

    def register_ad_inplace_or_view_fallback(self, name: str) -> None:
        self._keep(lambda real: real.register_ad_inplace_or_view_fallback(name))

    def impl_with_aoti_compile(self, namespace: str, name: str, dispatch_key: str) -> None:
        self._keep(lambda real: real.impl_with_aoti_compile(namespace, name, dispatch_key))

    def _keep(self, act: Callable[[KernelLibrary], object]) -> None:
        real = self._real()
        act(real)
        self._others.append(real)
        self._world.others.append(real)

    def reset(self) -> None:
        """Release this library's definitions; the last owner undefines them."""
        world = self._world
        for real in self._others:
            if real in world.others:  # the world has not ended
                world.others.remove(real)
                real.reset()
        self._others.clear()
        for key, kernel in list(world.kernels.items()):
            own = kernel.functions.get(self._process, [])
            left = [each for each in own if each[0] is not self]
            if left:
                kernel.functions[self._process] = left
            elif own:
                del kernel.functions[self._process]
                if not kernel.functions:
                    world.kernels.pop(key).real.reset()
        for name, operator in list(world.operators.items()):
            if operator.owners.get(self._process) is self:
                del operator.owners[self._process]
                if not operator.owners:
                    world.operators.pop(name).real.reset()
                    _forget([name])
        space = world.namespaces.get(self._namespace)
        if space is not None and space.owners.get(self._process) is self:
            del space.owners[self._process]
            if not space.owners:
                world.namespaces.pop(self._namespace).real.reset()


def _calling(kernel: _Kernel) -> Callable[..., object]:
    def call(keys: object, *args: object, **kwargs: object) -> object:
        return kernel(keys, *args, **kwargs)

    return call


def _kernel_before(name: str, dispatch_key: str) -> Any:
    if not has_kernel(name, dispatch_key):
        return None
    return compiled_kernel(name, dispatch_key)


def _making(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def make(*arguments: str) -> object:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None or imported_for_all(sys._getframe(1)):
            return original(*arguments)
        return _RanksLibrary(_operators_of(runtime), process, arguments)

    return make


def _operators_of(runtime: Runtime) -> _Operators:
    found = runtime.extras.get(_Operators)
    if found is None:
        found = runtime.extras[_Operators] = _Operators()
        runtime.patches.on_undo(found.end)
    runtime.separate(_IN_PYTHON.slot)
    return found


def _of_ranks(original: Callable[..., object]) -> Callable[..., object]:
    """Let a rank's kernel for fake tensors replace another rank's, which the dispatcher still calls on that rank."""

    @functools.wraps(original)
    def register(holder: Any, *args: object, allow_override: bool = False, **kwargs: object) -> object:
        runtime = current_runtime()
        world = None if runtime is None else runtime.extras.get(_Operators)
        others = holder.kernel is None and world is not None and (holder.qualname, "Meta") in world.kernels
        return original(holder, *args, allow_override=allow_override or others, **kwargs)

    return register


def install(patches: Patches) -> None:
    """Let ranks define operators."""
    patches.wrap(core_bindings, "_dispatch_library", _making)
    strict = strict_fake_kernels()
    if strict is not None:
        patches.wrap(strict, "register", _of_ranks)
