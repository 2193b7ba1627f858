"""Kernels of the dispatch key CUDA, which a CPU build leaves empty: they call the CPU's kernels over the same memory.

An operator that has a kernel for the CPU gets one for CUDA: it checks that its tensors are on one device, gives the
CPU's kernel CPU tensors over the same memory, and turns the results into tensors of the device. A view only needs the
storage: the CPU's kernel makes it of the tensor itself.

`install` registers more than a thousand of them, in a tenth of a second, once per interpreter; an operator's schema is
looked up when it is first called. They stay: only tensors of a device reach them. In a CUDA build they replace its own,
which `uninstall` brings back (`_cuda_build`). `wrap_kernels` adds wrappers that also report what kernels read and
write, or let them take time.

Kernels in C++ (`_compiled`) go before these, and leave unusual cases to them.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simdist.device._absent import refuse_symmetric_memory
from simdist.device._aliases import Compiled, NotYet, account_holding, in_its_storage, lowered, raised, refuse, use
from simdist.device._claims import Outstanding
from simdist.device._cuda_build import others
from simdist.device._generators import Numbers
from simdist.device._idle import is_view
from simdist.device._memory import Account
from simdist.device._state import account_of, keep_figures_in
from simdist.device.kernels import _attention, _beyond, _limits, _recurrent, _sparse, _special, _wider
from simdist.device.kernels._awaited import Waits, waits_of
from simdist.device.kernels._deferred import defer
from simdist.device.kernels._mixing import MAY_MIX, check_mixed, on_one_device, wrong_devices
from simdist.device.kernels._special import (
    NO_HOST_MEMORY,
    account_on,
    drawn_from,
    grow,
    memory_error,
    numbers_of,
    wait_on_host,
)
from simdist.inside.torch import (
    CPU,
    Argument,
    Operator,
    Replacements,
    all_operators,
    below_autocast,
    calling,
    count_function_modes,
    find_operator,
    finds_kernel,
    full_name,
    has_kernel,
    is_built_for_cuda,
    operators_of_libraries,
    operators_with_kernel,
    redispatching,
    schema_of,
    takes_numbers_as_tensors,
    without_functions,
)

__all__ = ["adding_libraries", "also_wrap", "install", "uninstall", "unwrap_kernels", "unwrapped", "wrap_kernels"]

Tensor = torch.Tensor
Kernel = Callable[..., Any]
Wrapper = Callable[[Operator, Kernel], Kernel]
_NUMBERS = frozenset((bool, int, float, complex))
# Composites that take the CPU's own way as a whole: in C++ they ask for cuDNN, or for a device's part of a kernel.
_WHOLE = (
    *("aten::convolution", "aten::convolution_backward"),
    *("aten::mode", "aten::mode.values", "aten::conj_physical_", "aten::_validate_sparse_coo_tensor_args"),
)

_OUR_OWN = {
    **_special.KERNELS,
    **_sparse.KERNELS,
    **_wider.KERNELS,
    **_beyond.KERNELS,
}  # kernels that are not just the CPU's

_as_strided = redispatching(find_operator("aten::as_strided"))
_CANT_GROW = "Trying to resize storage that is not resizable"  # what torch says of an alias

_library: Replacements | None = None
# Other namespaces of torch whose operators have kernels for CUDA in a build with it.
_MORE = ("quantization",)
_libraries: dict[str, Replacements] = {}  # by namespace
_names: list[str] = []  # of the operators that have a kernel here
_of_libraries: set[str] = set()  # operators of other libraries than torch that have a kernel here
_looked_at = (0, 0)  # what was loaded when these were looked for last
_spare_key = "PrivateUse3"  # the dispatch key under which kernels in C++ find these
_compiled: Compiled | None = None  # the module with kernels in C++, while those go first
_made: dict[str, Kernel] = {}  # by operator, those that have been called
_wrappers: tuple[Wrapper, ...] = ()


def install(compiled: Compiled | None = None) -> None:
    """Register a kernel for every operator that the CPU has one for, once; those in `compiled` go first, if given."""
    global _compiled
    _register()
    if _loaded() != _looked_at:  # a look takes half a millisecond, and worlds start by the thousand
        _add_libraries()
    if compiled is not _compiled:
        if _compiled is not None:
            _compiled.disable()
        if compiled is not None:
            compiled.connect(_provide, account_of, wait_on_host, _no_memory, _no_type, refuse, Outstanding, grow)
            theirs = [name for name in _names if "aten::" + name not in _OUR_OWN]
            compiled.enable([(each, _odd_types(each), _limits.varies(each), on_one_device(each)) for each in theirs])
            compiled.observe(bool(_wrappers))
        _compiled = compiled
        keep_figures_in(None if compiled is None else compiled.Figures)
        use(compiled)


def _odd_types(name: str) -> list[torch.dtype]:
    """Return the types of an operator's first tensor that kernels in C++ leave to those in Python."""
    more = _beyond.types_beyond("aten::" + name), _wider.wider_types("aten::" + name)
    return [*_limits.refused_types(name), *more[0], *more[1]]


