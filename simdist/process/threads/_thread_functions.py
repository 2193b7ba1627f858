"""What functions of `threading` and `_thread` do on tasks, with the help of `_threads`."""

from __future__ import annotations

import _thread
import concurrent.futures.thread as pools
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from simdist.errors import UnsupportedError
from simdist.kernel import TaskKilled
from simdist.process._runtime import Make, Patches, Replacement, current_process
from simdist.process.threads._thread_slots import POOL_MODULES
from simdist.process.threads._threads import JOINABLE, Handle, Threads, begin, forget, shut_down, threads_of

__all__ = ["install", "start_name"]

_T = TypeVar("_T")
_Invoke = Callable[[threading.Thread], None]


def start_name(name: str = "start_new_thread") -> str:
    """The name under which `_thread` has Python's own function that starts threads: pydevd replaces it by its own."""
    kept = f"_original_{name}"
    return kept if hasattr(_thread, kept) else name


def _start_new_thread(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def start_new_thread(
        function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object] | None = None, /
    ) -> int:
        if current_process() is None:
            return original(function, args) if kwargs is None else original(function, args, kwargs)
        if not callable(function):
            raise TypeError("first arg must be callable")
        if not isinstance(args, tuple):
            raise TypeError("2nd arg must be a tuple")
        if kwargs is not None and not isinstance(kwargs, dict):
            raise TypeError("optional 3rd arg must be a dictionary")
        return begin(function, args, kwargs or {}, daemon=True).ident

    return start_new_thread


def _start_joinable_thread(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def start_joinable_thread(function: Callable[[], object], handle: object = None, daemon: bool = True) -> object:
        process = current_process()
        if process is None:
            return original(function, handle=handle, daemon=daemon)
        if not callable(function):
            raise TypeError("thread function must be callable")
        task = begin(function, (), {}, daemon=daemon)
        threads = threads_of(process)
        if task not in threads.ends:
            threads.ends[task] = Handle(threads, task)
        return threads.ends[task]

    return start_joinable_thread


def _set_tstate_lock(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(original)
    def set_tstate_lock(thread: Any) -> None:
        process = current_process()
        if process is None:
            original(thread)
            return
        # The interpreter would release Python's own lock, which wakes no task.
        thread._tstate_lock = lock = threading.Lock()
        lock.acquire()
        task = process.simulation.current
        assert task is not None
        threads_of(process).ends[task] = lock

    return set_tstate_lock


def _of_process(answer: Callable[[Threads], object]) -> Make:
    def make(original: Callable[[], object]) -> Callable[[], object]:
        @functools.wraps(original)
        def ask() -> object:
            process = current_process()
            return original() if process is None else answer(threads_of(process))

        return ask

    return make


def _current_thread(original: Callable[[], threading.Thread]) -> Callable[[], threading.Thread]:
    @functools.wraps(original)
    def current_thread() -> threading.Thread:
        process = current_process()
        if process is not None:
            task, threads = process.simulation.current, threads_of(process)
            if task is process.tasks[0]:
                return threads.main
            if task in threads.objects:  # even before `threading` lists it: a debugger asks so early
                return threads.objects[task]
        return original()

    return current_thread


def _main_of(threads: Threads) -> threading.Thread:
    return threads.main


def _count_of(threads: Threads) -> int:
    return len(threads.alive())


def _newname(original: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(original)
    def newname(name_template: str) -> str:
        process = current_process()
        if process is None:
            return original(name_template)
        return name_template % threads_of(process).number()

    return newname


def _make_invoke_excepthook(original: Callable[[], _Invoke]) -> Callable[[], _Invoke]:
    @functools.wraps(original)
    def make_invoke_excepthook() -> _Invoke:
        invoke = original()

        def invoke_excepthook(thread: threading.Thread) -> None:
            if not isinstance(sys.exc_info()[1], TaskKilled):
                invoke(thread)

        return invoke if current_process() is None else invoke_excepthook

    return make_invoke_excepthook


def _register_atexit(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register_atexit(function: Callable[..., object], *args: object, **kwargs: object) -> None:
        process = current_process()
        if process is None:
            original(function, *args, **kwargs)
            return
        if getattr(function, "__module__", "") in POOL_MODULES:
            # A rank was the first to import the module. `_end_pools` does for ranks what this function does.
            original(function, *args, **kwargs)
            return
        threads = threads_of(process)
        if threads.shutting_down:
            raise RuntimeError("can't register atexit after shutdown")
        threads.calls.append(functools.partial(function, *args, **kwargs))

    return register_atexit


def _shutdown(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def shutdown() -> None:
        process = current_process()
        if process is None:
            original()
        else:
            shut_down(process)  # a child of `multiprocessing` calls this itself

    return shutdown


def _interrupt_main(original: Callable[[int], None]) -> Callable[..., None]:
    @functools.wraps(original)
    def interrupt_main(number: int = signal.SIGINT, /) -> None:
        process = current_process()
        if process is None:
            original(number)
        elif number == signal.SIGINT and process.simulation.current is process.tasks[0]:
            raise KeyboardInterrupt
        else:
            raise UnsupportedError(
                f"rank {process.rank}: _thread.interrupt_main from another thread is not simulated; set a "
                "threading.Event that the main thread looks at, or end the process with os.kill(os.getpid(), ...)"
            )

    return interrupt_main


@functools.cache
def _replacements(*starting: str) -> tuple[Replacement, ...]:
    return tuple(_each_replacement(*starting))


def _each_replacement(starting: str, starting_joinable: str) -> Iterable[Replacement]:
    for name in (starting, "start_new"):
        yield Replacement(_thread, name, _start_new_thread)
    yield Replacement(_thread, "interrupt_main", _interrupt_main)
    if JOINABLE:
        yield Replacement(_thread, starting_joinable, _start_joinable_thread)
    else:
        yield Replacement(threading.Thread, "_set_tstate_lock", _set_tstate_lock)
    yield Replacement(threading, "current_thread", _current_thread)
    yield Replacement(threading, "main_thread", _of_process(_main_of))
    yield Replacement(threading, "enumerate", _of_process(Threads.alive))
    yield Replacement(threading, "active_count", _of_process(_count_of))
    yield Replacement(threading, "_newname", _newname)
    yield Replacement(threading, "_make_invoke_excepthook", _make_invoke_excepthook)
    yield Replacement(threading, "_register_atexit", _register_atexit)
    yield Replacement(threading, "_shutdown", _shutdown)


def _pool_number() -> int:
    process = current_process()
    return _host_pool_number() if process is None else threads_of(process).pool_number()


_host_pool_number: Callable[[], int] = vars(pools.ThreadPoolExecutor)["_counter"]
_POOL_NUMBER = staticmethod(_pool_number)


def install(patches: Patches) -> None:
    """Let ranks start threads."""
    patches.on_undo(forget)
    patches.redirect(_replacements(start_name(), start_name("start_joinable_thread")))
    patches.replace(pools.ThreadPoolExecutor, "_counter", _POOL_NUMBER)
    patches.replace(threading, "excepthook", threading.excepthook)
