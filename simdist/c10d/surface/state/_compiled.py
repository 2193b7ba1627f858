"""What `torch.compile` remembers, kept apart for each rank.

Dynamo hangs what it compiled on the code object, which all ranks share, and takes for constant whatever cannot change
within one process: `dist.get_rank()`, the groups, whether there are any. One rank's program would serve all. Torch 2.13
has regions for this purpose: compiled code is looked up in the region of the call (`isolate_recompiles`), a number that
is set around each compiled call. On a rank it is translated into a number of that rank's own.

Three doubts remain where torch leaves no choice. A look-up that finds nothing in its region also tries the default one,
where what the host compiled before stands; so that is dropped when the first rank compiles, and compiled again later.
The number is one global of the process, not of the thread: it changes hands with the baton. And the limit on all
compilations of one code object counts every region; here it counts those of the rank. Older versions of torch have no
regions: there ranks run what is to be compiled as it is, with the same numbers.

Nothing of it costs anything before a rank calls something compiled.
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
_INSIDE = "_in_optimized_module"  # what hooks ask; a rank may park in there
_OURS = PurePath(str(simdist.__file__)).parent.as_posix() + "/"
_POINTER = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
_LOCK_NS = 1_000_000  # between two looks at a lock that another rank holds

when_imported(_compiled_backward.MODULE, _compiled_backward.install)


class CompiledCode:
    """The regions of one world's ranks."""

    def __init__(self) -> None:
        self._frames = frame_evaluation
        self._set: Any = getattr(self._frames, _NAME, None)  # torch before 2.13 has none
        self._patches: Patches | None = None  # once a rank has called something compiled
        self._regions: dict[tuple[int, int], int] = {}  # by process and number that torch asked for
        self._ours: dict[int, int] = {}  # region -> process
        self._left: dict[int, int] = {}  # likewise, those that a process has left by a reset
        self._present: dict[int, int] = {}  # the number that is set while a process has the baton; 0: the host
        self._inside: dict[int, bool] = {}  # likewise, whether it is inside a compiled module

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
        """Drop what ranks compiled, and put everything back; the replacements of `install` are undone by the caller."""
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
        """What dynamo counts is the rank's from now on."""

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
                # A setting of this thread alone: otherwise inductor compiles in threads and processes of its own.
                inductor: Any = importlib.import_module("torch._inductor.config")
                inductor.compile_threads = 1
            number = region
        return int(self._set(number))

    def _begin(self, process: SimProcess) -> None:
        """A rank calls something compiled for the first time in this world."""
        patches = self._patches = Patches()
        convert = importlib.import_module("torch._dynamo.convert_frame")
        rules = importlib.import_module("torch._dynamo.trace_rules")
        # Torch calls our groups from C++ while compiled code runs; they are not to be compiled.
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
        # Inductor hands a pointer to the code that it makes through the environment, where C++ sees only the host's.
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
        """A rank forgets what it compiled: it goes on in regions that are new, and others keep theirs."""

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
    """Dynamo's lock, which a rank may hold while it parks: the others let virtual time pass instead of the baton.

    It guards what all ranks share, so that it is one lock for all of them, unlike those of a rank's own code.
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
