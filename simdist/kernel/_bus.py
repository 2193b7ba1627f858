"""The one seam for everything that watches or interferes.

*Judges* are asked before an effect: the layer that causes it announces a typed event and acts on the verdict. Nobody
changes an event; those that a training makes at each step are not frozen, for that takes five times as long to make.
Every judge is asked, so that each can count what it sees, and what they say is added up. *Listeners* are called
afterwards, in the order in which they came, on the thread that reports. They hear of two kinds:
records of `simdist.records`, which the log keeps, and events, which carry what lives only now (a process, a work) and
are nobody's to keep.

Without judges and listeners the bus costs nothing. The layer asks `wants` before it builds an event to announce, and
`hears` before it builds one to report, a dictionary look-up each. Records are made anyway, for the log: `record` is the
log's own function until somebody listens to some kind of them, and only then looks who does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from simdist.records import Packed, Record, unpacked

__all__ = ["PASS", "Bus", "Change", "Verdict"]

_Event = TypeVar("_Event")


_Payload = TypeVar("_Payload")


class Change(Protocol):
    """What becomes of what an effect carries or leaves; the like of it comes back, unseen by the kernel."""

    def __call__(self, payload: _Payload, /) -> _Payload:
        """What takes the place of the payload."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an announced effect.

    `delay_ns` holds it back; `strike` is called before, during or after it (`when`), and may kill or stop the very task
    that causes it; `error` is raised in its place, after a delay and a strike before it. `change` is given what the
    effect carries (the bytes of a write, the tensors that an operation reads) and returns what it carries instead;
    `change_result` likewise what the effect leaves there, once it is done (the tensors that an operation fills). With
    `drop` nothing is done, and its program gets the answer that it was. `part_bytes` is how much of a write is done:
    its program is answered so, unless it is struck "during" (then None is half of it).

    An effect takes what it can: asked for more, it fails with a `SimdistError` that says so.
    """

    delay_ns: int = 0
    error: BaseException | None = None
    strike: Callable[[], None] | None = None
    when: Literal["before", "during", "after"] = "before"
    part_bytes: int | None = None
    change: Change | None = None
    drop: bool = False
    change_result: Change | None = None

    def and_then(self, later: Verdict) -> Verdict:
        """Both: the delays added up, one strike and one change after the other, and the later error.

        The strikes come where the later of them is due.
        """
        strikes = [each for each in (self.strike, later.strike) if each is not None]
        when = self.when if later.strike is None else later.when
        error = self.error if later.error is None else later.error
        part_bytes = self.part_bytes if later.part_bytes is None else later.part_bytes
        change = _one_after_the_other(self.change, later.change)
        drop = self.drop or later.drop
        result = _one_after_the_other(self.change_result, later.change_result)
        strike = _in_turn(strikes)
        return Verdict(self.delay_ns + later.delay_ns, error, strike, when, part_bytes, change, drop, result)


def _in_turn(strikes: list[Callable[[], None]]) -> Callable[[], None] | None:
    if len(strikes) < 2:
        return strikes[0] if strikes else None

    def strike() -> None:
        for each in strikes:
            each()

    return strike


def _one_after_the_other(first: Change | None, second: Change | None) -> Change | None:
    if first is None or second is None:
        return second if first is None else first

    def change(payload: _Payload) -> _Payload:
        return second(first(payload))

    return change


PASS = Verdict()

_Judge = Callable[[Any], Verdict]
_Listener = Callable[[Any], None]


class Bus:
    """Announcements and their judges; records and events, and their listeners. `log` takes every record, packed.

    Example:
        >>> from simdist.records import Slept, slept
        >>> bus = Bus(log=[].append)
        >>> end = bus.listen(Slept, lambda record: print(record.rank, record.duration_ns))
        >>> bus.record(slept(0, 3, 1_000))
        3 1000
    """

    def __init__(self, log: Callable[[Packed], None]) -> None:
        self._judges: dict[type, list[_Judge]] = {}
        self._listeners: dict[type, list[_Listener]] = {}
        self._of_records: dict[str, list[_Listener]] = {}  # by kind; those who listen to all, under ""
        self._log = log
        self.record = log  # hot: one call per record
        # True if anyone judges, or listens to, events of this type. Hot: the dictionaries' own functions.
        self.wants: Callable[[type], bool] = self._judges.__contains__
        self.hears: Callable[[type], bool] = self._listeners.__contains__
        self.active = False  # true once anyone judges anything
        self.heard = False  # true while anyone listens to events; hot too: asked before `hears`

    def intercept(self, kind: type[_Event], judge: Callable[[_Event], Verdict]) -> None:
        """Ask `judge` about every announced event of exactly the type `kind`, after those already there."""
        self._judges.setdefault(kind, []).append(judge)
        self.active = True

    def announce(self, event: object) -> Verdict:
        """Put `event` to its judges; what they say, one after the other, is the answer."""
        answer = PASS
        for judge in self._judges.get(type(event), ()):
            verdict = judge(event)
            if verdict is not PASS:
                answer = verdict if answer is PASS else answer.and_then(verdict)
        return answer

    def listen(self, kind: type[_Event], listener: Callable[[_Event], None]) -> Callable[[], None]:
        """Call `listener` for every event of exactly the type `kind`; the function that is returned ends that, at each
        call.

        With a class of records: of every record of its kind. `Record` stands for all kinds.
        """
        table: dict[Any, list[_Listener]] = self._listeners
        key: Any = kind
        if issubclass(kind, Record):
            table, key = self._of_records, kind.kind
            self.record = self._record
        table[key] = [*table.get(key, ()), listener]
        self.heard = bool(self._listeners)

        def end() -> None:
            left = [each for each in table.pop(key, ()) if each is not listener]
            if left:
                table[key] = left
            if not self._of_records:
                self.record = self._log
            self.heard = bool(self._listeners)

        return end

    def report(self, event: object) -> None:
        """Call those that listen to events of its type."""
        for listener in self._listeners.get(type(event), ()):
            listener(event)

    def _record(self, packed: Packed) -> None:
        self._log(packed)
        listeners = [*self._of_records.get(packed[1], ()), *self._of_records.get("", ())]
        if listeners:
            record = unpacked(packed)
            for listener in listeners:
                listener(record)
