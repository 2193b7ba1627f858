"""The effect of link faults on a packet at a moment: it passes, late, or never. Uses no clock and no socket."""

from __future__ import annotations

from collections.abc import Sequence

from simdist.faults import Fault, LinkFault, numbers_for

__all__ = ["Conditions", "link_faults"]


def link_faults(faults: Sequence[Fault]) -> list[LinkFault]:
    """Return the faults that strike links."""
    return [fault for fault in faults if isinstance(fault, LinkFault)]


class Conditions:
    """The link faults of a run, in the run's own seconds: `scale` of them are one virtual second.

    Random effects on a packet are drawn from the `seed` and the time at which it leaves.
    """

    def __init__(self, faults: Sequence[Fault], scale: float, seed: int = 0) -> None:
        self._faults = link_faults(faults)
        self._numbers = [numbers_for(each, faults[: _place(faults, each)], seed=seed) for each in self._faults]
        self._scale = scale
        self._free_s: dict[tuple[int, int, int], float] = {}  # by fault and two ranks: when a slow cable is free
        self._last_s: dict[tuple[int, int], float] = {}  # when the last packet between two ranks arrives

    def due_s(self, src: int, dst: int, now_s: float, size_bytes: int = 0) -> float | None:
        """Return when a packet of this size that leaves `src` at `now_s` arrives at `dst`; None if it is lost.

        Infinite for one that is held until the fault is lifted, which never happens in a real run. Packets keep their
        order.
        """
        due_s = now_s
        now_ns = round(now_s / self._scale * 1e9)
        for index, (fault, draw) in enumerate(zip(self._faults, self._numbers, strict=True)):
            effect = fault.effect_on(src, dst) if fault.is_on(now_ns) else None
            if effect is None:
                continue
            if effect.blocked or effect.loses(draw, src, dst, now_ns):
                return None
            longer_ns = effect.delay_ns + (effect.longer_ns(draw, src, dst, now_ns) if effect.is_drawn else 0)
            due_s += longer_ns / 1e9 * self._scale
            if effect.bandwidth:  # an endless queue in front of a slow cable
                place = index, src, dst
                due_s = max(due_s, self._free_s.get(place, due_s)) + size_bytes / effect.bandwidth * self._scale
                self._free_s[place] = due_s
            if effect.held:
                due_s = max(due_s, self._span_s(fault)[1])
        self._last_s[src, dst] = due_s = max(due_s, self._last_s.get((src, dst), due_s))
        return due_s

    def events(self) -> list[tuple[float, LinkFault, str]]:
        """Return the texts of the run's events about these faults, with their times."""
        reported: list[tuple[float, LinkFault, str]] = []
        for fault in self._faults:
            start_s, until_s = self._span_s(fault)
            reported.append((start_s, fault, fault.begins()))
            if fault.until_ns is not None and fault.says_its_end:
                reported.append((until_s, fault, fault.ends()))
        return sorted(reported, key=lambda event: event[0])

    def _span_s(self, fault: LinkFault) -> tuple[float, float]:
        until_s = float("inf") if fault.until_ns is None else fault.until_ns / 1e9 * self._scale
        return fault.start_ns / 1e9 * self._scale, until_s


def _place(faults: Sequence[Fault], fault: Fault) -> int:
    return next(index for index, each in enumerate(faults) if each is fault)
