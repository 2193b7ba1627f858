"""Operators of torch: their schemas, their kernels, and ways to call them that skip the dispatcher's first keys.

torch/_ops.py has the Python side, torch/csrc/utils/python_dispatch.cpp the C++ one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch._ops import OperatorBase, OpOverloadPacket

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings, missing
from simdist.inside.torch._dispatch import DispatchKey, KeySet, has_kernel, kernel_library, key_set
from simdist.inside.torch._warnings import unwarned

__all__ = ["CPU", "OPERATORS", "SPARSE_CPU", "Argument", "Operator", "Replacements", "Schema", "all_operators"]
__all__ += ["below_autocast", "calling", "find_operator", "finds_kernel", "full_name", "has_composite_for_cpu"]
__all__ += ["negated_view", "no_deterministic_form", "operators_class", "operators_of_libraries"]
__all__ += ["operators_with_kernel", "redispatching", "schema_of", "takes_numbers_as_tensors"]

Kernel = Callable[..., Any]

OPERATORS: tuple[type, ...] = (OperatorBase, OpOverloadPacket)
"""The classes of operators in Python: with an overload or of higher order, and without an overload."""


class _Aliases(Protocol):
    """The memory that an argument or a result shares with others."""

    @property
    def is_write(self) -> bool:
        """True if it is written to."""
        ...


class Argument(Protocol):
    """An argument of an operator, or a result."""

    @property
    def name(self) -> str:
        """Its name; empty for most results."""
        ...

    @property
    def type(self) -> object:
        """Its type, whose text is as in a schema: "Tensor?"."""
        ...

    @property
    def kwarg_only(self) -> bool:
        """True if it is passed by keyword only."""
        ...

    @property
    def alias_info(self) -> _Aliases | None:
        """None if it shares no memory."""
        ...


class Schema(Protocol):
    """The signature of an operator."""

    @property
    def name(self) -> str:
        """Its name with the namespace, without the overload."""
        ...

    @property
    def overload_name(self) -> str:
        """The name of its overload; empty for the default one."""
        ...

    @property
    def arguments(self) -> Sequence[Argument]:
        """The arguments, in their order."""
        ...

    @property
    def returns(self) -> Sequence[Argument]:
        """The results."""
        ...


class Operator(Protocol):
    """One overload of an operator."""

    @property
    def tags(self) -> Sequence[torch.Tag]:
        """torch's tags of it."""
        ...

    @property
    def overloadpacket(self) -> OpOverloadPacket[..., object]:
        """All overloads as one callable, which takes the arguments of any of them."""
        ...

    @property
    def _schema(self) -> Schema: ...
    @property
    def _op(self) -> Kernel: ...
    @property
    def _op_dk(self) -> Kernel: ...
    @property
    def _handle(self) -> Any: ...

    def __hash__(self) -> int: ...

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call it."""
        ...


class Replacements:
    """Kernels of one namespace that take precedence over torch's own.

    They stay until they are destroyed, also if a rank has registered them: `torch.library.Library` would make a library
    of that rank, which ends with its world.
    """

    def __init__(self, space: str) -> None:
        self._library = kernel_library("IMPL", space, "")

    def impl(self, name: str, key: str, kernel: Kernel) -> None:
        """Register a kernel of an operator, named without its namespace, for a dispatch key."""
        with unwarned():
            self._library.impl(name, key, kernel)

    def destroy(self) -> None:
        """Unregister all of them."""
        self._library.reset()


# Namespaces in which torch itself has kernels for the CPU (2.11 to 2.15).
_OF_TORCH = frozenset(
    (
        *("aten", "c10d", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "prepacked", "quantization", "quantized"),
        *("_c10d_functional", "_quantized", "sparse", "symm_mem", "xnnpack"),
    )
)
operators_class: type = type(torch.ops)
"""The class of `torch.ops`, whose `load_library` loads a library of operators."""

CPU: KeySet = key_set(DispatchKey.CPU)
SPARSE_CPU: KeySet = key_set(DispatchKey.SparseCPU)
negated_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
"""A view of a tensor whose negation bit is the opposite of the tensor's."""


def find_operator(name: str) -> Operator:
    """The operator of a full name such as "aten::add.out".

    Raises:
        AttributeError: Python does not know it.
    """
    space, _, inside = name.partition("::")
    base, _, overload = inside.partition(".")
    found: Operator = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    return found


def full_name(op: Operator) -> str:
    """An operator's name with its namespace, and with its overload unless that is the default one."""
    return str(op).replace(".", "::", 1).removesuffix(".default")


