"""What link faults do to a packet at a moment: let it pass, late, or never. No clock and no socket in here."""

from __future__ import annotations

from collections.abc import Sequence

from simdist.faults import Fault, Hold, LinkDelay, Partition, begin_text, end_text

__all__ = ["Conditions", "link_faults"]


def link_faults(faults: Sequence[Fault]) -> list[LinkDelay | Partition | Hold]:
    """Those that befall links."""
    return [fault for fault in faults if isinstance(fault, LinkDelay | Partition | Hold)]


class Conditions:
    """The link faults of a run, in its own seconds: `scale` of them are one virtual second."""

    def __init__(self, faults: Sequence[Fault], scale: float) -> None:
        self._faults = link_faults(faults)
        self._scale = scale
        self._last_s: dict[tuple[int, int], float] = {}  # when the last packet between two ranks arrives

    def due_s(self, src: int, dst: int, now_s: float) -> float | None:
        """When a packet that leaves `src` at `now_s` is to arrive at `dst`; None if it is lost.

        Infinite for one that is held until somebody releases it, which in a real run nobody does. Packets keep their
        order.
        """
        due_s = now_s
        for fault in self._faults:
            start_s, until_s = self._span_s(fault)
            if not start_s <= now_s < until_s:
                continue
            if isinstance(fault, Partition):
                if _is_cut(fault, src, dst):
                    return None
            elif (src, dst) == (fault.src, fault.dst) or (fault.both_ways and (dst, src) == (fault.src, fault.dst)):
                if isinstance(fault, LinkDelay):
                    due_s += fault.delay_ns / 1e9 * self._scale
                else:
                    due_s = max(due_s, until_s)
        self._last_s[src, dst] = due_s = max(due_s, self._last_s.get((src, dst), due_s))
        return due_s

    def events(self) -> list[tuple[float, Fault, str]]:
        """What the run's events say of them, and when."""
        told: list[tuple[float, Fault, str]] = []
        for fault in self._faults:
            start_s, until_s = self._span_s(fault)
            told.append((start_s, fault, begin_text(fault)))
            if fault.until_ns is not None and not isinstance(fault, LinkDelay):
                told.append((until_s, fault, end_text(fault)))
        return sorted(told, key=lambda event: event[0])

    def _span_s(self, fault: LinkDelay | Partition | Hold) -> tuple[float, float]:
        until_s = float("inf") if fault.until_ns is None else fault.until_ns / 1e9 * self._scale
        return fault.start_ns / 1e9 * self._scale, until_s


def _is_cut(fault: Partition, src: int, dst: int) -> bool:
    sides = [index for rank in (src, dst) for index, group in enumerate(fault.groups) if rank in group]
    return len(sides) == 2 and sides[0] != sides[1]
