"""What link faults do to a packet at a moment: let it pass, late, or never. No clock and no socket in here."""

from __future__ import annotations

from collections.abc import Sequence

from simdist.faults import Fault, LinkFault

__all__ = ["Conditions", "link_faults"]


def link_faults(faults: Sequence[Fault]) -> list[LinkFault]:
    """Those that strike links."""
    return [fault for fault in faults if isinstance(fault, LinkFault)]


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
            effect = fault.effect_on(src, dst) if start_s <= now_s < until_s else None
            if effect is None:
                continue
            if effect.blocked:
                return None
            due_s += effect.delay_ns / 1e9 * self._scale
            if effect.held:
                due_s = max(due_s, until_s)
        self._last_s[src, dst] = due_s = max(due_s, self._last_s.get((src, dst), due_s))
        return due_s

    def events(self) -> list[tuple[float, LinkFault, str]]:
        """What the run's events say of them, and when."""
        told: list[tuple[float, LinkFault, str]] = []
        for fault in self._faults:
            start_s, until_s = self._span_s(fault)
            told.append((start_s, fault, fault.begins()))
            if fault.until_ns is not None and fault.says_its_end:
                told.append((until_s, fault, fault.ends()))
        return sorted(told, key=lambda event: event[0])

    def _span_s(self, fault: LinkFault) -> tuple[float, float]:
        until_s = float("inf") if fault.until_ns is None else fault.until_ns / 1e9 * self._scale
        return fault.start_ns / 1e9 * self._scale, until_s
