"""Gloo, exactly: its error texts, schedules, order of additions and closed forms (torch 2.13).

`_arguments.py` refuses calls with ProcessGroupGloo's texts, `_schedules.py` lists the messages that each rank sends and
receives, `_folds.py` adds up bit for bit, `_words.py` reports timeouts and closed connections, `_monitored.py` is the
monitored barrier. The engine's `_ring.py` follows large rings in arrays.
"""

from simdist.c10d.backends.gloo import _arguments
from simdist.c10d.backends.gloo._algorithm import GlooAlgorithm
from simdist.c10d.backends.gloo._messages import GlooMessage
from simdist.c10d.backends.gloo._monitored import monitored_barrier
from simdist.c10d.backends.gloo._words import GlooFailure
from simdist.c10d.calls._work import SimWork
from simdist.c10d.engine import Backend, Completion

__all__ = ["GLOO", "GlooAlgorithm", "GlooFailure", "GlooMessage"]

_failure = GlooFailure()
GLOO = Backend(
    name="gloo",
    arguments=_arguments,
    algorithm=GlooAlgorithm(),
    failure=_failure,
    completion=Completion(work=SimWork, message=GlooMessage),
    monitored_barrier=monitored_barrier,
    unreachable=_failure,
    threads=2,
)
