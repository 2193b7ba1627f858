"""What simdist knows of the operating system below Python: calls of the C library, and who makes them.

Nothing here loads torch. On other systems than Linux all of it can be imported; its functions check the system.
"""

from simdist.inside.system import _nvml as nvml
from simdist.inside.system._calls import ask_parent_signal, become_subreaper, c_library, call, watch_opens
from simdist.inside.system._leading import LED_TYPES, LedFunction, error_number, is_address_of, set_error_number
from simdist.inside.system._slots import Slot, put_into, slots_of
from simdist.inside.system._sockets import listens_at
from simdist.inside.system._timers import KillTimer

__all__ = [
    "LED_TYPES",
    "KillTimer",
    "LedFunction",
    "Slot",
    "ask_parent_signal",
    "become_subreaper",
    "c_library",
    "call",
    "error_number",
    "is_address_of",
    "listens_at",
    "nvml",
    "put_into",
    "set_error_number",
    "slots_of",
    "watch_opens",
]
