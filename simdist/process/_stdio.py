"""Standard streams that know which rank is writing."""

from __future__ import annotations

import functools
import io
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, BinaryIO, TextIO, TypeVar

from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, current_process, current_runtime
from simdist.process._stream_files import Descriptor

__all__ = ["STREAMS", "RankStream", "descriptor_of", "install", "prints_on_host", "report_thread_error"]

_Event = TypeVar("_Event")
_T = TypeVar("_T")

STREAMS = {1: "stdout", 2: "stderr"}
_NUMBERS = {name: number for number, name in STREAMS.items()}


class _Bytes(io.RawIOBase):
    """The `buffer` of a rank's stream."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


class RankStream(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr`: a rank's text goes to its process, all other to the original."""

    def __init__(self, name: str, original: TextIO) -> None:
        self._name = name
        self._original = original

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        """UTF-8 for a rank."""
        return "utf-8" if current_process() is not None else str(getattr(self._original, "encoding", "utf-8"))

    @property
    def buffer(self) -> io.RawIOBase | BinaryIO:
        """A binary stream with the same destination."""
        return _Bytes(self) if current_process() is not None else self._original.buffer

    def write(self, text: str) -> int:
        """Write `text`; a killed rank writes nothing, and neither does one whose world is over.

        Nor does an object that a rank left, such as a progress bar, if it is collected after the world, by the host.
        """
        process = current_process()
        if process is None:
            is_late = vars(sys)[self._name] is not self and _is_collecting(sys._getframe(1))
            return len(text) if is_late else int(self._original.write(text))
        if _listening:
            return int(self._original.write(text))
        task = process.simulation.current
        if process.running and text and task is not None and not task.doomed:
            if process.laid_over and _NUMBERS[self._name] in process.laid_over:
                _write_all(process.laid_over[_NUMBERS[self._name]], text)
                return len(text)
            if process.descriptors:
                process.take_over()
            process.add_output(self._name, text)
        return len(text)

    def flush(self) -> None:
        """Flush the original; a rank's lines are never held back."""
        if current_process() is None:
            self._original.flush()

    def isatty(self) -> bool:
        """False for a rank: its output is captured."""
        return current_process() is None and bool(self._original.isatty())

    def fileno(self) -> int:
        """The original's descriptor; a rank's is a file of its own, whose content joins the rank's output."""
        process = current_process()
        return int(self._original.fileno()) if process is None else descriptor_of(process, self._name)

    def writable(self) -> bool:
        """Always."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __del__(self) -> None:
        """Leave the original alone: a stream flushes when it is collected, and this one may be closed by then."""


def prints_on_host(listener: Callable[[_Event], _T]) -> Callable[[_Event], _T]:
    """Return a listener that may print although a rank's thread calls it: the text goes to the host's streams.

    As the rank's output it would be an event, which the run without the listener does not have.
    """

    @functools.wraps(listener)
    def listen(event: _Event) -> _T:
        _listening.append(listener)
        try:
            return listener(event)
        finally:
            _listening.pop()

    return listen


_listening: list[Callable[..., object]] = []  # such listeners that run now


def _is_collecting(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _write_all(number: int, text: str) -> None:
    left = text.encode("utf-8", "replace")
    while left:
        left = left[os.write(number, left) :]


def install(patches: Patches) -> None:
    """Replace both streams; `stdin` and `unraisablehook` that a rank sets, as pytest does, do not outlive the world."""
    patches.replace(sys, "stdout", RankStream("stdout", sys.stdout))
    patches.replace(sys, "stderr", RankStream("stderr", sys.stderr))
    patches.replace(sys, "stdin", sys.stdin)
    patches.replace(sys, "unraisablehook", _quiet_about_files(sys.unraisablehook))


def _quiet_about_files(report: Callable[..., object]) -> Callable[..., None]:
    """Leave out files of killed ranks, closed under their writers: the rank that collects them would report them.

    From 3.14 on Python reports finalizers of files that fail.
    """

    @functools.wraps(report)
    def hook(unraisable: sys.UnraisableHookArgs, /, **options: object) -> None:  # pytest's takes some
        runtime = current_runtime()
        of_a_file = (unraisable.err_msg or "").startswith("Exception ignored while finalizing file")
        killed = runtime is not None and any(each.status == "killed" for each in runtime.processes.values())
        if not (of_a_file and killed):
            report(unraisable, **options)

    _of_worlds.add(hook)
    return hook


_of_worlds: weakref.WeakSet[Callable[..., object]] = weakref.WeakSet()


def report_thread_error(function: Callable[..., object], error: BaseException) -> None:
    """Report an error that ends a thread of `_thread`: to `sys.unraisablehook` if the program has set one.

    Otherwise print the interpreter's message without addresses, so that a rank prints the same in every run.
    """
    trace = error.__traceback__
    trace = None if trace is None else trace.tb_next
    hook = sys.unraisablehook
    if hook in _of_worlds or hook is sys.__unraisablehook__:
        sys.stderr.write(f"Exception ignored in thread started by: {getattr(function, '__qualname__', '?')}\n")
        traceback.print_exception(type(error), error, trace)
        return
    text = "Exception ignored in thread started by"
    err_msg, about = (f"{text} {function!r}", None) if sys.version_info >= (3, 13) else (text, function)
    given: Any = SimpleNamespace(  # Python offers no way to make a `sys.UnraisableHookArgs`
        exc_type=type(error), exc_value=error, exc_traceback=trace, err_msg=err_msg, object=about
    )
    try:
        hook(given)
    except Exception as failure:
        sys.stderr.write("Exception ignored in sys.unraisablehook:\n")
        traceback.print_exception(failure)


def descriptor_of(process: SimProcess, name: str) -> int:
    """The number of a file behind a stream of the process, for C code and for children; made on first demand.

    Text in the file joins the stream when the process calls `take_over`. The file closes with the world.
    """
    if name not in process.descriptors:
        process.descriptors[name] = Descriptor()
    return process.descriptors[name].number
