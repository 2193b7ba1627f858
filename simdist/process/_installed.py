"""All of Python that is replaced while a world lives, in one place."""

from __future__ import annotations

import _thread

from simdist.inside.python import original
from simdist.kernel import Simulation
from simdist.process import (
    _children,
    _clock,
    _collector,
    _descriptors,
    _entropy,
    _environ,
    _exits,
    _fault_reports,
    _host_names,
    _left_behind,
    _libraries,
    _lock_methods,
    _multiprocessing,
    _process_wide,
    _shared_memory,
    _signals,
    _sockets,
    _standard_descriptors,
    _stdio,
    _tempfiles,
    _thread_functions,
    _time_zone,
    _uuids,
    _waits,
    _warnings,
)
from simdist.process._file_times import FileTimes
from simdist.process._file_times import install as install_file_times
from simdist.process._following import follow
from simdist.process._left_behind import LeftBehind
from simdist.process._locks import Locks
from simdist.process._patches import Patches

__all__ = ["FileTimes", "LeftBehind", "follow", "install", "install_file_times"]

# What does not depend on the world.
_ALWAYS = tuple(
    module.install
    for module in (
        _children,
        _clock,
        _collector,
        _descriptors,
        _entropy,
        _environ,
        _exits,
        _fault_reports,
        _host_names,
        _left_behind,
        _lock_methods,
        _multiprocessing,
        _process_wide,
        _shared_memory,
        _signals,
        _sockets,
        _standard_descriptors,
        _tempfiles,
        _thread_functions,
        _time_zone,
        _uuids,
        _waits,
        _warnings,
    )
)


def install(patches: Patches, simulation: Simulation) -> None:
    """Let the tasks of a simulation see their own process, and everybody else the host's."""
    _lock_methods.begin(patches, Locks(simulation))
    patches.install(_ALWAYS)
    _libraries.install(patches)
    _environ.begin(patches)
    _stdio.install(patches)
    _lock_methods.bind_again()
    simulation.start_thread = original(_thread.start_new_thread)
