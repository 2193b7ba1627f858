"""What makes a task look like an operating-system process.

Per rank: environment, arguments, standard streams, clock, random generators, pid, exit code, signals, `atexit`. Two
techniques: what Python code *calls* (`time.sleep`, `os._exit`, `print`) is replaced for the length of a world by a
function that asks which thread is calling, so that every other thread of the host sees the original; what code *reads*
(generator states, `sys.argv`) is swapped when the baton changes hands.

Open `_process.py` for the process itself, `_runtime.py` for who is running and what is patched; each other file holds
one group of replacements. Nothing here knows about process groups.
"""

from simdist.process._process import ProcessEnded, SimProcess
from simdist.process._runtime import Patches, Runtime, current_process, current_runtime
from simdist.process._stdio import RankStream

__all__ = [
    "Patches",
    "ProcessEnded",
    "RankStream",
    "Runtime",
    "SimProcess",
    "current_process",
    "current_runtime",
]
