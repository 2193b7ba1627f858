"""Races between streams: memory that one stream uses while another may still work on it.

Each stream of a process has a vector clock: how many kernels of every stream are surely over. Waiting for an event, a
stream or a work takes over the clock of the other; synchronising gives it to the host, and so to everything that the
host launches from then on. A storage remembers the last kernel that wrote it, and those that read it since; a kernel
that uses it without being ordered after them is refused in a strict world, with both lines. In another world where a
judge looks for races it is reported (`StreamRaced`).

Freed memory goes to the next allocation of its own stream, as in torch's caching allocator (torch 2.13, the docstring
of `record_stream`). `Races` remembers a storage that dies while another stream may still use it; an allocation of its
own stream in its place is a race, unless that stream has waited meanwhile. ProcessGroupNCCL keeps the tensors of
collectives until they are over (`stashed_for_allocator_safety_`).

The host must leave pinned memory alone while a non-blocking copy reads or writes it (`_host_races`); only strict worlds
check that.

In doubt: everything that torch orders inside C++ while it runs backward is taken to be in order. So is the use of
memory by one process after another (`_storages`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from simdist.device._aliases import block_of
from simdist.device._events import StreamRaced
from simdist.device._host_races import copied
from simdist.device._idle import is_idle
from simdist.device._state import present, present_or_none
from simdist.device._torch_core import core
from simdist.errors import StrictError
from simdist.frames import user_frame, user_line
from simdist.inside.torch import Operator, backward_task, schema_of
from simdist.process import SimProcess

__all__ = ["Races", "Uses", "watched"]

Tensor = torch.Tensor
Key = tuple[int, int]  # a device and the number of a stream
Clock = dict[Key, int]
_Use = tuple[Key, int, str, str]  # by which stream, its count then, what used it, and where
_TAKES = "takes freed memory"
_WAIT = "wait for it first (work.wait(), wait_stream, an event), or synchronize"
_RECORD = "call record_stream on a tensor that another stream uses, or let its own stream wait before it is freed"
_CURES = {"reads": _WAIT, "writes": _WAIT, _TAKES: _RECORD}
_OBJECT = {"reads": " it", "writes": " it", _TAKES: ""}
_MOST_FREED = 256  # of a stream
_SMALL = 1 << 20  # bytes: torch's allocator keeps blocks up to this in a pool of their own


class Uses:
    """The uses of one storage's memory by streams; it goes with the storage's block."""

    __slots__ = ("home", "kept_by", "races", "read", "size", "written")

    def __init__(self, races: Races, size: int, home: Key | None) -> None:
        self.races, self.size = weakref.ref(races), size  # a tensor may outlive its world
        self.home = home  # the stream for which the memory was allocated; None: not known
        self.written: _Use | None = None
        self.read: list[_Use] = []
        self.kept_by: dict[Key, None] = {}  # streams that must be done before the memory is used again

    def __del__(self) -> None:
        races = self.races()
        if races is not None:
            races.freed(self)


class Races:
    """The clocks of one process. It refuses a race if `refuses`, else it reports the race."""

    def __init__(self, process: SimProcess, *, refuses: bool) -> None:
        self._process = process
        self._refuses = refuses
        self._clocks: dict[Key, Clock] = {}
        self._host: Clock = {}
        self._freed: dict[Key, list[tuple[int, list[_Use]]]] = {}  # by stream: bytes, and the uses that may not be over

    def known_to(self, key: Key) -> Clock:
        """Return the clock of the kernels that are over before the next work of a stream begins."""
        return dict(self._clock(key))

    def order(self, key: Key, before: Clock | None) -> None:
        """Let a stream wait for the kernels in `before`."""
        _merge(self._clock(key), before or {})

    def order_host(self, before: Clock | None) -> None:
        """Let the host wait for the kernels in `before`."""
        _merge(self._host, before or {})

    def order_host_after_all(self, index: int) -> None:
        """Let the host wait for all streams of a device."""
        for key, clock in self._clocks.items():
            if key[0] == index:
                _merge(self._host, clock)

    def known_to_host(self) -> Clock:
        """Return the clock of the kernels that the host has waited for."""
        return self._host

    def use_of_host(self, key: Key, tensor: Tensor, what: str, site: str, *, writes: bool) -> None:
        """Record that the last kernel that a stream was given reads pinned memory of the host, or writes it."""
        if not self._refuses:
            return
        count = self._clock(key).get(key, 0)
        copied(tensor, key, count, what, site, writes=writes, known=self.known_to_host)

    def use(
        self, key: Key, reads: Sequence[Tensor], writes: Sequence[Tensor], what: str, site: str, *, keeps: bool = False
    ) -> None:
        """Record work of a stream that uses tensors. With `keeps` no memory of theirs is freed before it is over.

        Raises:
            StrictError: other work may still use one of them, in a world that refuses it.
        """
        clock = self._clock(key)
        _merge(clock, self._host)
        if backward_task() != -1:
            for other in list(self._clocks.values()):
                _merge(clock, other)
        clock[key] = clock.get(key, 0) + 1
        use = key, clock[key], what, site
        for tensor in reads:
            self._look(tensor, clock, use, writing=False, keeps=keeps)
        for tensor in writes:
            self._look(tensor, clock, use, writing=True, keeps=keeps)

    def allocated(self, key: Key, tensor: Tensor, what: str, site: str) -> None:
        """Record that a stream was given memory, which may be that of a freed tensor.

        Raises:
            StrictError: other work may still use the memory, in a world that refuses it.
        """
        block = block_of(tensor)
        if block is not None and block.uses is None:
            block.uses = Uses(self, block.size, key)
            self._hand_out(key, tensor, block.size, (key, 0, what, site))

    def keep(self, tensor: Tensor, key: Key) -> None:
        """`record_stream`: the memory is not used again before the stream is done with its present work."""
        block = block_of(tensor)
        if block is not None and block.uses is not None:
            block.uses.kept_by[key] = None

    def freed(self, uses: Uses) -> None:
        """Remember the uses of a freed storage that may not be over."""
        home = uses.home
        if home is None or backward_task() != -1:
            return
        pending = [
            use
            for use in (uses.written, *uses.read)
            if use is not None and use[0] != home and use[0] not in uses.kept_by and not self._is_over(home, use)
        ]
        if pending:
            freed = self._freed.setdefault(home, [])
            freed.append((uses.size, pending))
            del freed[:-_MOST_FREED]

    def _hand_out(self, key: Key, tensor: Tensor, size: int, use: _Use) -> None:
        """Check the memory that the allocator chooses: the smallest that is large enough and may be still in use."""
        freed = self._freed.get(key, ())
        fits = [each for each in freed if each[0] >= size and (each[0] > _SMALL) == (size > _SMALL)]
        if not fits:
            return
        chosen = min(fits, key=lambda each: each[0])
        self._freed[key] = [each for each in freed if each is not chosen]
        for other in chosen[1]:
            if not self._is_over(key, other):
                self._found(tensor, use, other, _TAKES, "uses")
                return

    def _is_over(self, key: Key, use: _Use) -> bool:
        """True if everything that the stream is given from now on runs after this use."""
        return max(self._clock(key).get(use[0], 0), self._host.get(use[0], 0)) >= use[1]

    def _clock(self, key: Key) -> Clock:
        return self._clocks.setdefault(key, {})

    def _look(self, tensor: Tensor, clock: Clock, use: _Use, *, writing: bool, keeps: bool) -> None:
        block = block_of(tensor)
        if block is None:
            return
        uses = block.uses
        if uses is not None and uses.races() is not self:  # another process's: it is not known what orders the two
            uses.home, uses = None, None
        if uses is None:
            uses = block.uses = Uses(self, block.size, None)
        if keeps:
            uses.kept_by[use[0]] = None
        for other in [uses.written, *uses.read] if writing else [uses.written]:
            if other is not None and other[0] != use[0] and clock.get(other[0], 0) < other[1]:
                theirs = "writes" if other is uses.written else "reads"
                self._found(tensor, use, other, "writes" if writing else "reads", theirs)
        if writing:
            uses.written, uses.read = use, []
        else:
            uses.read.append(use)

    def _found(self, tensor: Tensor, use: _Use, other: _Use, doing: str, other_doing: str) -> None:
        if self._refuses:
            raise StrictError(_said(tensor, use, other, doing, other_doing))
        bus = self._process.simulation.bus
        if bus.hears(StreamRaced):
            mine = f"{use[2]} {doing}{_OBJECT[doing]} on {_stream(use[0])}"
            others = f"{other[2]} {other_doing} it on {_stream(other[0])}"
            lines = use[3].removeprefix(" at "), other[3].removeprefix(" at ")
            bus.report(StreamRaced(self._process, list(tensor.shape), mine, others, *lines, _CURES[doing]))


def _merge(into: Clock, other: Clock) -> None:
    for key, count in other.items():
        if into.get(key, 0) < count:
            into[key] = count


def _said(tensor: Tensor, use: _Use, other: _Use, doing: str, other_doing: str) -> str:
    thing = f"{' for' if doing == _TAKES else ''} a tensor of shape {list(tensor.shape)}"
    return (
        f"{use[2]}{use[3]} {doing}{thing} on {_stream(use[0])}, while {other[2]}{other[3]}, which {other_doing} it on "
        f"{_stream(other[0])}, may not be over; {_CURES[doing]}"
    )


def _stream(key: Key) -> str:
    return f"the default stream of cuda:{key[0]}" if not key[1] else f"stream {key[1]} of cuda:{key[0]}"


def _races_here() -> Races | None:
    devices = present_or_none()
    return None if devices is None else devices.streams.races


def _used(what: str, reads: Sequence[Tensor], writes: Sequence[Tensor], made: Sequence[Tensor] = ()) -> None:
    """Record that the current stream reads and writes tensors, and got the memory of those in `made`."""
    races = _races_here()
    if races is None:
        return
    tensors = [tensor for tensor in (*reads, *writes, *made) if isinstance(tensor, Tensor) and tensor.is_cuda]
    if tensors:
        index = tensors[0].get_device()
        key, site = (index, core().stream(index)), user_line(sys._getframe(2))
        read = [tensor for tensor in reads if isinstance(tensor, Tensor) and tensor.is_cuda]
        written = [tensor for tensor in (*writes, *made) if isinstance(tensor, Tensor) and tensor.is_cuda]
        for tensor in made:
            if tensor.is_cuda:
                races.allocated(key, tensor, what, site)
        races.use(key, read, written, what, site)
        present().streams.run_backward_on(*key)


def watched(op: Operator, kernel: Callable[..., object]) -> Callable[..., object]:
    """Wrap a kernel to report what it reads and writes; a wrapper for `_kernels.wrap_kernels`."""
    schema = schema_of(op)
    if schema.name == "aten::record_stream":
        return _keeping
    if is_idle(op):
        what = str(op).split(".")[1]
        return _allocating(what, kernel) if what in ("empty", "empty_strided") else kernel
    written = {
        place for place, each in enumerate(schema.arguments) if each.alias_info is not None and each.alias_info.is_write
    }
    names = {each.name for place, each in enumerate(schema.arguments) if place in written}
    what = str(op).split(".")[1]
    copies = what in ("copy_", "_to_copy")

    def call(*args: object, **kwargs: object) -> object:
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        for place, value in enumerate(args):
            _collect(value, writes if place in written else reads)
        for name, value in kwargs.items():
            _collect(value, writes if name in names else reads)
        if copies:
            _order_across(writes, reads)
        _used(what, reads, writes)
        result = kernel(*args, **kwargs)
        made: list[Tensor] = []
        _collect(result, made)
        _used(what, (), (), [tensor for tensor in made if all(tensor is not known for known in writes)])
        if copies:
            _order_across(reads, made)
            _copied(what, args, kwargs, result)
        return result

    return call


def _order_across(firsts: Sequence[Tensor], thens: Sequence[Tensor]) -> None:
    """Order a copy to another device: it runs on the source's; both current streams wait for each other around it."""
    races = _races_here()
    if races is None or not firsts or not thens or not (firsts[0].is_cuda and thens[0].is_cuda):
        return
    first, then = ((index, core().stream(index)) for index in (firsts[0].get_device(), thens[0].get_device()))
    if first[0] != then[0]:
        races.order(then, races.known_to(first))


