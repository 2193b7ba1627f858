"""What makes a task look like an operating-system process.

Per rank: environment, arguments, standard streams, clock, random generators, entropy, pid, exit code, signals, atexit.
Three techniques:

- What Python code *calls* (`time.sleep`, `os._exit`, `uuid.uuid4`) does something else for the length of a world: it
  asks which thread is calling, so that every other thread of the host sees the original. The function object itself
  is redirected (`Redirection`), so it does not matter who took it and when; `original` gives what it was.
- What code *reads* (generator states, `sys.argv`) is swapped when the baton goes to another process (`_slots`); the
  layers above add what is theirs.
- What is a method of a class is replaced in the class, and found where user code took it before (`_early`).

A process has tasks: threads of control that share all this and end with it. `_threads` makes them of the threads that a
rank starts, `_locks` and `_descriptors` let them wait in virtual time. It lives on a host of the cluster, which
has its own name and address (`_host_names`). What it starts with `multiprocessing` are such processes too
(`_child_processes`), and they talk over real pipes (`_pipes`).

Open `_process.py` for the process itself, `_runtime.py` for who is running and what is patched; each other file holds
one group of replacements. Nothing here knows about torch or process groups.
"""

from simdist.inside.python import original
from simdist.process._child_processes import adopt_connections, hand_connections, separate_attributes
from simdist.process._collector import Rounds, collector_of
from simdist.process._entropy import drawn_from
from simdist.process._environ import encoded, variable_of
from simdist.process._events import PointReached, RankBegan, StepReached
from simdist.process._file_times import wrote_file
from simdist.process._forked import COPIERS
from simdist.process._host_names import address_of_host
from simdist.process._ignored_signals import ignored_by_host
from simdist.process._imports import imported_for_all
from simdist.process._isolation import Isolation, handed_over, own, run_program
from simdist.process._libraries import when_imported
from simdist.process._lock_kinds import real_methods
from simdist.process._process import SimProcess
from simdist.process._process_wide import followed
from simdist.process._randomness import GlobalGenerator, global_generators
from simdist.process._runtime import Patches, Replacement, Runtime, current_process, current_runtime
from simdist.process._sharing import PER_RANK, Sharing
from simdist.process._slots import Slot, Slots
from simdist.process._stdio import RankStream
from simdist.process._threads import shut_down, waits_of_threads
from simdist.process._undoing import Undoing, call_all
from simdist.process._verdicts import Strike, carry_out, refusal_of

__all__ = [
    "COPIERS",
    "PER_RANK",
    "GlobalGenerator",
    "Isolation",
    "Patches",
    "PointReached",
    "RankBegan",
    "RankStream",
    "Replacement",
    "Rounds",
    "Runtime",
    "Sharing",
    "SimProcess",
    "Slot",
    "Slots",
    "StepReached",
    "Strike",
    "Undoing",
    "address_of_host",
    "adopt_connections",
    "call_all",
    "carry_out",
    "collector_of",
    "current_process",
    "current_runtime",
    "drawn_from",
    "encoded",
    "followed",
    "global_generators",
    "hand_connections",
    "handed_over",
    "ignored_by_host",
    "imported_for_all",
    "original",
    "own",
    "real_methods",
    "refusal_of",
    "run_program",
    "separate_attributes",
    "shut_down",
    "variable_of",
    "waits_of_threads",
    "when_imported",
    "wrote_file",
]
