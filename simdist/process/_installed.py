"""All of Python that is replaced while a world lives, in one place."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from simdist.frames import find_installed
from simdist.inside.python import original
from simdist.kernel import TaskState
from simdist.process import _exits, _signals, _stdio, _when_imported
from simdist.process._following import follow
from simdist.process._patches import Patches
from simdist.process.adapters import _filelock, _frozen_clocks, _joblib, _multiprocess, _psutil, _pydevd, _uvloop
from simdist.process.children import _multiprocessing, _subprocesses, _waits
from simdist.process.modules import _left_behind, _library_state
from simdist.process.modules._left_behind import LeftBehind
from simdist.process.stdlib import (
    _clock,
    _collector,
    _cut_off_files,
    _entropy,
    _environ,
    _fault_reports,
    _file_locks,
    _file_times,
    _host_names,
    _identities,
    _monitoring,
    _process_wide,
    _rare_settings,
    _selectors,
    _shared_memory,
    _sockets,
    _standard_descriptors,
    _tempfiles,
    _time_zone,
    _uuids,
    _warnings,
)
from simdist.process.stdlib._file_times import FileTimes
from simdist.process.threads import _event_loops, _lock_methods, _thread_functions, _thread_pipes
from simdist.process.threads._locks import Locks

if TYPE_CHECKING:
    from simdist.process._runtime import Runtime

__all__ = ["PythonReplacements"]

# What does not depend on the world.
_ALWAYS = tuple(
    module.install
    for module in (
        _subprocesses,
        _clock,
        _collector,
        _selectors,
        _entropy,
        _environ,
        _exits,
        _fault_reports,
        _file_locks,
        _host_names,
        _identities,
        _left_behind,
        _lock_methods,
        _monitoring,
        _multiprocessing,
        _process_wide,
        _shared_memory,
        _signals,
        _sockets,
        _standard_descriptors,
        _tempfiles,
        _thread_functions,
        _thread_pipes,
        _time_zone,
        _uuids,
        _waits,
        _warnings,
    )
)


_LIBRARIES: dict[str, Callable[[Patches], None]] = {
    "filelock": _filelock.adapt,
    "joblib._parallel_backends": _joblib.adapt,
    "multiprocess.context": _multiprocess.adapt,
    "psutil": _psutil.adapt,
    "uvloop": _uvloop.adapt,
}
for _name, _report in _LIBRARIES.items():
    _when_imported.when_imported(_name, _report, by_rank=True)
_SHARED: dict[str, Callable[[Patches], None]] = {
    **_library_state.ADAPTERS,
    **_rare_settings.ADAPTERS,
    **_frozen_clocks.ADAPTERS,
    _pydevd.NAME: _pydevd.adapt,
}
for _name, _report in _SHARED.items():
    _when_imported.when_imported(_name, _report)
_when_imported.when_imported(_event_loops.NAME, _event_loops.adapt, remembered=True)


class PythonReplacements:
    """Replaces parts of Python while a world lives, for the runtime that this is given to."""

    def state_left(self) -> LeftBehind:
        """Remember what ranks share, before anything is replaced."""
        return LeftBehind()

    def begin(self, runtime: Runtime) -> None:
        """Let the tasks of a world see their own process, and every other thread the host's."""
        find_installed()
        runtime.extras[FileTimes] = FileTimes()
        patches, simulation = runtime.patches, runtime.simulation
        _lock_methods.begin(patches, Locks(simulation))
        patches.install(_ALWAYS)
        _when_imported.install(patches)
        _environ.begin(patches)
        _rare_settings.begin(patches)
        _warnings.begin()
        _stdio.install(patches)
        _lock_methods.bind_again()
        simulation.start_thread = original(getattr(_thread, _thread_functions.start_name()))

    def follow(self, patches: Patches, called: Sequence[object]) -> None:
        """Redirect methods that user code took before, and those reachable from `called`, which the ranks run."""
        follow(patches, called)

    def keep_file_times(self, patches: Patches) -> None:
        """Show ranks virtual times of the files that they write."""
        patches.install((_file_times.install,))

    @contextlib.contextmanager
    def files_cut_off(self, runtime: Runtime) -> Iterator[None]:
        """Keep tasks that are unwound from changing files."""
        if any(task.started and task.state is not TaskState.DONE for task in runtime.simulation.tasks):
            runtime.patches.install((_cut_off_files.install,))
        yield
        runtime.extras[FileTimes].close_left()

    def notice_writes(self, patches: Patches) -> None:
        """Wake a rank's tasks that poll when it writes to a file descriptor."""
        _selectors.notice_writes(patches)
