"""The caches of `torch.compile`, separate for each rank.

Dynamo attaches compiled code to the code object, which all ranks share, and treats values as constants that cannot
change within one process: `dist.get_rank()`, the groups, whether there are any. So one rank's compiled program would
serve all ranks. Torch 2.13 has regions for this purpose: compiled code is looked up in the region of the call
(`isolate_recompiles`), a number that is set around each compiled call. On a rank, this number is translated into one of
the rank's own.

Torch leaves no choice in three points. A look-up that finds nothing in its region also tries the default region, with
the host's compiled code; so this code is dropped when the first rank compiles, and compiled again later. The number is
a global of the process, not of the thread, so it is exchanged with the baton. And torch's limit on the compilations of
a code object counts every region; here it counts those of the rank. Older versions of torch have no regions: there,
ranks run functions uncompiled, with the same numbers.

All this costs nothing before a rank calls compiled code.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

import simdist
from simdist.c10d.surface.state import _compiled_backward, _compiled_batches, _compiled_state
from simdist.c10d.surface.state._scopes import FORWARD
from simdist.inside.torch import frame_evaluation, guard_pointer
from simdist.process import (
    Patches,
    SimProcess,
    current_process,
    current_runtime,
    original,
    real_methods,
    when_imported,
)

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["CompiledCode"]

_NAME = "set_eval_frame_isolate_recompiles_id"
_INSIDE = "_in_optimized_module"  # a flag for hooks; a rank may park inside a compiled module
_OURS = PurePath(str(simdist.__file__)).parent.as_posix() + "/"
_POINTER = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
_LOCK_NS = 1_000_000  # between two looks at a lock that another rank holds

when_imported(_compiled_backward.MODULE, _compiled_backward.install)


class CompiledCode:
    """The regions of one world's ranks."""

    def __init__(self) -> None:
        self._frames = frame_evaluation
        self._set: Any = getattr(self._frames, _NAME, None)  # torch before 2.13 has none
        self._patches: Patches | None = None  # set when a rank has called compiled code
        self._regions: dict[tuple[int, int], int] = {}  # by process and torch's number
        self._ours: dict[int, int] = {}  # region -> process
        self._left: dict[int, int] = {}  # region -> process, for regions that a process has left by a reset
        self._present: dict[int, int] = {}  # the current number of each process; 0: the host
        self._inside: dict[int, bool] = {}  # whether each process is inside a compiled module; 0: the host

    def install(self, patches: Patches) -> None:
        """Translate the numbers of regions from now on."""
        loaded = sys.modules.get("torch._dynamo.eval_frame")
        self._inside[0] = getattr(loaded, _INSIDE, False)
        if self._set is None:
            patches.wrap(torch, "compile", _as_it_is)
            if loaded is not None:
                patches.replace(loaded, "_stance", loaded.DynamoStance("force_eager"))
            return
        patches.replace(self._frames, _NAME, self._translate)
        patches.replace(torch, "compile", self._beginning(torch.compile))
        if loaded is not None:
            patches.replace(loaded, _NAME, self._translate)

    def uninstall(self) -> None:
        """Drop the ranks' compiled code, and restore torch; the caller undoes the replacements of `install`."""
        loaded = sys.modules.get("torch._dynamo.eval_frame")
        if loaded is not None and getattr(loaded, _NAME, None) == self._translate:
            setattr(loaded, _NAME, self._set)  # it was imported on a rank
        if self._patches is None:
            return
        self._patches.undo()
        self._patches = None
        if hasattr(loaded, _INSIDE):
            setattr(loaded, _INSIDE, self._inside[0])
        if os.name == "posix" and _POINTER not in os.environ:
            importlib.import_module("posix").unsetenv(_POINTER)
        self._set(self._present.get(0, -1))
        convert = importlib.import_module("torch._dynamo.convert_frame")
        for reference in list(convert.input_codes.seen):
            code = reference()
            if code is not None and any(self._entries(code, region) for region in self._ours):
                self._frames.reset_code(code)

    def _beginning(self, original: Callable[..., object]) -> Callable[..., object]:
        """Wrap `torch.compile`: from the first call by a rank on, dynamo's counts are separate for each rank."""

        @functools.wraps(original)
        def compile(*args: object, **kwargs: object) -> object:
            process = current_process()
            if process is not None and self._patches is None:
                self._begin(process)
            return original(*args, **kwargs)

        return compile

    def _translate(self, number: int) -> int:
        process = current_process()
        if process is None:
            return int(self._set(number))
        if self._patches is None:
            self._begin(process)
        if number not in self._ours:
            key = process.pid, number
            region = self._regions.get(key)
            if region is None:
                loaded = importlib.import_module("torch._dynamo.eval_frame")
                region = self._regions[key] = next(loaded._next_isolate_recompiles_id)
                self._ours[region] = process.pid
                # A setting of this thread only. Otherwise inductor would compile in its own threads and processes.
                inductor: Any = importlib.import_module("torch._inductor.config")
                inductor.compile_threads = 1
            number = region
        return int(self._set(number))

    def _begin(self, process: SimProcess) -> None:
        """Patch dynamo when a rank first calls compiled code in this world."""
        patches = self._patches = Patches()
        convert = importlib.import_module("torch._dynamo.convert_frame")
        rules = importlib.import_module("torch._dynamo.trace_rules")
        # Torch calls our groups from C++ while compiled code runs; dynamo must not compile them.
        skipped = [*rules.SKIP_DIRS, _OURS]
        patches.replace(rules, "SKIP_DIRS", skipped)
        patches.replace(rules, "SKIP_DIRS_RE", re.compile(rf"^[^\s<]*({'|'.join(map(re.escape, skipped))})"))
        patches.replace(convert, "_get_total_cache_entry_count", self._count_of_rank)
        patches.replace(convert, "compile_lock", _CompileLock(convert.compile_lock))
        patches.wrap(convert, "get_compile_id", _id_of_rank)
        dynamo = sys.modules["torch._dynamo"]
        patches.replace(dynamo, "reset", self._reset_of_rank(dynamo.reset))
        _compiled_batches.install(patches)
        for reference in list(convert.input_codes.seen):
            code = reference()
            if code is not None and self._entries(code, -1):
                self._frames.reset_code(code)
        # Inductor passes a pointer to its generated code through the environment, and C++ only sees the host's.
        if os.name == "posix":
            original(os.putenv)(_POINTER, str(guard_pointer(_POINTER)))
        runtime = current_runtime()
        assert runtime is not None
        runtime.slots.add(self._switch)
        runtime.separate(_compiled_state.LEARNED)
        runtime.separate(FORWARD)

    def _switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        if self._patches is not None:
            self._present[0 if leaving is None else leaving.pid] = self._frames.get_eval_frame_isolate_recompiles_id()
            self._set(self._present.get(0 if entering is None else entering.pid, -1))
            loaded = sys.modules["torch._dynamo.eval_frame"]
            if hasattr(loaded, _INSIDE):  # torch 2.13 has it
                self._inside[0 if leaving is None else leaving.pid] = getattr(loaded, _INSIDE)
                setattr(loaded, _INSIDE, self._inside.get(0 if entering is None else entering.pid, False))

    def _entries(self, code: CodeType, region: int) -> int:
        return len(self._frames._get_cache_entries_for_region(code, region))

    def _reset_of_rank(self, original: Callable[[], None]) -> Callable[[], None]:
        """Let a rank's reset only forget its own compiled code: the rank goes on in new regions."""

        @functools.wraps(original)
        def reset() -> None:
            process = current_process()
            if process is None:
                original()
                return
            for key in [key for key in self._regions if key[0] == process.pid]:
                self._left[self._regions.pop(key)] = process.pid
            _compiled_state.reset()

        return reset

    def _count_of_rank(self, code: CodeType) -> int:
        process = current_process()
        if process is None:
            return int(self._frames._get_total_cache_entry_count(code))
        return sum(
            self._entries(code, region)
            for region, pid in self._ours.items()
            if pid == process.pid and region not in self._left
        )


def _id_of_rank(original: Callable[[dict[str, object]], object]) -> Callable[[dict[str, object]], object]:
    @functools.wraps(original)
    def get_compile_id(frame_state: dict[str, object]) -> object:
        return original(frame_state if current_process() is None else _compiled_state.numbered(frame_state))

    return get_compile_id


def _as_it_is(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def compile(model: Callable[..., object] | None = None, **options: object) -> object:
        if current_process() is None:
            return original(model, **options)
        return (lambda function: function) if model is None else model

    return compile


class _CompileLock:
    """Dynamo's lock, which a rank may hold while it parks: a rank that waits for it lets virtual time pass.

    It guards shared state, so it is one lock for all ranks, unlike the locks of a rank's own code.
    """

    def __init__(self, real: object) -> None:
        self._acquire, self._release = real_methods(real)

    def __enter__(self) -> None:
        process = current_process()
        if process is None:
            self._acquire()
            return
        while not self._acquire(blocking=False):
            process.simulation.sleep(_LOCK_NS)

    def __exit__(self, *_: object) -> None:
        self._release()