def _provide(name: str) -> None:
    """Let a kernel in C++ find the one in Python."""
    _library_of("aten").impl(name.removeprefix("aten::"), _spare_key, _on_first_call(name))


def _no_memory(index: int) -> None:
    raise memory_error(RuntimeError(NO_HOST_MEMORY), account_of(index))


def _no_type(name: str, said: str) -> None:
    kind = NotImplementedError if "not implemented for" in said else RuntimeError
    raise _limits.reworded(name, kind(said))


def uninstall() -> None:
    """Remove every kernel: torch finds those of a CUDA build again."""
    global _library, _compiled
    if _compiled is not None:
        _compiled.disable()
        _compiled = None
        keep_figures_in(None)
        use(None)
    for library in (*_libraries.values(), _library):
        if library is not None:
            library.destroy()
    _library = None
    _libraries.clear()
    _names.clear()
    _of_libraries.clear()
    _made.clear()


def _loaded() -> tuple[int, int]:
    """How many modules and libraries are loaded: a library comes with one or the other."""
    return len(sys.modules), len(torch.ops.loaded_libraries)


def _add_libraries() -> None:
    """Register kernels for the operators of libraries that have been loaded, once each.

    A build for the CPU lacks the library's C++ kernels for CUDA, so the CPU's take their place. Kernels written in
    Python are the same in all builds: an operator without one for a GPU has none here, too.
    """
    global _looked_at
    _looked_at = _loaded()
    replaces = is_built_for_cuda()
    for name in operators_of_libraries("CPU"):
        if name in _of_libraries:
            continue
        if (replaces and has_kernel(name, "CUDA")) or not finds_kernel(name, "CUDA"):
            _of_libraries.add(name)
            space, _, inside = name.partition("::")
            _library_of(space).impl(inside, "CUDA", _on_first_call(name))


def adding_libraries(load: Callable[..., None]) -> Callable[..., None]:
    """Wrap what loads C++: operators that it registers while there are virtual devices run on them, too."""

    @functools.wraps(load)
    def loading(*args: Any, **kwargs: Any) -> None:
        load(*args, **kwargs)
        _add_libraries()

    return loading


def _register() -> None:
    if _library is not None:
        return
    with warnings.catch_warnings():  # torch before 2.13 warns of the first kernel that takes the place of another
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        _register_all()


def _register_all() -> None:
    global _library
    _library = Replacements("aten")
    replaces = is_built_for_cuda()

    def is_ours(name: str, key: str = "CUDA") -> bool:
        return replaces or not has_kernel(name, key)

    of_cpu = operators_with_kernel("CPU")
    names = [name for name in of_cpu if name.startswith("aten::") and name not in _limits.ONLY_CPU]
    done = set()
    for name in dict.fromkeys([*names, *_OUR_OWN, *_WHOLE]):
        if is_ours(name):
            _library.impl(name.removeprefix("aten::"), "CUDA", _on_first_call(name))
            _names.append(name.removeprefix("aten::"))
            done.add(name)
    for space in _MORE:
        for name in of_cpu:
            if name.startswith(f"{space}::") and is_ours(name):
                _library_of(space).impl(name.removeprefix(f"{space}::"), "CUDA", _on_first_call(name))
                done.add(name)
    for name in all_operators():
        space, _, inside = name.partition("::")
        if space == "symm_mem" and is_ours(name):
            _library_of(space).impl(inside, "CUDA", refuse_symmetric_memory)
            done.add(name)
    _sparse.register(_library, is_ours)
    for name, kernel in {**_attention.COMPOSITES, **_recurrent.COMPOSITES}.items():
        for key in ("CUDA", "AutogradCUDA"):
            _library.impl(name.removeprefix("aten::"), key, kernel)
    _add_libraries()
    if replaces:
        for key, name, kernel in others(done | _of_libraries):
            space, _, inside = name.partition("::")
            _library_of(space).impl(inside, key, kernel)