def _keeping(tensor: Tensor, stream: torch.Stream) -> None:
    races = _races_here()
    if races is not None:
        races.keep(tensor, (stream.device_index, stream.stream_id))


def _allocating(what: str, kernel: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        result = kernel(*args, **kwargs)
        races = _races_here()
        if races is not None and isinstance(result, Tensor) and result.is_cuda:
            index = result.get_device()
            races.allocated((index, core().stream(index)), result, what, user_line(sys._getframe(1)))
        return result

    return call


def _copied(what: str, args: tuple[Any, ...], kwargs: dict[str, object], result: Any) -> None:
    """Record a launched copy: if it does not block, it uses pinned memory of the host until the host waits for it."""
    to_copy = what == "_to_copy"
    source, target = (args[0], result) if to_copy else (args[1], args[0])
    blocks = not (kwargs.get("non_blocking") or (not to_copy and len(args) > 2 and args[2]))
    if blocks or source.is_cuda == target.is_cuda:
        return
    on_host, on_device = (target, source) if source.is_cuda else (source, target)
    races = _races_here()
    if races is None or not on_host.is_pinned():
        return
    index = on_device.get_device()
    site = user_line(user_frame(sys._getframe(2)))
    races.use_of_host((index, core().stream(index)), on_host, what, site, writes=source.is_cuda)


def _collect(value: object, into: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _collect(each, into)
