"""Kernels whose inputs are not there yet: kept, in the order of their data, and run when they are.

On a GPU a kernel waits on its stream, and the host goes on. Here kernels compute at once, so a kernel that touches
memory that a collective has still to fill is kept instead: its results are allocated, in the shapes that the CPU's
kernel gives for zeros, and claimed until it has run. It runs as soon as its inputs are there, on whichever thread
brings the last of them; its time passes on its stream, as if it had run at once, and never before its data is there.

Invariants:
- It runs after all claims that stood on its memory when it was called: after the claims that write its inputs, and
  after those that read or write its outputs, unless these keep a copy.
- It holds host memory, and no storage of a device: memory that the program gives up meanwhile is free, as with a GPU.
- A process keeps at most as many as a GPU's launch queue takes; then the host waits for the oldest. Not at a cast:
  autocast holds a lock meanwhile that all ranks share, so the next kernel waits instead.

A kernel that draws numbers takes its place in their order when it is called. The host waits for kernels that need
values to know the shape of their results, that refuse zeros, or that take tensors of several devices or of odd kinds.

In doubt: an exception that such a kernel raises because of its values is an error of the device, as on a GPU. The first
call of its kind is computed twice.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from simdist.device._aliases import NotYet, account_holding, block_of, host, lowered, raised
from simdist.device._claims import Claimant, Outstanding, claim, memory_of, release
from simdist.device._generators import Numbers
from simdist.device._marks import Mark, latest
from simdist.device._memory import Account, Block
from simdist.device._state import account_of, present_or_none
from simdist.device._streams import Streams
from simdist.device._torch_core import core
from simdist.device.kernels._mixing import wrong_devices
from simdist.inside.torch import Operator, find_operator, schema_of, without_functions, without_modes
from simdist.kernel import Task

__all__ = ["Deferred", "copy_later", "defer", "launching"]

Tensor = torch.Tensor
Kernel = Callable[..., Any]
_MOST = 1024  # kept by one process
_ready: deque[Deferred] = deque()  # those that can run; the call that runs the first goes on with all of them


class _Facts(NamedTuple):
    """Facts from an operator's schema, read once: torch makes objects of a schema's parts anew each time."""

    can_be_kept: bool  # the shapes of its results are known without values
    written: tuple[tuple[int, str], ...]  # the arguments that it writes, by place and name
    in_place: tuple[bool, ...]  # of each result, whether it lies in the memory of an argument
    name: str


@functools.cache
def _facts(op: Operator) -> _Facts:
    schema = schema_of(op)
    written = [
        (place, each.name)
        for place, each in enumerate(schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    in_place = [each.alias_info is not None for each in schema.returns]
    return _Facts(_can_be_kept(op), tuple(written), tuple(in_place), str(op).removesuffix(".default"))


def _can_be_kept(op: Operator) -> bool:
    tags = set(op.tags)
    if torch.Tag.data_dependent_output in tags or (torch.Tag.dynamic_output_shape in tags and op not in _BY_INDICES):
        return False
    names = {each.name for each in schema_of(op).arguments}
    return op is _TO_COPY or not {"device", "pin_memory"} & names


_TO_COPY = find_operator("aten::_to_copy")
_ASSERT = find_operator("aten::_assert_async")
_BY_INDICES = (find_operator("aten::index.Tensor"), find_operator("aten::_unsafe_index.Tensor"))  # unless by a mask


class Deferred:
    """A kernel that waits for its inputs."""

    def __init__(self, streams: Streams, name: str, inputs: _Inputs, run: Callable[[], object]) -> None:
        self.data = Mark(cause=self)  # when it has run
        self._streams = streams
        self._process = streams.process
        self._name = name
        self._inputs = inputs
        self._run: Callable[[], object] | None = run  # None once it has
        self._awaited = False  # a task of its rank waits until it has run
        self._claims: list[Outstanding] = []
        # Claims that it comes after, the latest first, on each memory; and whether it writes there.
        self._before: list[tuple[Outstanding, list[Claimant], bool]] = []

    def come_after(self, tensor: Tensor, *, writes: bool) -> None:
        """Note the claims on memory that it reads, or writes."""
        block = block_of(tensor)
        known = None if block is None else block.host
        if type(known) is not Outstanding:
            return
        if writes:
            known.leave_copies()
        found: list[Claimant] = []
        for each, wrote in reversed(known.claims.items()):
            if wrote or writes:
                found.append(each)
            if wrote and type(each) is Deferred:  # it comes after all before it
                break
        self._before.append((known, found, writes))

    def claim(self, tensor: Tensor, *, writes: bool) -> None:
        """Claim memory that it reads, or writes."""
        self._claims.append(claim(tensor, self, writes=writes))

    def look(self) -> None:
        """Run if no claim that it comes after is left; else follow the first of them, which calls this again."""
        if self._run is None:
            return
        for outstanding, _, writes in self._before:
            if writes:
                outstanding.leave_copies()
        for outstanding, claimants, _ in self._before:
            while claimants and claimants[-1] not in outstanding.claims:
                claimants.pop()
            if claimants:
                outstanding.followers.setdefault(claimants[-1], []).append(self)
                return
        self._before = []
        _ready.append(self)
        if len(_ready) > 1:  # another call runs the first: not by recursion, for thousands may follow each other
            return
        while _ready:
            try:
                _ready[0]._compute()
            finally:
                _ready.popleft()

    def _compute(self) -> None:
        run, self._run = self._run, None
        assert run is not None
        with torch.inference_mode(), without_modes(), without_functions():
            try:
                run()
            except Exception as error:
                self._streams.error = error
        release(self._claims, self)
        self._streams.kept.pop(self, None)
        self.data.settle(self._process.simulation.now_ns)
        if self._awaited or self._streams.error is not None:
            self._process.wake()

    # -- for memory that is touched ----------------------------------------------------------------------------------

    def copy_inputs(self, block: Block) -> None:
        """Copy a block that it only reads, which the program is about to read or change."""
        self._inputs.copy(block)

    def wait_until_begun(self) -> None:
        """Park the calling task of its rank until it has run."""
        process = self._process
        simulation = process.simulation
        task = simulation.current
        if task is None or task.context is not process or not simulation.owns_this_thread():
            return
        self._awaited = True
        while self._run is not None:
            simulation.park(self)
            process.drain()
            if self._streams.error is not None:
                raise self._streams.error

    # -- for reports -------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Describe the kernel, and what it waits for."""
        name, root = self._name, self._first_cause()
        return name if root is None else f"{name}, which waits for {root.describe()}"

    def waits_for(self) -> Iterable[Task]:
        """Return the tasks for which its first cause waits."""
        root = self._first_cause()
        return () if root is None else root.waits_for()

    def _first_cause(self) -> Any:
        cause: Any = self
        while isinstance(cause, Deferred):
            left = (
                each for known, claimants, _ in cause._before for each in reversed(claimants) if each in known.claims
            )
            cause = next(left, None)
        return cause


