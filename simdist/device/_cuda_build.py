"""Support for a torch built for CUDA: its own kernels, guard, hooks and bindings are replaced, and put back.

A CPU build leaves the places empty that virtual devices take. A CUDA build has something in each of them that calls the
driver, so it is replaced for as long as there are virtual devices, and put back afterwards:

- *Kernels.* `others` has one for every operator that only a CUDA build has kernels for. Where the CPU's kernel calls
  operators one by one, it is called with the tensors of the device, as in a CPU build; where torch's compiler can
  decompose the operator, its parts are called. All other operators are refused by their names.
- *Hooks and DDP's timer*, see `simdist.inside.torch`: C++ takes the same paths in both builds.
- *Functions of `torch._C`* that no virtual device has are refused by their names.

Tensors can outlive their world, and are read with the kernels and the guard of virtual devices. `Tenancy` keeps both
until the last of these tensors is gone; CUDA can't begin before.

In doubt: real GPUs are never asked anything. Their number is read from /dev, because autograd's engine counts devices
once per process, and a program that uses its GPU after a world needs the right count. In WSL, /dev does not show GPUs:
such a program must run one backward pass before its first world.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch

from simdist.device._memory import Account
from simdist.errors import UnsupportedError
from simdist.inside.torch import (
    CPU,
    begin_cuda,
    cuda_beginning,
    cudnn_bindings,
    decompositions,
    exchange_beginning,
    find_operator,
    functions_of_driver,
    has_composite_for_cpu,
    operators_with_kernel,
    physical_gpus,
    redispatching,
)

__all__ = ["Tenancy", "cudnn_versions", "early", "others", "refused_bindings", "refusing", "require_unused", "tenancy"]

Kernel = Callable[..., object]


def require_unused() -> None:
    """Refuse a torch for other GPUs, and one that has begun to use a GPU. Called outside worlds.

    Raises:
        UnsupportedError: either is the case.
    """
    if torch.version.hip is not None:
        raise UnsupportedError(
            "virtual devices take the place of CUDA's, which this torch, built for ROCm, uses for its own; a world "
            "with devices_per_host needs a build of torch for CUDA or for the CPU"
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UnsupportedError(
            "this process has begun to use CUDA, and virtual devices take its place; run the world in a process of its "
            "own, or before anything is done on the GPU"
        )


# -- kernels ---------------------------------------------------------------------------------------------------------

_HINTS = (  # by how the names begin
    ("_scaled_dot_product", "torch.nn.functional.scaled_dot_product_attention chooses one that there is"),
    ("_cudnn_attention", "torch.nn.functional.scaled_dot_product_attention chooses one that there is"),
    ("_flash_attention", "torch.nn.functional.scaled_dot_product_attention chooses one that there is"),
    ("_efficient_attention", "torch.nn.functional.scaled_dot_product_attention chooses one that there is"),
    ("_triton", "torch.nn.functional.scaled_dot_product_attention chooses one that there is"),
    ("cudnn_convolution", "torch.convolution does the same"),
    ("miopen_convolution", "torch.convolution does the same"),
    ("_conv_depthwise", "torch.convolution does the same"),
    ("conv_depthwise", "torch.convolution does the same"),
    ("cudnn_batch_norm", "torch.native_batch_norm does the same"),
    ("miopen_batch_norm", "torch.native_batch_norm does the same"),
    ("_cudnn_rnn", "torch.nn.LSTM and torch.nn.GRU choose kernels that there are"),
    ("miopen_rnn", "torch.nn.LSTM and torch.nn.GRU choose kernels that there are"),
    ("_cudnn_ctc_loss", "torch.nn.functional.ctc_loss chooses one that there is"),
    ("miopen_ctc_loss", "torch.nn.functional.ctc_loss chooses one that there is"),
    ("cudnn_grid_sampler", "torch.nn.functional.grid_sample does the same"),
    ("cudnn_affine_grid", "torch.nn.functional.affine_grid does the same"),
    ("_fused_dropout", "torch.native_dropout does the same"),
    ("_sparse_semi_structured", "multiply by the dense matrix"),
    ("_cslt", "multiply by the dense matrix"),
)
_TENSORS = {  # of dispatch keys of tensors that no virtual device has
    "SparseCsrCUDA": "compressed sparse tensors; use sparse ones by coordinates (torch.sparse_coo), or dense ones",
    "QuantizedCUDA": "quantized tensors; quantize on the CPU",
    "NestedTensorCUDA": "nested tensors in torch.strided; make them with layout=torch.jagged, or on the CPU",
}
# A CPU build has the same kernels of these.
_AS_ELSEWHERE = ("c10d",)


def others(ours: set[str]) -> Iterator[tuple[str, str, Kernel]]:
    """Yield dispatch key, operator and replacement, where only a CUDA build has a kernel and `ours` has none."""
    for name in operators_with_kernel("CUDA"):
        space, _, inside = name.partition("::")
        if name in ours or space in _AS_ELSEWHERE:
            continue
        if has_composite_for_cpu(name):
            yield "CUDA", name, _by_composite(name)
        elif (decomposed := _decomposed(name)) is not None:
            yield "CUDA", name, decomposed
        else:
            hint = next((hint for begin, hint in _HINTS if inside.startswith(begin)), "")
            yield "CUDA", name, refusing(f"{name} has a kernel on real GPUs only", hint)
    for key, what in _TENSORS.items():
        for name in operators_with_kernel(key):
            yield key, name, refusing(f"{name}: virtual devices have no {what}")


def _by_composite(name: str) -> Kernel:
    """Return the CPU's kernel, which calls operators one by one, for the device's tensors as they are."""
    calls: list[Kernel] = []

    def kernel(*args: object, **kwargs: object) -> object:
        if not calls:
            calls.append(redispatching(find_operator(name)))
        return calls[0](CPU, *args, **kwargs)

    return kernel


def _decomposed(name: str) -> Kernel | None:
    """Return the operator as torch's compiler takes it apart, into operators that a device has; None if it can't."""
    try:
        operator = find_operator(name)
    except AttributeError:
        return None  # Python does not know the name
    found: Kernel | None = decompositions.global_decomposition_table["post_autograd"].get(operator)
    return found


def refusing(what: str, hint: str = "use operators that run on the CPU too, or run this part there") -> Kernel:
    """Return a function that refuses any arguments."""
    text = f"{what}; {hint}" if hint else f"{what}; use operators that run on the CPU too, or run this part there"

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedError(text)

    return refuse


# -- functions of `torch._C` -----------------------------------------------------------------------------------------


def refused_bindings(ours: set[str]) -> dict[str, Kernel]:
    """Return refusing functions for those of `torch._C` that would ask the driver and are not among `ours`."""
    return {
        name: refusing(f"torch._C.{name} is not simulated", "virtual devices do without what it is for")
        for name in functions_of_driver(ours)
    }


def early(make: Callable[..., object], real: type, is_inside: Callable[[], bool]) -> object:
    """A `__new__` for a class of torch's that a module took early: makes one of ours if `is_inside`, else torch's own.

    The base of these classes is a C type here, which can't be changed.
    """
    original: Callable[..., object] = real.__new__

    @functools.wraps(original)
    def new(cls: type, *args: object, **kwargs: object) -> object:
        return make(*args, **kwargs) if is_inside() else original(cls, *args, **kwargs)

    return staticmethod(new)


@functools.cache
def cudnn_versions() -> dict[str, Callable[[], object]]:
    """Return what `torch._C._cudnn` says of the installed library; in a world C++ finds no cuDNN, and can't be asked.

    Called outside worlds.
    """
    cudnn = cudnn_bindings()
    if cudnn is None:
        return {}
    versions = {name: getattr(cudnn, name)() for name in ("getVersionInt", "getRuntimeVersion", "getCompileVersion")}
    return {name: functools.partial(_same, version) for name, version in versions.items()}


def _same(value: object) -> object:
    return value


# -- tensors that outlive their world --------------------------------------------------------------------------------


class Tenancy:
    """Knows whether virtual devices hold the places of CUDA in torch.

    They do from the start of a world until it has ended and everything on its devices is gone. If something is left at
    its end, `Tenancy` looks again when CUDA is to begin, after a garbage collection, and when another world ends.

    Example:
        >>> tenancy = Tenancy()
        >>> tenancy.begin(lambda: print("CUDA may begin"))
        >>> tenancy.end()
        CUDA may begin
    """

    def __init__(self) -> None:
        self.accounts: list[Account] = []  # all on which something was allocated
        self._give_back: Callable[[], None] | None = None  # None: CUDA has its places itself
        self._begin_cuda: Callable[[], None] | None = None  # torch's own function, while CUDA must not begin

    def begin(self, give_back: Callable[[], None]) -> None:
        """A world begins; `give_back` is called when the places are no longer needed."""
        self._let_cuda_begin()
        self._give_back = give_back

    def end(self) -> None:
        """The world has ended."""
        if self._give_back is None or self._leave():
            return
        if self._begin_cuda is None:
            self._begin_cuda = cuda_beginning()
            if physical_gpus():  # if there is none, torch reports it
                exchange_beginning(self._begin_later)
            _Garbage(self)

    def _leave(self) -> bool:
        """Give everything back if no tensor of a device is left; False if one is."""
        if self._is_inhabited():
            gc.collect()  # the error that ended a rank is often in a cycle with its frames
            if self._is_inhabited():
                return False
        give_back, self._give_back = self._give_back, None
        self.accounts.clear()
        if give_back is not None:
            give_back()
        return True

    def _is_inhabited(self) -> bool:
        return any(account.allocations > 0 for account in self.accounts)

    def look_again(self) -> None:
        """Called after a garbage collection: the last tensor may be gone."""
        if self._begin_cuda is None:
            return
        if self._is_inhabited() or not self._leave():
            _Garbage(self)
        else:
            self._let_cuda_begin()

    def _let_cuda_begin(self) -> None:
        if self._begin_cuda is not None:
            exchange_beginning(self._begin_cuda)
            self._begin_cuda = None

    def _begin_later(self) -> None:
        if not self._leave():
            raise UnsupportedError(
                "CUDA can't begin while there are tensors of virtual devices, whose world has ended; keep their values "
                "by .cpu(), and let go of the tensors"
            )
        self._let_cuda_begin()
        begin_cuda()


class _Garbage:
    """An object that only refers to itself: the next garbage collection deletes it, and it then looks again.

    `gc.callbacks` would be the way, but a world restores the callbacks that it found when it began.
    """

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._itself = self

    def __del__(self) -> None:
        self._tenancy.look_again()


tenancy = Tenancy()