def _library_of(space: str) -> Replacements:
    """Return the library in which kernels of a namespace are registered."""
    if space == "aten":
        assert _library is not None
        return _library
    made = _libraries.get(space)
    if made is None:
        made = _libraries[space] = Replacements(space)
    return made


def wrap_kernels(wrappers: Sequence[Wrapper]) -> None:
    """Wrap each kernel by these from now on, the first of them innermost; by none, if there are none.

    A wrapper is called once with an operator and its kernel, and returns what is called instead.
    """
    global _wrappers
    _wrappers = tuple(wrappers)
    _made.clear()
    if _compiled is not None:
        _compiled.observe(bool(wrappers))


def also_wrap(wrapper: Wrapper) -> None:
    """Wrap each kernel by this one, too, outside of the others, until kernels are wrapped anew."""
    if wrapper not in _wrappers:
        wrap_kernels((*_wrappers, wrapper))


def unwrapped(op: Operator) -> Kernel:
    """Return the kernel of an operator, which no wrapper sees."""
    return _kernel_of(op)


def unwrap_kernels() -> None:
    """Remove all wrappers."""
    if _wrappers:
        wrap_kernels(())


def _on_first_call(name: str) -> Kernel:
    def kernel(*args: object, **kwargs: object) -> object:
        made = _made.get(name)
        if made is None:
            made = _made[name] = _make(name)
        if count_function_modes():  # of the program: C++ code, as a backward pass, calls kernels under them
            with without_functions():
                return made(*args, **kwargs)
        return made(*args, **kwargs)

    return kernel


def _make(name: str) -> Kernel:
    op = find_operator(name)
    own = _OUR_OWN.get(name)
    made = _kernel_of(op) if own is None else _limits.rewording(name, own)
    made = _limits.guarded(op, made)
    for wrapper in _wrappers:
        made = wrapper(op, made)
    return made


def _kernel_of(op: Operator) -> Kernel:
    """Return the kernel of an operator."""
    schema = schema_of(op)
    returns = schema.returns
    written = [place for place, each in enumerate(schema.arguments) if _is_written(each)]
    if is_view(op):
        redispatch = redispatching(op)
        return lambda *args, **kwargs: redispatch(CPU, *args, **kwargs)
    waits = waits_of(op)
    names = [each.name for each in schema.arguments]
    by_name = any(each.kwarg_only and "Tensor" in str(each.type) for each in schema.arguments)
    if not (written or by_name) and len(returns) == 1 and not {"device", "generator"} & set(names):
        return _pure(op, waits=waits)
    return _general(op, names, written, waits=waits)


def _call_of(op: Operator) -> Kernel:
    """Return the operator on CPU tensors, with what a GPU takes beyond the CPU."""
    return _wider.widened(op, _beyond.extended(op, _cpu_call_of(op)))


def _cpu_call_of(op: Operator) -> Kernel:
    """Return the operator on CPU tensors, without the casts of an autocast for the CPU."""
    below = below_autocast(op)
    if below is not None:
        return below
    packet = op.overloadpacket
    tensors = sum(str(each.type) == "Tensor" for each in schema_of(op).arguments)
    name = full_name(op).removeprefix("aten::").partition(".")[0]
    overloads = packet.overloads()  # type: ignore[no-untyped-call]  # torch gives it no types
    if tensors > 1 and len(overloads) > 1 and not takes_numbers_as_tensors(name):
        return _with_numbers(calling(op), packet)
    return calling(op)


def _with_numbers(call: Kernel, packet: Kernel) -> Kernel:
    """Wrap a call: a number that C++ made a tensor of comes as a number again, which only another overload takes."""

    def either(*args: object, **kwargs: object) -> object:
        return (packet if any(type(each) in _NUMBERS for each in args[:2]) else call)(*args, **kwargs)

    return either