class _Inputs:
    """The CPU tensors with which a kernel is kept, each in its place."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._blocks: list[
            weakref.ref[Block] | None
        ] = []  # whose memory each is, weakly; None for a number of the host

    def take(self, tensor: Tensor) -> _Place:
        """Keep the memory of a tensor of the device, or a number of the host as it is now."""
        self._tensors.append(memory_of(tensor) if tensor.is_cuda else tensor.clone())
        block = block_of(tensor) if tensor.is_cuda else None
        self._blocks.append(None if block is None else weakref.ref(block))
        return _Place(len(self._tensors) - 1)

    def copy(self, block: Block) -> None:
        """Keep a copy of the block's present values, and leave the memory to others."""
        for place, reference in enumerate(self._blocks):
            if reference is not None and reference() is block:
                self._tensors[place] = self._tensors[place].clone()
                self._blocks[place] = None

    def given(self, value: object) -> Any:
        """Return arguments with the tensors in their places."""
        if type(value) is _Place:
            return self._tensors[value.number]
        if isinstance(value, (list, tuple)):
            return type(value)(self.given(each) for each in value)
        if isinstance(value, dict):
            return {name: self.given(each) for name, each in value.items()}
        return value


@dataclass(frozen=True, slots=True)
class _Place:
    number: int


