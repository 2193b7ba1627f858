"""What happens to a call once it is issued: which ranks meet, which wait for which, and what happens if one is missing.

Open `_communicator.py` first: a group's members (`calls/_member.py`), and the matching of their collectives by number.
`_collective.py` has one collective from its first caller to its last, in phases, and the case in which all goes well;
`_mailbox.py` (with `_matching.py` and `_message.py`) has the messages. A collective in which something is out of order
is followed: `_followed.py` feeds a `Flow` (`_flow.py`, `_ring.py` for large rings, `_recalled.py` where the last one is
known to have found the same) with facts and acts on its findings. `_hand_over.py` gives each rank its bytes
(`_movement.py`), and `_strikes.py` keeps the faults that strike inside. `_data.py` has the results when nothing is
wrong, `_wire.py` the load on the network, and `_rendezvous.py` how the members meet.

Nothing here knows a backend's name: a backend's strategies say how it differs from others.
"""

from simdist.c10d.engine._communicator import Communicator
from simdist.c10d.engine._flow import Blocked, Done, Failed, Flow
from simdist.c10d.engine._mailbox import Mailbox
from simdist.c10d.engine._message import P2PWork
from simdist.c10d.engine._program import Program, ProgramBuilder, Step
from simdist.c10d.engine._rendezvous import connect
from simdist.c10d.engine._ring import Phase, Ring, RingFlow
from simdist.c10d.engine._strategies import (
    Algorithm,
    Backend,
    Collision,
    Completion,
    Failure,
    MonitoredBarrier,
    Sizes,
    StreamAlgorithm,
)

__all__ = [
    "Algorithm",
    "Backend",
    "Blocked",
    "Collision",
    "Communicator",
    "Completion",
    "Done",
    "Failed",
    "Failure",
    "Flow",
    "Mailbox",
    "MonitoredBarrier",
    "P2PWork",
    "Phase",
    "Program",
    "ProgramBuilder",
    "Ring",
    "RingFlow",
    "Sizes",
    "Step",
    "StreamAlgorithm",
    "connect",
]
