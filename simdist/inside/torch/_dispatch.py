"""The dispatcher: keys of tensors, modes of a thread, kernels of operators.

torch/csrc/utils/python_dispatch.cpp has the bindings, c10/core/DispatchKey.h the keys.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol, cast

import torch
from torch._library import custom_ops, simple_registry
from torch._library.fake_impl import FakeImplHolder
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings, missing

__all__ = ["BELOW_TORCH", "DispatchKey", "KernelLibrary", "KeySet", "compiled_kernel", "count_dispatch_modes"]
__all__ += ["count_function_modes", "forget_operators", "functional_operators", "has_kernel", "keep_function"]
__all__ += ["kernel_library", "key_set", "keys_of", "modes_module", "operator_tables", "pop_function_mode"]
__all__ += ["push_function_mode", "strict_fake_kernels", "with_inference", "without_functions", "without_modes"]


class KeySet(Protocol):
    """A set of dispatch keys."""

    def has(self, key: object) -> bool:
        """True if the key is in it."""
        ...

    def remove(self, key: object) -> KeySet:
        """The set without a key."""
        ...

    def raw_repr(self) -> int:
        """The set as a number, a bit for each backend and each function of keys."""
        ...


class KernelLibrary(Protocol):
    """Kernels that are registered together; unlike a `torch.library.Library` it is made in almost no time."""

    def impl(self, name: str, key: str, kernel: Callable[..., object], with_keyset: bool = False, /) -> object:
        """Register a kernel of an operator for a dispatch key; `with_keyset`: its first argument is the keys left."""
        ...

    def define(self, schema: str, alias_analysis: str, tags: object, /) -> object:
        """Define an operator; returns its name."""
        ...

    def fallback(self, key: str, kernel: Callable[..., object], with_keyset: bool, /) -> object:
        """Register a kernel for all operators that have none for a dispatch key."""
        ...

    def register_ad_inplace_or_view_fallback(self, name: str, /) -> object:
        """Let an operator skip the key of views and changes in place."""
        ...

    def impl_with_aoti_compile(self, namespace: str, name: str, key: str, /) -> object:
        """Register a kernel that is compiled when it is first called."""
        ...

    def reset(self) -> None:
        """Unregister all of them."""
        ...


DispatchKey = torch._C.DispatchKey
key_set = cast("Callable[[object], KeySet]", torch._C.DispatchKeySet)
"""The set of one key."""

BELOW_TORCH = key_set(DispatchKey.PrivateUse1)
"""A key for which nobody registers anything over torch's own kernel of a distributed operator."""

keys_of: Callable[[torch.Tensor], KeySet] = core_bindings._dispatch_keys

count_dispatch_modes: Callable[[], int] = core_bindings._len_torch_dispatch_stack
"""How many dispatch modes the calling thread is in."""

count_function_modes: Callable[[], int] = core_bindings._len_torch_function_stack

pop_function_mode: Callable[[], TorchFunctionMode] = core_bindings._pop_torch_function_stack
"""Take the innermost function mode off the calling thread."""

push_function_mode: Callable[[object], None] = core_bindings._push_on_torch_function_stack

without_functions: Callable[[], AbstractContextManager[object]] = core_bindings.DisableTorchFunction
"""Inside, no `__torch_function__` is called."""

with_inference: Callable[[bool], AbstractContextManager[object]] = core_bindings._InferenceMode

keep_function: Callable[..., object] = core_bindings._disabled_torch_function_impl
"""The `__torch_function__` of a subclass whose operations give ordinary tensors."""

_count_before_dispatch: Callable[[], int] = torch._ops._len_torch_dispatch_stack_pre_dispatch
_AS_BEFORE = contextlib.nullcontext()


def without_modes() -> AbstractContextManager[object]:
    """A context in which the calling thread is in none of its dispatch modes.

    Torch's function for that imports a compiler, and takes 20 µs even without modes.
    """
    if count_dispatch_modes() or _count_before_dispatch():
        modes: AbstractContextManager[object] = _python_dispatch._disable_current_modes()
        return modes
    return _AS_BEFORE


modes_module = _python_dispatch
functional_operators: ModuleType = torch.ops._c10d_functional
"""The operators behind the functional collectives."""

