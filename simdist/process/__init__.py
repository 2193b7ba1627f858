"""What makes a task look like an operating-system process.

Per rank: environment, arguments, standard streams, clock, random generators, entropy, pid, exit code, signals, atexit.
Three techniques:

- Functions that Python code *calls* (`time.sleep`, `os._exit`, `uuid.uuid4`) do something else while a world lives.
  They ask which thread is calling; every other thread of the host gets the original. The function object itself is
  redirected (`Redirection`), so it does not matter which code imported it, or when; `original` returns the original.
- State that code *reads* (generator states, `sys.argv`) is swapped when the baton goes to another process (`_slots`);
  the layers above add their own state.
- A method of a class is replaced in the class, and where user code took it before the world began (`_early`).

A process has tasks: threads of control that share all this and end with it. It lives on a host of the cluster, which
has its own name and address. `multiprocessing` starts simulated processes too, and they talk over real pipes.

The packages, each of which imports only those before it:

- this folder: the process, who is running, what is swapped and replaced, signals, exits, standard streams;
- `stdlib`: what the standard library shows a process, one file for each part of it;
- `threads`: threads of a rank, and the locks and queues on which they wait in virtual time;
- `adapters`: installed libraries that bypass what a rank is shown;
- `modules`: which modules, classes and attributes each process has for itself;
- `children`: processes and programs that a rank starts.

Open `_process.py` for the process itself, `_runtime.py` for which one runs, `_installed.py` for what a world replaces.
Nothing here knows about torch or process groups.
"""

from simdist.inside.python import original
from simdist.process._events import HandedOver, PointReached, RankBegan, StepReached, ThreadBegan
from simdist.process._imports import imported_for_all
from simdist.process._installed import PythonReplacements
from simdist.process._patches import Patched, Patches, Replacement, patched_now
from simdist.process._process import SimProcess, process_of
from simdist.process._randomness import GlobalGenerator, Memory, global_generators
from simdist.process._runtime import Extra, Extras, Runtime, class_on_ranks, current_process, current_runtime, on_ranks
from simdist.process._slots import Slot, Slots, name_own
from simdist.process._stdio import RankStream, prints_on_host
from simdist.process._undoing import Undoing, call_all
from simdist.process._verdicts import Strike, carry_out, refusal_of
from simdist.process._when_imported import adapted_modules, when_imported
from simdist.process.children._child_processes import adopt_connections, hand_connections, separate_attributes
from simdist.process.children._ignored_signals import ignored_by_host
from simdist.process.modules._copiers import COPIERS
from simdist.process.modules._isolation import Isolation, handed_over, own, run_program
from simdist.process.modules._rank_readers import kept_for_all
from simdist.process.modules._sharing import PER_RANK, Sharing
from simdist.process.stdlib._collector import Rounds, collector_of, leave_to_rounds
from simdist.process.stdlib._cut_off_files import is_cut_off
from simdist.process.stdlib._entropy import drawn_from
from simdist.process.stdlib._environ import encoded, variable_of, with_imports
from simdist.process.stdlib._file_times import FileTimes, KeptTimes, moved_file, touched_folder, wrote_file
from simdist.process.stdlib._host_names import address_of_host
from simdist.process.stdlib._process_wide import followed, followed_variables
from simdist.process.stdlib._warnings import is_filter_of_import, note_shown_again
from simdist.process.threads._lock_kinds import real_methods
from simdist.process.threads._threads import shut_down, waits_of_threads
from simdist.process.threads._tracing import trace_main_thread

__all__ = [
    "COPIERS",
    "PER_RANK",
    "Extra",
    "Extras",
    "FileTimes",
    "GlobalGenerator",
    "HandedOver",
    "Isolation",
    "KeptTimes",
    "Memory",
    "Patched",
    "Patches",
    "PointReached",
    "PythonReplacements",
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
    "ThreadBegan",
    "Undoing",
    "adapted_modules",
    "address_of_host",
    "adopt_connections",
    "call_all",
    "carry_out",
    "class_on_ranks",
    "collector_of",
    "current_process",
    "current_runtime",
    "drawn_from",
    "encoded",
    "followed",
    "followed_variables",
    "global_generators",
    "hand_connections",
    "handed_over",
    "ignored_by_host",
    "imported_for_all",
    "is_cut_off",
    "is_filter_of_import",
    "kept_for_all",
    "leave_to_rounds",
    "moved_file",
    "name_own",
    "note_shown_again",
    "on_ranks",
    "original",
    "own",
    "patched_now",
    "prints_on_host",
    "process_of",
    "real_methods",
    "refusal_of",
    "run_program",
    "separate_attributes",
    "shut_down",
    "touched_folder",
    "trace_main_thread",
    "variable_of",
    "waits_of_threads",
    "when_imported",
    "with_imports",
    "wrote_file",
]
