"""torch.distributed, simulated: groups, works, stores and what they do when something breaks.

A rank's `SimProcessGroup` (`_group.py`, made of `_reductions.py` and `_copies.py` on `_calls.py` and `_backend.py`)
checks arguments as Gloo does and hands the call to its `Communicator`, which all members share. There calls are matched
into a `Collective`, or into messages of the `Mailbox` (who meets whom: `_matching.py`). Time comes from the cluster's
cost model; data from `_numerics.py`, in Gloo's order of summation; trouble is worked out message by message in a `Flow`
over the schedules of `_programs.py`, or for a large ring in a `RingFlow` (`_ring.py`), all ranks at a time. Stores
(`_store.py`, `_tcp_store.py`) are where groups meet (`_rendezvous.py`). `_install.py` puts all of it where torch looks;
`_meshes.py` and `_compiled.py` keep apart what torch remembers once per process, and `_modes.py` what a program's
dispatch modes see. Beside it stand what watches: `_checked.py` (debug level DETAIL), `_flight_record.py`,
`_profiling.py`, `_strict.py`.

Open `_communicator.py` first, then `_collective.py`.
"""

from simdist.c10d._announcement import OperationIssued, StepReached, StoreRequested
from simdist.c10d._install import RankState, TorchState
from simdist.c10d._modes import unseen
from simdist.c10d._strict import problems_at_end
from simdist.c10d._tcp_store import host_server

__all__ = [
    "OperationIssued",
    "RankState",
    "StepReached",
    "StoreRequested",
    "TorchState",
    "host_server",
    "problems_at_end",
    "unseen",
]