kernel_library: Callable[[str, str, str], KernelLibrary] = core_bindings._dispatch_library
"""`kernel_library(kind, space, key)`; `kind` is "IMPL", "DEF" or "FRAGMENT"."""


def has_kernel(name: str, key: object = None) -> bool:
    """True if an operator exists; with a key, if it has a kernel for that key."""
    if key is None:
        return bool(core_bindings._dispatch_has_kernel(name))
    return bool(core_bindings._dispatch_has_kernel_for_dispatch_key(name, key))


def compiled_kernel(name: str, key: object) -> Callable[..., object]:
    """The kernel that the dispatcher would take for a key, fallbacks and composites included."""
    kernel: Callable[..., object] = core_bindings._dispatch_get_computed_kernel_for_dispatch_key(name, key)
    return kernel


def forget_operators(names: Sequence[str]) -> None:
    """Have `torch.ops` look these operators up again. torch has a function for that since 2.13."""
    library: Any = torch.library
    forget = getattr(library, "_clear_torch_ops_cache", None)
    if forget is not None:
        forget(names)
        return
    for name in names:
        space, _, rest = name.partition("::")
        base = rest.partition(".")[0]
        namespace: Any = getattr(torch.ops, space, None)
        if namespace is not None and base in vars(namespace):
            delattr(namespace, base)
            namespace._dir.remove(base)


def strict_fake_kernels() -> type | None:
    """The class whose `register` refuses a second kernel for fake tensors by default, as in torch 2.11 and 2.12."""
    default = inspect.signature(FakeImplHolder.register).parameters["allow_override"].default
    return None if default else FakeImplHolder


def operator_tables() -> tuple[object, ...]:
    """The tables in which Python keeps the operators and kernels that programs have defined."""
    library: Any = torch.library
    return (
        library._impls,
        library._defs,
        library._keep_alive,
        vars(custom_ops)["OPDEF_TO_LIB"],
        vars(custom_ops)["OPDEFS"],
        simple_registry.singleton._data,
    )


@fact(
    "torch.dispatcher.keys",
    what="a tensor's dispatch keys can be read, and a dense one's are those of its device and of autograd",
    source="torch/csrc/utils/python_dispatch.cpp, _dispatch_keys; c10/core/DispatchKeySet.h",
    seen="2.13, 2.14",
    feature="tensors without memory of their own are not recognised: no world starts",
)
def _keys_are_known() -> str:
    keys = keys_of(torch.zeros(1))
    if not (keys.has(DispatchKey.CPU) and keys.has(DispatchKey.AutogradCPU)):
        return f"a dense tensor of the CPU has {keys}"
    odd = keys_of(torch.zeros(1, device="meta"))
    return "" if odd.raw_repr() != keys.raw_repr() else "a meta tensor has the keys of a dense one"


@fact(
    "torch.dispatcher.modes",
    what="the numbers of the modes that a thread is in can be asked, and modes left for a while",
    source="torch/csrc/autograd/init.cpp, _len_torch_dispatch_stack; torch/utils/_python_dispatch.py",
    seen="2.13, 2.14",
    feature="collectives under dispatch modes (make_fx, FlopCounterMode, CommDebugMode)",
)
def _modes_are_known() -> str:
    mode: Any = _python_dispatch.TorchDispatchMode
    with mode():
        if count_dispatch_modes() != 1:
            return f"inside of one mode there are {count_dispatch_modes()}"
        with without_modes():
            if count_dispatch_modes():
                return "the modes are not left"
    return "" if count_dispatch_modes() == count_function_modes() == 0 else "there are modes outside of all"


@fact(
    "torch.dispatcher.kernels",
    what="kernels can be registered and taken back, and the kernel of an operator be asked for",
    source="torch/csrc/utils/python_dispatch.cpp",
    seen="2.13, 2.14",
    feature="functional collectives; operators that ranks define",
)
def _kernels_are_known() -> str:
    names = ("_dispatch_has_kernel", "_dispatch_has_kernel_for_dispatch_key")
    gone = missing(core_bindings, (*names, "_dispatch_get_computed_kernel_for_dispatch_key"))
    if gone or len(operator_tables()) != 6:
        return gone
    library = kernel_library("FRAGMENT", "simdist_probe", "")
    library.reset()
    return ""