def defer(
    op: Operator,
    call: Kernel,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    later: NotYet,
    again: Kernel,
    *,
    writes: tuple[int, ...] = (),
) -> object:
    """Keep a kernel that has met memory without values; if it can't be kept, wait and call `again`.

    `call` computes it on CPU tensors, and makes a generator of an argument that is `Numbers`. `writes` are the places
    of arguments that it writes although they are not in the operator's schema.
    """
    devices = present_or_none()
    kept = None if devices is None else _kept(op, call, args, kwargs, devices.streams, writes)
    if kept is None:
        later.wait()
        try:
            return again(*args, **kwargs)
        except NotYet as other:
            return defer(op, call, args, kwargs, other, again, writes=writes)
    return kept[0]


def launching(op: Operator, call: Kernel, *, writes: tuple[int, ...] = ()) -> Kernel:
    """Return the kernel of an operator that `call` computes on CPU tensors: at once, or as soon as its data is there.

    Its result is a tensor, or several with None among them, on the device of its tensors; tensors of several devices
    are refused in torch's words. `writes` as with `defer`.
    """

    def kernel(*args: object, **kwargs: object) -> object:
        first: Any = None
        there = {each.get_device() for each in (*args, *kwargs.values()) if isinstance(each, Tensor)}
        if len(there) > 1:
            raise wrong_devices(op, args, kwargs)
        given = []
        try:
            for value in args:
                if isinstance(value, Tensor) and value.is_cuda:
                    first = value if first is None else first
                    value = lowered(value)
                given.append(value)
            named = {name: _each(value, _lower) for name, value in kwargs.items()}
        except NotYet as later:
            return defer(op, call, args, kwargs, later, kernel, writes=writes)
        made = call(*given, **named)
        account = account_holding(first) or account_of(first.get_device())
        if isinstance(made, Tensor):
            return raised(made, account)
        return tuple(None if each is None else raised(each, account) for each in made)

    return kernel


def _lower(tensor: Tensor) -> Tensor:
    return lowered(tensor) if tensor.is_cuda else tensor


def _kept(
    op: Operator,
    call: Kernel,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    streams: Streams,
    writes: tuple[int, ...],
) -> tuple[object] | None:
    """Keep a kernel, and return its results; None if it can't be kept."""
    facts = _facts(op)
    if not facts.can_be_kept:
        return None
    tensors = list(_tensors((*args, *kwargs.values())))
    index = next(each.get_device() for each in tensors if each.is_cuda)
    for each in tensors:
        if each.layout is not torch.strided or each.is_conj() or each.is_neg() or not _is_plain(each):
            return None
        if each.get_device() != index and (each.is_cuda or each.dim()):
            return None
        if op in _BY_INDICES and each is not args[0] and each.dtype in (torch.bool, torch.uint8):
            return None
    task = streams.process.simulation.current
    if task is None or task.context is not streams.process:
        return None
    likes = _results_of(op, call, args, kwargs)
    if likes is None:
        return None
    written = _written(facts, args, kwargs) + [args[place] for place in writes]
    returns = facts.in_place
    olds = iter(written)
    account = account_holding(next(each for each in tensors if each.is_cuda)) or account_of(index)
    made = [
        next(olds) if is_old else _made(like, account) for is_old, like in zip(returns, likes, strict=bool(returns))
    ]
    new = [list(_tensors([value])) for is_old, value in zip(returns, made, strict=bool(returns)) if not is_old]
    held = [[host(each) for each in of_one] for of_one in new]
    inputs = _Inputs()
    given = _each(args, inputs.take), {name: _each(value, inputs.take) for name, value in kwargs.items()}

    def run() -> None:
        result = call(*inputs.given(given[0]), **inputs.given(given[1]))
        results = result if isinstance(result, tuple) and len(returns) != 1 else (result,)
        fresh = [each for is_old, each in zip(returns, results, strict=bool(returns)) if not is_old]
        for targets, value in zip(held, fresh, strict=True):
            for target, each in zip(targets, _tensors([value]), strict=True):
                target.copy_(each)

    deferred = Deferred(streams, facts.name, inputs, run)
    changed = [each for each in _tensors(written) if each.is_cuda]
    if op is not _TO_COPY:  # autocast may have called
        _wait_for_place(streams)
    _keep(deferred, streams, index, [each for each in tensors if each.is_cuda], changed, list(_tensors(new)))
    return (None if not returns else made[0] if len(returns) == 1 else tuple(made),)


