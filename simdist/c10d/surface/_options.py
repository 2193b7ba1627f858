"""Light Python objects for the options of an all-reduce and a broadcast, made by torch's functions in a world.

`torch.distributed.all_reduce` makes an `AllreduceOptions` for each call and sets its attributes, and the group reads
them again. Each of these steps is a call of C++, and together they are a sixth of a small all-reduce. So on a rank the
function's code makes a Python object instead; the rest of the function stays. Options that a program makes itself are
torch's own (`dist.AllreduceOptions()`), and C++ methods always get torch's own.

Invariant: values that torch's class refuses are refused with its text, because `real` makes torch's object.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from types import CodeType, FunctionType
from typing import Any, ClassVar

import torch.distributed as dist

from simdist.c10d.surface._compat import REDUCE_NAMES, ProcessGroup
from simdist.inside.python import Make, Redirection, code_with, looks_up
from simdist.inside.torch import c10d_bindings, c10d_module
from simdist.process import Patches, current_runtime

__all__ = ["AllReduceOptions", "BroadcastOptions", "install", "real_options"]

# By the `id` of the enumeration's members, which live as long as torch. Hot: hashing a member is a call of C++.
_NAMES = {id(operation): name for operation, name in REDUCE_NAMES.items()}
_OPERATIONS = {name: operation for operation, name in REDUCE_NAMES.items()}


class _Options:
    """Light options; an attribute that is not set has torch's default."""

    of: ClassVar[Any]  # torch's class
    by: ClassVar[str]  # torch's function that makes these options
    timeout: timedelta
    _operation: object  # a reduction without a name
    asyncOp = True  # torch's name, like the others

    def real(self) -> Any:
        """Return torch's own object with the same values.

        Raises:
            TypeError: torch's class does not take a value.
        """
        made = self.of()
        for name, value in vars(self).items():
            if name == "reduction":
                made.reduceOp = self._operation if value is None else _OPERATIONS[value]
            elif name != "_operation":
                setattr(made, name, value)
        return made

    @property  # type: ignore[misc]  # of `object`
    def __class__(self) -> type:
        return self.of  # type: ignore[no-any-return]  # for `isinstance`


class AllReduceOptions(_Options):
    """`dist.AllreduceOptions`; `reduction` is the name of the operation, None if it has none."""

    of = dist.AllreduceOptions
    by = "all_reduce"
    timeout = of().timeout
    reduction: str | None = "sum"

    @property
    def reduceOp(self) -> object:
        """The operation as torch's object."""
        return self.real().reduceOp

    @reduceOp.setter
    def reduceOp(self, operation: object) -> None:
        self.reduction = name = _NAMES.get(id(operation))
        if name is None:
            self._operation = operation
            self.real()


class BroadcastOptions(_Options):
    """`dist.BroadcastOptions`."""

    of = dist.BroadcastOptions
    by = "broadcast"
    timeout = of().timeout
    rootRank = 0
    rootTensor = 0


def real_options(given: Any) -> Any:
    """Return torch's own options for light ones, and anything else unchanged."""
    return given.real() if type(given) in _LIGHT else given


_LIGHT = (AllReduceOptions, BroadcastOptions)


def install(patches: Patches) -> None:
    """Let torch's functions make light options, and C++ methods take them."""
    patches.switch_on(_redirections())
    for owner in (ProcessGroup, c10d_bindings.Backend):
        for name, make in _TAKING.items():
            patches.wrap(owner, name, make)


@functools.cache
def _redirections() -> list[Redirection]:
    made = []
    for light in _LIGHT:
        function = inspect.unwrap(getattr(c10d_module, light.by))
        if isinstance(function, FunctionType) and looks_up(function, light.of.__name__):
            with contextlib.suppress(OSError):  # without source, the function goes on making torch's own
                made.append(Redirection.to_code(function, _making_light))
    return made


def _making_light(function: FunctionType) -> CodeType:
    return code_with(function, {light.of.__name__: _maker(light) for light in _LIGHT if light.by == function.__name__})


def _maker(light: type[_Options]) -> Callable[[], object]:
    """Return a function that makes light objects in a world; afterwards torch's own, for host threads that call C++."""

    def make() -> object:
        return light.of() if current_runtime() is None else light()

    return make


def _taking(name: str) -> Make:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        def call(self: object, *args: object, **kwargs: object) -> object:
            return original(self, *map(real_options, args), **kwargs)

        # By this name and the caller's, pybind11 recognizes that this is no method of a subclass.
        call.__code__ = call.__code__.replace(co_name=name)
        return functools.update_wrapper(call, original)

    return make


_TAKING = {name: _taking(name) for name in ("allreduce", "broadcast")}
