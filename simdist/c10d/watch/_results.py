"""What operations leave in a rank's tensors, for comparing with another run: a listener of works that were waited for.

Tensors that an operation may not have written are no result of it: memory that was never written differs between runs.
"""

from __future__ import annotations

from simdist._content import content_checksum
from simdist.c10d.calls import IN_PLACE
from simdist.c10d.calls._unseen import unseen
from simdist.c10d.calls._work import SimWork, WorkWaited
from simdist.kernel import Bus
from simdist.records import result_noted

__all__ = ["note_results"]


def note_results(bus: Bus) -> None:
    """Record a checksum over the results of each work, once."""
    note = unseen(_note)
    bus.listen(WorkWaited, lambda event: note(event.work))


def _note(work: SimWork) -> None:
    for part in work.parts or ():
        _note(part)
    communicator = work.member.communicator
    if work.noted or work.parts or not communicator.counted:
        return
    work.noted = True
    if (work.partial or work.error is not None) and work.name not in IN_PLACE:
        return
    simulation, rank = work.process.simulation, work.process.rank
    crc = content_checksum(work.left())
    simulation.bus.record(result_noted(simulation.now_ns, rank, work.name, communicator.name, work.sequence, crc))