def _with_numbers_of(
    args: tuple[object, ...], kwargs: dict[str, object], place: int
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments with the numbers that will be drawn in place of the generator."""
    generator: Any = args[place] if place < len(args) else kwargs.get("generator")
    if type(generator) is not Numbers:
        index = next(
            each.get_device() for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.is_cuda
        )
        generator = numbers_of(generator, index)
    if place < len(args):
        return (*args[:place], generator, *args[place + 1 :]), kwargs
    return args, {**kwargs, "generator": generator}


def _drawing(call: Kernel) -> Kernel:
    """Wrap a call: arguments that are numbers become a generator."""

    def either(value: object) -> object:
        return value.generator() if type(value) is Numbers else value

    return lambda *args, **kwargs: call(*map(either, args), **{name: either(each) for name, each in kwargs.items()})


def _is_written(argument: Argument) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


class _Inputs:
    """The arguments of one call, as CPU tensors; and whether their devices fit together."""

    __slots__ = ("foreign", "index", "lowered", "one_device", "seen")

    def __init__(self, *, written: bool = False, one_device: bool = False) -> None:
        self.lowered = in_its_storage if written else lowered
        self.one_device = one_device  # also tensors without dimensions
        self.index = -1
        self.foreign = False  # something is on another device
        self.seen: Tensor | None = None  # the first tensor of a device

    def lower(self, value: object) -> Any:
        """Return a value as the CPU's kernel gets it."""
        if isinstance(value, Tensor):
            index = value.get_device()
            if index != self.index:
                if index < 0:
                    self.foreign = self.foreign or self.one_device or value.dim() > 0
                    return value
                if self.seen is None:
                    self.index, self.seen = index, value
                else:
                    self.foreign = True
            elif index < 0:
                self.foreign = self.foreign or self.one_device or value.dim() > 0
                return value
            return self.lowered(value)
        if isinstance(value, (list, tuple)):
            return [self.lower(each) for each in value]
        return value


def _pure(op: Operator, *, waits: Waits | None) -> Kernel:
    """Return the kernel of an operator that reads tensors and makes one, or a list of them, or a number. Hot."""
    call = _call_of(op)
    name = full_name(op)
    may_mix = name in _of_libraries or str(op) in MAY_MIX
    one_device = on_one_device(name.removeprefix("aten::"))

    def kernel(*args: Any, **kwargs: object) -> object:
        seen: Any = None
        index = -1
        foreign = False
        given = []
        try:
            for value in args:
                if isinstance(value, Tensor):
                    on = value.get_device()
                    if on < 0:
                        foreign = foreign or one_device or value.dim() > 0
                    else:
                        if seen is None:
                            seen, index = value, on
                        elif on != index:
                            foreign = True
                        value = lowered(value)
                elif type(value) in (list, tuple):
                    inputs = _Inputs(one_device=one_device)
                    inputs.seen, inputs.index = seen, index
                    value = [inputs.lower(each) for each in value]
                    seen, index, foreign = inputs.seen, inputs.index, foreign or inputs.foreign
                given.append(value)
        except NotYet as later:
            return defer(op, call, args, kwargs, later, kernel)
        if foreign and seen is not None:
            if not may_mix:
                raise wrong_devices(op, args, kwargs)
            check_mixed(name, args)
        if waits is not None and waits(args, kwargs):
            wait_on_host(index)
        try:
            result = call(*given, **kwargs)
        except RuntimeError as error:
            raise _limits.reworded(name, memory_error(error, account_of(max(index, 0)))) from None
        if isinstance(result, Tensor):
            return raised(result, account_holding(seen) or account_of(index))
        if type(result) in (list, tuple):
            account = account_on(seen, index)
            return [raised(each, account) for each in result]
        return result

    return kernel


def _general(op: Operator, names: list[str], written: list[int], *, waits: Waits | None) -> Kernel:
    """Return the kernel of an operator of any kind."""
    call = _call_of(op)
    name = full_name(op)
    returns = schema_of(op).returns
    in_place = [each.alias_info is not None for each in returns]
    draws = "generator" in names
    may_mix = name in _of_libraries or str(op) in MAY_MIX
    one_device = on_one_device(name.removeprefix("aten::"))
    arguments = schema_of(op).arguments
    in_place_of_arguments = any(not arguments[place].kwarg_only for place in written)
    into = [names[place] for place in written if arguments[place].kwarg_only]

    def kernel(*args: Any, **kwargs: Any) -> object:
        inputs = _Inputs(written=in_place_of_arguments, one_device=one_device)
        try:
            given = [inputs.lower(value) for value in args]
            inputs.lowered = lowered  # keyword arguments may get other memory
            named = {name: inputs.lower(value) for name, value in kwargs.items()}
        except NotYet as later:
            if draws:
                args, kwargs = _with_numbers_of(args, kwargs, names.index("generator"))
            return defer(op, _drawing(call) if draws else call, args, kwargs, later, kernel)
        index = inputs.index
        if inputs.foreign and inputs.seen is not None:
            if not may_mix:
                raise wrong_devices(op, args, kwargs)
            check_mixed(name, args)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            account = account_of(device.index)
            index = account.index
            named["device"] = "cpu"
            named.pop("pin_memory", None)
        if draws:
            place = names.index("generator")
            drawn = drawn_from(args[place] if place < len(args) else kwargs.get("generator"), index)
            if place < len(args):
                given[place] = drawn
            else:
                named["generator"] = drawn
        for each in into:
            _share(kwargs.get(each), args, kwargs, given, named)
        results: list[tuple[object, Any]] = []
        for place in written:
            was, now = (args[place], given[place]) if place < len(args) else _named(names[place], kwargs, named)
            if isinstance(was, Tensor) and was.get_device() < 0 and inputs.seen is not None and not may_mix:
                raise wrong_devices(op, args, kwargs)
            if isinstance(was, Tensor) and was.get_device() >= 0 and not was.numel():
                # An alias can't grow, as `out=` may have to: a tensor of its own can.
                now = torch.empty_like(now, device="cpu")
                if place < len(args):
                    given[place] = now
                else:
                    named[names[place]] = now
            results.append((was, now))
        if waits is not None and waits(args, kwargs):
            wait_on_host(index)
        try:
            result = call(*given, **named)
        except RuntimeError as error:
            if in_place_of_arguments or not written or _CANT_GROW not in str(error):
                raise _limits.reworded(name, memory_error(error, account_of(max(index, 0)))) from None
            results = _anew(results)
            named.update(zip((names[place] for place in written), (now for _, now in results), strict=True))
            result = call(*given, **named)
            for was, now in results:
                if isinstance(was, Tensor) and was.shape == now.shape:
                    lowered(was).copy_(now)
        for was, now in results:
            if isinstance(was, Tensor) and was.shape != now.shape:
                grow(was, now)
        if not returns:
            return None
        if all(in_place):
            filled_ones = tuple(was for was, _ in results)
            return filled_ones[0] if len(returns) == 1 else filled_ones
        account = account_on(inputs.seen, index)
        if len(returns) == 1:
            return _raised_all(result, account)
        filled = iter(results)
        return tuple(
            next(filled)[0] if is_old else _raised_all(each, account)
            for is_old, each in zip(in_place, result, strict=True)
        )

    return kernel


def _share(out: Any, args: Sequence[Any], kwargs: dict[str, Any], given: list[Any], named: dict[str, Any]) -> None:
    """Where a tensor that is written shares memory with others, put all of them into one storage of the CPU.

    Torch looks for overlaps there, and refuses them.
    """
    if not isinstance(out, Tensor) or not out.is_cuda or not out.numel():
        return
    place = out.untyped_storage().data_ptr()
    many = [
        each for value in (*args, *kwargs.values()) for each in (value if type(value) in (list, tuple) else (value,))
    ]
    if sum(_is_at(place, each) for each in many) < 2:
        return
    size = out.untyped_storage().nbytes() // out.element_size()
    whole = lowered(_as_strided(CPU, out, (size,), (1,), 0))
    given[:] = [_moved(whole, place, *each) for each in zip(args, given, strict=True)]
    named.update({name: _moved(whole, place, value, named[name]) for name, value in kwargs.items() if name in named})


# No functions inside `_share`: one that calls itself would keep the tensors until Python collects garbage.
def _is_at(place: int, value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cuda and value.untyped_storage().data_ptr() == place


def _moved(whole: Tensor, place: int, value: Any, now: Any) -> Any:
    if type(value) in (list, tuple):
        return [_moved(whole, place, *each) for each in zip(value, now, strict=True)]
    if not _is_at(place, value) or value.dtype is not whole.dtype or value.is_conj() or value.is_neg():
        return now
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def _anew(results: list[tuple[object, Any]]) -> list[tuple[object, Any]]:
    """Return tensors of their own, which can grow, in place of aliases, for what an operator writes."""
    return [(was, torch.empty(0, dtype=now.dtype) if isinstance(now, Tensor) else now) for was, now in results]


def _named(name: str, kwargs: dict[str, object], named: dict[str, Any]) -> tuple[object, Any]:
    return kwargs.get(name), named.get(name)


def _raised_all(value: Any, account: Account) -> object:
    if isinstance(value, Tensor):
        return raised(value, account)
    if type(value) in (list, tuple):
        return [raised(each, account) for each in value]
    return value
