"""Compares two accounts: the points in which a simulated and a real run agree, and those in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simdist.hardware.compare._account import Account, Operation
from simdist.hardware.compare._match import Match
from simdist.scenario import difference

__all__ = ["Point", "compare", "recorders"]

_NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Point:
    """One judged point, as both sides have it. `rank` is -1 for a point of the world."""

    name: str
    rank: int
    ok: bool
    simulated: str
    real: str


def compare(simulated: Account, real: Account) -> tuple[Point, ...]:
    """Return every judged point, in a fixed order: by kind, then by rank."""
    points: list[Point] = []
    for judge in _JUDGES:
        points += judge(simulated, real)
    return tuple(points)


def recorders(matches: Sequence[Match]) -> tuple[Point, ...]:
    """Return a point for each rank and life of a real run that has a flight record of torch.

    Torch's recorder and simdist's must agree on what the rank did, independent of the simulation. A record that can't
    be read is shown, and not judged.
    """
    several = any(match.record.life for match in matches)
    points = []
    for match in matches:
        record, count = match.record, f"{match.compared} entries"
        name = f"flight record in life {record.life}" if several else "flight record"
        torch, simdist = match.disagreement or (f"torch: {count}", f"recorded: {count}")
        if match.disagreement:
            torch, simdist = f"torch's flight recorder saw {torch}", f"simdist recorded {simdist}"
        if record.problem:
            torch = f"torch's flight record {record.problem}"
        points.append(Point(name, record.rank, match.disagreement is None, simdist, torch))
    return tuple(points)


def _outcomes(simulated: Account, real: Account) -> Iterator[Point]:
    for rank in sorted(simulated.outcomes):
        one, other = simulated.outcomes[rank], real.outcomes.get(rank, _NOTHING)
        # A rank that the launcher stopped at the end might have reached its own end a moment later.
        cut = any(key[0] == rank and key[1] == simulated.restarts for key in simulated.cut | real.cut)
        yield Point("outcome", rank, one == other or cut, one, other)


def _exceptions(simulated: Account, real: Account) -> Iterator[Point]:
    for rank in sorted(simulated.exceptions.keys() | real.exceptions.keys()):
        one, other = simulated.exceptions.get(rank, _NOTHING), real.exceptions.get(rank, _NOTHING)
        cut = any(key[0] == rank and key[1] == simulated.restarts for key in simulated.cut | real.cut)
        yield Point("exception", rank, one == other or (cut and _NOTHING in (one, other)), one, other)


def _values(simulated: Account, real: Account) -> Iterator[Point]:
    for rank in sorted(simulated.values.keys() & real.values.keys()):
        text = difference(simulated.values[rank], real.values[rank])
        yield Point("value", rank, text is None, repr(simulated.values[rank]), text or repr(real.values[rank]))


def _sequences(name: str, of: Callable[[Account], Mapping[tuple[int, int], Sequence[object]]]) -> _Judge:
    def judge(simulated: Account, real: Account) -> Iterator[Point]:
        ours, theirs = of(simulated), of(real)
        for rank, life in sorted(ours.keys() | theirs.keys()):
            key = rank, life
            one, other = list(ours.get(key, ())), list(theirs.get(key, ()))
            if key in simulated.cut | real.cut:
                shorter = min(len(one), len(other))
                one, other = one[:shorter], other[:shorter]
            index = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            if index is None and len(one) != len(other):
                index = min(len(one), len(other))
            called = f"{name} in life {life}" if simulated.restarts or real.restarts else name
            if index is None:
                yield Point(called, rank, True, str(len(one)), str(len(other)))
            else:
                yield Point(called, rank, False, _entry(one, index), _entry(other, index))

    return judge


def _entry(sequence: Sequence[object], index: int) -> str:
    return f"#{index}: {_words(sequence[index])}" if index < len(sequence) else f"#{index}: {_NOTHING}"


def _words(entry: object) -> str:
    if not isinstance(entry, tuple):
        return str(entry)
    op, group, seq, nbytes, dtype, shape, peer = entry
    towards = f", peer {peer}" if peer >= 0 else ""
    return f"{op} #{seq} in group {group!r}, {dtype}{list(shape)}, {nbytes} bytes{towards}"


_Judge = Callable[[Account, Account], Iterator[Point]]
_Excuse = Callable[[Account, Account, int, int, Operation], bool]


def _never(simulated: Account, real: Account, rank: int, life: int, key: Operation) -> bool:
    return False


def _torn(simulated: Account, real: Account, rank: int, life: int, key: Operation) -> bool:
    """True if the operation failed on both sides because a connection ended.

    How much had arrived by then is a race in reality, of microseconds, and no simulation can know its outcome. Nor are
    there two results to compare if, in the simulation, the operation may not have written all of its tensors.
    """
    if key not in simulated.results.get((rank, life), {}):
        return True
    texts = [account.errors.get((rank, life), {}).get(key, "") for account in (simulated, real)]
    return all("by peer" in text for text in texts)


def _tables(
    name: str, of: Callable[[Account], Mapping[tuple[int, int], Mapping[Operation, object]]], excused: _Excuse
) -> _Judge:
    def judge(simulated: Account, real: Account) -> Iterator[Point]:
        ours, theirs = of(simulated), of(real)
        for rank, life in sorted(ours.keys() | theirs.keys()):
            one, other = ours.get((rank, life), {}), theirs.get((rank, life), {})
            # A killed rank may not have lived to write its last events.
            cut = (rank, life) in simulated.cut | real.cut or not simulated.outcomes[rank].startswith("r")
            names = sorted(one.keys() & other.keys() if cut else one.keys() | other.keys())
            wrong = [
                key for key in names if one.get(key) != other.get(key) and not excused(simulated, real, rank, life, key)
            ]
            called = f"{name} in life {life}" if simulated.restarts or real.restarts else name
            if not wrong:
                yield Point(called, rank, True, str(len(names)), str(len(names)))
            else:
                op, group, seq = wrong[0]
                what = f"{op} #{seq} in group {group!r}"
                shown = [_shown(each.get(wrong[0], _NOTHING)) for each in (one, other)]
                yield Point(called, rank, False, f"{what}: {shown[0]}", f"{what}: {shown[1]}")

    return judge


def _shown(value: object) -> str:
    return f"{value:08x}" if isinstance(value, int) else str(value)


def _world(simulated: Account, real: Account) -> Iterator[Point]:
    yield Point("restarts", -1, simulated.restarts == real.restarts, str(simulated.restarts), str(real.restarts))
    one, other = "; ".join(simulated.faults) or "none", "; ".join(real.faults) or "none"
    yield Point("faults", -1, one == other, one, other)
    for path in sorted(simulated.state):
        left, right = simulated.state[path], real.state.get(path, "missing")
        yield Point(f"state of {path}", -1, left == right, left, right)


_JUDGES: tuple[Callable[[Account, Account], Iterator[Point]], ...] = (
    _world,
    _outcomes,
    _exceptions,
    _sequences("steps", lambda account: account.steps),
    _sequences("operations", lambda account: account.operations),
    _tables("errors", lambda account: account.errors, _never),
    _tables("results", lambda account: account.results, _torn),
    _values,
)
