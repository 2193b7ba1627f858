"""The C++ side of `torch.compile` and of compiled backward passes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings, missing

__all__ = ["FakeTensorMode", "InductorWrapper", "backward_compilers", "compile_without_inductor"]
__all__ += ["frame_evaluation", "guard_pointer"]

frame_evaluation: ModuleType = core_bindings._dynamo.eval_frame
backward_compilers: ModuleType = core_bindings._dynamo.compiled_autograd

InductorWrapper = torch._TorchCompileInductorWrapper
"""The function that `torch.compile` calls if its backend is Inductor."""


def compile_without_inductor(model: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
    """Compile a graph up to Inductor, partitioner included; torch's own kernels run the result."""
    from torch._dynamo.backends.debugging import aot_eager  # takes seconds to load

    return aot_eager(model, inputs)


def guard_pointer(name: str) -> int:
    """The address of a C++ function that Inductor's code calls, found by the name of this environment variable."""
    return int(core_bindings._dynamo.guards.__dict__[name.lower()])


@fact(
    "torch.compiler",
    what="compiled code is kept by regions, and the compiler of a backward pass can be exchanged",
    source="torch/csrc/dynamo/eval_frame.c, python_compiled_autograd.cpp",
    seen="2.13, 2.14",
    feature="torch.compile on ranks: with an older torch, ranks run what they compile as it is",
)
def _compiler_is_known() -> str:
    regions = ("_get_cache_entries_for_region", "get_eval_frame_isolate_recompiles_id", "reset_code")
    return missing(frame_evaluation, regions) or missing(backward_compilers, ("set_autograd_compiler",))


@fact(
    "torch.compiler.wrapper",
    what="`torch.compile` calls Inductor by a class, and a key distinguishes fake tensors",
    source="torch/__init__.py, _TorchCompileInductorWrapper; torch/_subclasses/fake_tensor.py",
    seen="2.11 to 2.15",
    feature="torch.compile for virtual devices",
)
def _wrapper_is_known() -> str:
    return missing(InductorWrapper, ("__call__",)) or missing(FakeTensorMode, ("_prep_args_for_hash",))