def no_deterministic_form(label: str, *, warns: bool = False) -> str:
    """torch's message on results that can differ from run to run (aten/src/ATen/Context.cpp, 2.11 to 2.15)."""
    asked = "True, warn_only=True" if warns else "True"
    ways_out = (
        "You can "
        if warns
        else "You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if "
        "that's acceptable for your application. You can also "
    )
    return (
        f"{label} does not have a deterministic implementation, but you set "
        f"'torch.use_deterministic_algorithms({asked})'. {ways_out}file an issue at "
        "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
        "operation."
    )


def schema_of(op: Operator) -> Schema:
    """The signature of an operator."""
    return op._schema


def operators_with_kernel(key: str) -> list[str]:
    """The full names of the operators that have a kernel of their own for a dispatch key."""
    names: list[str] = core_bindings._dispatch_get_registrations_for_dispatch_key(key)
    return names


def operators_of_libraries(key: str) -> Iterable[str]:
    """The full names of the operators of other libraries that have a kernel in C++ for a dispatch key."""
    for name in operators_with_kernel(key):
        if name.partition("::")[0] not in _OF_TORCH and not _is_from_python(name, key):
            yield name


def _is_from_python(name: str, key: str) -> bool:
    """True if Python code registered the kernel: the dispatcher keeps the file and the line of each registration."""
    lines = core_bindings._dispatch_dump(name).splitlines()
    return any(line.startswith(f"{key}: registered at ") and ".py:" in line for line in lines)


def all_operators() -> Iterable[str]:
    """The full names of all operators."""
    names: Iterable[str] = core_bindings._dispatch_get_all_op_names()
    return names


def has_composite_for_cpu(name: str) -> bool:
    """True if the dispatcher has a kernel for the CPU, even if only one that calls other operators."""
    return finds_kernel(name, "CPU")


def finds_kernel(name: str, key: str) -> bool:
    """True if the dispatcher has something to call for a key, if only a composite kernel."""
    return bool(core_bindings._dispatch_has_computed_kernel_for_dispatch_key(name, key))


def takes_numbers_as_tensors(name: str) -> bool:
    """True if C++ turns numbers into tensors for this operator, named without a namespace."""
    return bool(core_bindings._should_allow_numbers_as_tensors(name))


def calling(op: Operator) -> Kernel:
    """An operator's C++ call, without what Python does around each call."""
    return op._op


def below_autocast(op: Operator) -> Kernel | None:
    """An operator's kernel for the CPU, if an autocast for the CPU would change its arguments; else None."""
    return functools.partial(op._op_dk, DispatchKey.CPU) if has_kernel(full_name(op), "AutocastCPU") else None


def redispatching(op: Operator) -> Kernel:
    """A function that calls an operator's kernel for a set of keys: `redispatching(op)(CPU, *args, **kwargs)`."""
    call: Kernel = op._handle.redispatch_boxed
    return call


@fact(
    "torch.operators",
    what="an operator has a schema and tags, and can be called below the keys that a call goes through",
    source="torch/_ops.py, OpOverload; torch/csrc/jit/python/init.cpp",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _operators_are_known() -> str:
    op = find_operator("aten::add.Tensor")
    names = [each.name for each in schema_of(op).arguments]
    tensor = torch.ones(2, device="cpu")
    if full_name(op) != "aten::add.Tensor" or names != ["self", "other", "alpha"]:
        return f"{op} has the arguments {names}"
    sums = [call(tensor, tensor).tolist() for call in (calling(op), functools.partial(redispatching(op), CPU))]
    if sums != [[2.0, 2.0], [2.0, 2.0]]:
        return f"it makes {sums} of ones"
    return "" if torch.Tag.pointwise in op.tags else f"it has the tags {op.tags}"


@fact(
    "torch.operators.kernels",
    what="the operators that have a kernel for a key are known by name, and kernels of a library go before them",
    source="torch/csrc/utils/python_dispatch.cpp",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _kernels_are_known() -> str:
    needed = ("_dispatch_get_all_op_names", "_should_allow_numbers_as_tensors", "_dispatch_dump")
    gone = missing(core_bindings, needed)
    if gone:
        return gone
    if "aten::add.out" not in operators_with_kernel("CPU") or not has_composite_for_cpu("aten::add.out"):
        return "the CPU has no kernel for aten::add.out"
    made = Replacements("aten")
    made.destroy()
    return ""
