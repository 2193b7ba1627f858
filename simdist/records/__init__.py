"""What happens in a run: one class for each kind of event, with the names of its fields and what each has to be.

Nothing else lists these names. Layers make records by the functions here, the log keeps them packed, exporters,
comparisons and readers of files ask the classes. Simulated and real ranks write the same kinds, and files are read
where no simulation is, so the classes stand below all layers, one file for each that causes them: `_process.py` a
process and its program, `_operations.py` torch.distributed, `_storage.py` disks, `_run.py` the world around the ranks.
For the same reason the format of torch's own recorder is here (`_flight_dumps.py`): a rank, an exporter and a real
run's reader share it.

Open `_record.py` first: what a record is, and why it is kept packed. Nothing here imports more than `simdist.values`.
"""

from simdist.records._flight_dumps import (
    ELEMENT_BYTES,
    SCALAR_TYPES,
    flight_dump,
    flight_entry,
    flight_group,
    flight_status,
)
from simdist.records._operations import (
    Completed,
    Delayed,
    Failed,
    Issued,
    MessageCompleted,
    MessageIssued,
    NewGroup,
    ResultNoted,
    StoreAsked,
    completed,
    delayed,
    failed,
    issued,
    message_completed,
    message_issued,
    new_group,
    result_noted,
    store_asked,
)
from simdist.records._process import (
    ChildEnded,
    ChildStarted,
    Ended,
    Printed,
    Slept,
    Started,
    StepBegun,
    child_ended,
    child_started,
    ended,
    printed,
    slept,
    started,
    step_begun,
)
from simdist.records._record import Packed, Record, fields_of, kinds, specs, unpacked
from simdist.records._run import Deadlocked, FaultTold, Restarted, deadlocked, fault_told, restarted
from simdist.records._storage import DiskLeft, Stored, disk_left, stored

__all__ = [
    "ELEMENT_BYTES",
    "SCALAR_TYPES",
    "ChildEnded",
    "ChildStarted",
    "Completed",
    "Deadlocked",
    "Delayed",
    "DiskLeft",
    "Ended",
    "Failed",
    "FaultTold",
    "Issued",
    "MessageCompleted",
    "MessageIssued",
    "NewGroup",
    "Packed",
    "Printed",
    "Record",
    "Restarted",
    "ResultNoted",
    "Slept",
    "Started",
    "StepBegun",
    "StoreAsked",
    "Stored",
    "child_ended",
    "child_started",
    "completed",
    "deadlocked",
    "delayed",
    "disk_left",
    "ended",
    "failed",
    "fault_told",
    "fields_of",
    "flight_dump",
    "flight_entry",
    "flight_group",
    "flight_status",
    "issued",
    "kinds",
    "message_completed",
    "message_issued",
    "new_group",
    "printed",
    "restarted",
    "result_noted",
    "slept",
    "specs",
    "started",
    "step_begun",
    "store_asked",
    "stored",
    "unpacked",
]
