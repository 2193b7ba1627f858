"""The commands and their options; each imports its modules when it runs.

Open `_runs.py` first. `_searches.py` has the commands that run a scenario many times, `_machines.py` those that need
real processes, `_looks.py` those without runs.
"""

from simdist.cli.commands._looks import build_devices, docs, doctor, list_command, patches, show, validate
from simdist.cli.commands._machines import calibrate, parity
from simdist.cli.commands._runs import launch_command, run
from simdist.cli.commands._searches import explore, fuzz, replay, sweep

__all__ = [
    "build_devices",
    "calibrate",
    "docs",
    "doctor",
    "explore",
    "fuzz",
    "launch_command",
    "list_command",
    "parity",
    "patches",
    "replay",
    "run",
    "show",
    "sweep",
    "validate",
]
