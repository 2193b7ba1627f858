"""Traces line by line the values of the names on each line of the user's code, before and after the line.

This is slow and therefore only done once it is known that two runs differ, to find out where that began. Traces keep no
objects alive: values are described (`_describe.py`), and frames have numbers.
"""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from simdist.c10d import torch_generator
from simdist.determinism._describe import describe
from simdist.determinism._source import statement_at
from simdist.frames import is_user_file
from simdist.process import global_generators

__all__ = ["GENERATORS", "RETURNED", "Budget", "LineTrace", "Step", "trace_lines"]

RETURNED = "(returned)"
GENERATORS = ("(random)", "(numpy.random)", "(torch's generator)")
_MOST_STEPS = 60_000
_NOT_DATA = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


@dataclass(slots=True)
class Step:
    """One execution of one line. `frame` numbers the call it belongs to, `caller` is the step that made that call.

    Names of module level have their module as prefix, `train:BATCH`; names that inner functions share have `^`:
    `^count`.
    """

    file: str
    line: int
    function: str
    frame: int
    caller: int
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, int, int]:
        """What must agree for two runs to be at the same point."""
        return self.file, self.line, self.frame


@dataclass(slots=True)
class LineTrace:
    """The steps of one thread of one run, in order. `complete` is False if there were too many."""

    steps: list[Step] = field(default_factory=list)
    complete: bool = True


class Budget:
    """The number of steps left for all traces of a recording together: a trace takes memory and time."""

    def __init__(self, steps: int = 400_000) -> None:
        self.left = steps


class _Tracer:
    """A trace function for `sys.settrace`."""

    def __init__(self, trace: LineTrace, budget: Budget) -> None:
        self._trace = trace
        self._budget = budget
        self._frames: dict[int, tuple[int, int]] = {}  # id of a running frame -> its number, its latest step
        self._callers: dict[int, int] = {}  # number of a frame -> the step that called it
        self._stack: list[int] = []  # ids of the user's frames that are running, innermost last
        self._numbers = 0
        self._known: dict[int, str] = {}  # id of an object -> its description, during one event

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not is_user_file(frame.f_code.co_filename) or not self._trace.complete:
            return None
        self._callers[self._numbers] = self._frames[self._stack[-1]][1] if self._stack else -1
        self._frames[id(frame)] = (self._numbers, -1)
        self._stack.append(id(frame))
        self._numbers += 1
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if (
            not self._trace.complete or id(frame) not in self._frames
        ):  # a generator that is closed: it has no call event, only a return
            return None
        self._known.clear()
        if event == "line":
            self._finish(frame)
            self._begin(frame)
        elif event == "return":
            self._finish(frame)
            _, step = self._frames[id(frame)]
            if step >= 0:
                self._trace.steps[step].after[RETURNED] = describe(argument)
            self._stack.remove(id(frame))
            del self._frames[id(frame)]  # a generator that is resumed counts as another call
        return self._on_event

    def _begin(self, frame: FrameType) -> None:
        steps = self._trace.steps
        self._budget.left -= 1
        if len(steps) >= _MOST_STEPS or self._budget.left < 0:
            self._trace.complete = False
            sys.settrace(None)
            return
        code, (number, _) = frame.f_code, self._frames[id(frame)]
        step = Step(code.co_filename, frame.f_lineno, code.co_name, number, self._callers[number])
        step.before = self._values(frame, step)
        self._frames[id(frame)] = (number, len(steps))
        steps.append(step)

    def _finish(self, frame: FrameType) -> None:
        index = self._frames[id(frame)][1]
        if index >= 0:
            step = self._trace.steps[index]
            step.after |= self._values(frame, step)

    def _values(self, frame: FrameType, step: Step) -> dict[str, str]:
        """The present values of the names on the step's line, as far as they are data."""
        variables, module = frame.f_locals, frame.f_globals
        prefix = f"{module.get('__name__', '?')}:"
        shared = frame.f_code.co_freevars + frame.f_code.co_cellvars
        found: dict[str, str] = {}
        statement = statement_at(step.file, step.line)
        for owner, name in statement.members:
            outer = module.get(owner)
            if isinstance(outer, types.ModuleType) and is_user_file(getattr(outer, "__file__", None) or "<"):
                value = getattr(outer, name, None)
                if not isinstance(value, _NOT_DATA):
                    found[f"{outer.__name__}:{name}"] = self._describe(value)
        for name in statement.names:
            if name in variables and variables is not module:
                key = f"^{name}" if name in shared else name
                found[key] = self._describe(variables[name])
            elif name in module and not isinstance(module[name], _NOT_DATA):
                found[prefix + name] = self._describe(module[name])
        return found | _generators()

    def _describe(self, value: object) -> str:
        # The same object is often read by this line and by the one before.
        text = self._known.get(id(value))
        if text is None:
            text = self._known[id(value)] = describe(value)
        return text


def _generators() -> dict[str, str]:
    """Checksums of the global generators' states; a line that draws from one, or seeds it, changes it."""
    found = zip(GENERATORS, global_generators(torch_generator()), strict=True)
    return {name: f"#{zlib.crc32(each.memory):08x}" for name, each in found if each.memory is not None}


def trace_lines(trace: LineTrace, budget: Budget) -> Callable[[], None]:
    """Trace the calling thread into `trace`, from the next call on; return the function that ends the tracing."""
    before = sys.gettrace()
    sys.settrace(_Tracer(trace, budget))
    return lambda: sys.settrace(before)
