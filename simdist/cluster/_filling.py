"""Max-min fairness by progressive filling: the speeds of several flows that want the same links.

All flows grow at the same rate in bytes. When a link is full, or a flow as fast as it is alone, the flows concerned
stay as they are, and the others go on growing (Bertsekas and Gallager, Data Networks, 6.5.2; SimGrid's maxmin.cpp). A
flow may put a different share of its bytes on each of its links: a ring loads all equally, a star its centre most.

A speed is a share of the speed that the flow has alone, so 1.0 is the exact number for a flow that nothing slows down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

__all__ = ["fill"]

_Link = TypeVar("_Link")

_SAME = 1 + 1e-12  # levels that differ only by rounding are equal


def fill(loads: Sequence[Mapping[_Link, float]], byte_ns: Sequence[float]) -> list[float]:
    """The speed of each flow, in (0, 1].

    `loads[f][l]` is the share of link l's bandwidth that flow f takes at full speed, `byte_ns[f]` the time of one byte
    of it at that speed.

    Example:
        >>> fill([{"a": 1.0}, {"a": 1.0, "b": 1.0}, {"b": 0.25}], [1.0, 1.0, 1.0])
        [0.5, 0.5, 1.0]
    """
    speeds = [0.0] * len(loads)
    free: dict[_Link, float] = {}
    wanted: dict[_Link, float] = {}  # of each link by the flows that grow, per byte and ns of their rate
    users: dict[_Link, dict[int, None]] = {}
    for flow, load in enumerate(loads):
        for link, share in load.items():
            if link not in free:
                free[link], wanted[link], users[link] = 1.0, 0.0, {}
            wanted[link] += share * byte_ns[flow]
            users[link][flow] = None
    growing = dict.fromkeys(range(len(loads)))
    while growing:
        level = min(1.0 / byte_ns[flow] for flow in growing)
        for link, amount in wanted.items():
            if users[link]:
                level = min(level, max(0.0, free[link]) / amount)
        full = [link for link in wanted if users[link] and free[link] / wanted[link] <= level * _SAME]
        staying = dict.fromkeys(flow for flow in growing if 1.0 / byte_ns[flow] <= level * _SAME)
        for link in full:
            staying.update(users[link])
        for flow in sorted(staying):
            del growing[flow]
            speed = level * byte_ns[flow]
            speeds[flow] = speed = 1.0 if speed * _SAME >= 1.0 else speed
            for link, share in loads[flow].items():
                free[link] -= share * speed
                wanted[link] -= share * byte_ns[flow]
                del users[link][flow]
    return speeds
