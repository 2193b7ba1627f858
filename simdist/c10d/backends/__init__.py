"""The backends, one folder each. They do not import each other, and the engine knows none of them by name.

This module combines the folder `ideal` with Gloo's arguments and arithmetic. Another backend that exists in
simulation only needs a folder, an entry of `SIMULATED`, and its name in `simdist.settings.BACKENDS`.
"""

import dataclasses

from simdist.c10d.backends.gloo import GLOO
from simdist.c10d.backends.ideal import IdealFailure
from simdist.c10d.calls._work import SimWork
from simdist.c10d.engine import Completion, P2PWork

__all__ = ["GLOO", "IDEAL", "SIMULATED"]

IDEAL = dataclasses.replace(
    GLOO, name="sim", failure=IdealFailure(), completion=Completion(work=SimWork, message=P2PWork), unreachable=None
)
SIMULATED = {each.name: each for each in (IDEAL,)}
"""The backends that exist in simulation only, by name."""
