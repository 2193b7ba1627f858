"""The one interface for everything that watches or interferes.

*Judges* are called before an effect: the layer that causes it announces a typed event and acts on the verdict. Events
must not be changed; those that training makes at each step are not frozen, because that takes five times as long. Every
judge is called, so that each can count the events, and their verdicts are added up. *Listeners* are called afterwards,
in the order in which they were added, on the thread that reports. They get two kinds: records of `simdist.records`,
which the log keeps, and events, which carry objects that live only now (a process, a work) and must not be kept.

Without judges and listeners the bus costs nothing. The layer calls `wants` before it builds an event to announce, and
`hears` before it builds one to report, a dictionary look-up each. Records are made anyway, for the log: `record` is the
log's own function until the first listener to records is added, and only then looks for listeners.
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
    """Replaces an effect's payload or result by another of the same type; the kernel does not look inside."""

    def __call__(self, payload: _Payload, /) -> _Payload:
        """Return the object that replaces the payload."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What judges decide about an announced effect.

    `delay_ns` delays it; `strike` is called before, during or after it (`when`), and may kill or stop the very task
    that causes it; `error` is raised in its place, after a delay and a strike before it. `change` gets the effect's
    payload (the bytes of a write, the tensors that an operation reads) and returns the payload to use instead;
    `change_result` does the same with the effect's result, once it is done (the tensors that an operation fills). With
    `drop` nothing is done, but the program gets the answer of success. `part_bytes` is how much of a write is done, and
    the program gets that number, unless it is struck "during" (then None is half of it).

    Not every effect supports every field: for an unsupported one it fails with a `SimdistError` that says so.
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
        """Combine both: the delays added up, one strike and one change after the other, and the later error.

        The strikes are called at the moment (`when`) of the later one.
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
        self._of_records: dict[str, list[_Listener]] = {}  # by kind; those that listen to all kinds, under ""
        self._log = log
        self.record = log  # hot: one call per record
        # True if a judge judges, or a listener gets, events of this type. Hot: the dictionaries' own functions.
        self.wants: Callable[[type], bool] = self._judges.__contains__
        self.hears: Callable[[type], bool] = self._listeners.__contains__
        self.active = False  # true once there is any judge
        self.heard = False  # true while there is a listener to events; hot too: read before `hears`

    def intercept(self, kind: type[_Event], judge: Callable[[_Event], Verdict]) -> None:
        """Call `judge` for every announced event of exactly the type `kind`, after the judges already there."""
        self._judges.setdefault(kind, []).append(judge)
        self.active = True

    def dismiss(self) -> None:
        """Drop all judges: the world is gone."""
        self._judges.clear()
        self.active = False

    def announce(self, event: object) -> Verdict:
        """Call the judges of `event`; returns their combined verdict."""
        answer = PASS
        for judge in self._judges.get(type(event), ()):
            verdict = judge(event)
            if verdict is not PASS:
                answer = verdict if answer is PASS else answer.and_then(verdict)
        return answer

    def listen(self, kind: type[_Event], listener: Callable[[_Event], None]) -> Callable[[], None]:
        """Call `listener` for every event of exactly the type `kind`; returns a function that ends that.

        That function may be called repeatedly. With a class of records as `kind`, it gets every record of that kind.
        `Record` stands for all kinds.
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
        """Call the listeners to events of its type."""
        for listener in self._listeners.get(type(event), ()):
            listener(event)

    def _record(self, packed: Packed) -> None:
        self._log(packed)
        listeners = [*self._of_records.get(packed[1], ()), *self._of_records.get("", ())]
        if listeners:
            record = unpacked(packed)
            for listener in listeners:
                listener(record)