def _wait_for_place(streams: Streams) -> None:
    while len(streams.kept) >= _MOST:
        next(iter(streams.kept)).wait_until_begun()


def _keep(
    deferred: Deferred, streams: Streams, index: int, given: list[Tensor], changed: list[Tensor], new: list[Tensor]
) -> None:
    """Let it run on the current stream of a device, once its inputs are there; it writes those in `changed`."""
    changing = {id(each) for each in changed}
    for each in given:
        deferred.come_after(each, writes=id(each) in changing)
    for each in given:
        if id(each) not in changing:
            deferred.claim(each, writes=False)
    for each in (*changed, *new):
        deferred.claim(each, writes=True)
    streams.kept[deferred] = None
    number = core().stream(index)
    streams.end_with(index, number, latest([streams.mark(index, number), deferred.data]))
    deferred.look()


def copy_later(target: Tensor, source: Tensor, later: NotYet) -> None:
    """Copy memory of a device to the host when its values are there; the host's memory stays as it is until then.

    Waits for them if the caller is no task of a rank.
    """
    devices = present_or_none()
    task = None if devices is None else devices.streams.process.simulation.current
    if devices is None or task is None or task.context is not devices.streams.process:
        later.wait()
        target.copy_(host(source))
        return
    inputs = _Inputs()
    place = inputs.take(source)
    deferred = Deferred(devices.streams, "aten.copy_", inputs, lambda: target.copy_(inputs.given(place)))
    _wait_for_place(devices.streams)
    _keep(deferred, devices.streams, source.get_device(), [source], [], [])


def _written(facts: _Facts, args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
    """Return the arguments that an operator writes."""
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in facts.written]


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor or type(tensor.data) is Tensor


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _each(value: object, change: Callable[[Tensor], object]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_each(each, change) for each in value)
    return value


@dataclass(frozen=True, slots=True)
class _Like:
    """Shape, stride and type of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


_known: dict[object, tuple[object, ...] | None] = {}  # the results of calls, by their arguments
_MOST_KNOWN = 10_000


def _results_of(
    op: Operator, call: Kernel, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...] | None:
    """Return shapes and types of a call's results, None for those in place; None alone if they depend on values.

    The CPU's kernel gives them, for zeros: torch's kernels for meta tensors differ from it in types and shapes.
    """
    key = op, _said(args), _said(tuple(kwargs.items()))
    try:
        if key in _known:
            return _known[key]
    except TypeError:  # an argument that can't be a key
        return None
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[key] = found = _tried(op, call, args, kwargs)
    return found


def _said(value: object) -> object:
    if isinstance(value, Tensor):
        return value.is_cuda, tuple(value.shape), value.stride(), value.dtype
    if type(value) is Numbers:
        return Numbers
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_said(each) for each in value)
    return type(value), value


def _tried(
    op: Operator, call: Kernel, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...] | None:
    if op is _ASSERT:  # it fails for zeros
        return ()
    given = _each(args, _zeros), {name: _each(value, _zeros) for name, value in kwargs.items()}
    try:
        with torch.inference_mode(), without_modes(), without_functions():
            result = call(*given[0], **given[1])
    except Exception:  # zeros are no input for it, or the call is wrong: with values the kernel says so better
        return None
    facts = _facts(op)
    for was, now in zip(
        _tensors(_written(facts, args, kwargs)),
        _tensors(_written(facts, *given)),
        strict=True,
    ):
        if was.shape != now.shape:
            return None  # it grows
    many = result if isinstance(result, tuple) and len(facts.in_place) != 1 else (result,)
    try:
        return tuple(
            None if is_old else _each(value, _like)
            for is_old, value in zip(facts.in_place, many, strict=bool(facts.in_place))
        )
    except NotImplementedError:
        return None


def _zeros(tensor: Tensor) -> Tensor:
    size = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.zeros(size if tensor.numel() else 0, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride())


def _like(tensor: Tensor) -> _Like:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise NotImplementedError
    return _Like(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _made(like: object, account: Account) -> object:
    """Allocate memory of a device for results."""
    if isinstance(like, _Like):
        return raised(torch.empty_strided(like.shape, like.stride, dtype=like.dtype), account)
    if isinstance(like, (list, tuple)):
        return type(like)(_made(each, account) for each in like)
    return like
