"""Times that vary between the runs of a cluster, as on machines that do other things too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from simdist.cluster._model_spec import Described
from simdist.values import Duration, Number

__all__ = ["Jitter"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Jitter(Described):
    """How much times vary under the policies "random" and "pct:D", drawn from the seed of the schedule.

    Each rank begins up to `start_ns` late, in every life. An effect on a simulated disk takes up to `disk` times as
    long in addition, a kernel or copy of a virtual device up to `compute` times: with 0.5 up to 1.5 times as long as
    usual. Under "fifo", and in systematic searches, everything takes its usual time. Requests to stores, and messages
    to any receiver, vary under these policies even without a jitter.

    Raises:
        TopologyError: an argument is invalid.

    Example:
        >>> Jitter(start_ns=5_000_000, disk=2)
        simdist.cluster.Jitter(start_ns=5000000, disk=2.0)
    """

    start_ns: Annotated[int, Duration()] = 0
    disk: Annotated[float, Number(least=0)] = 0.0
    compute: Annotated[float, Number(least=0)] = 0.0
