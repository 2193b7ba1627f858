"""joblib on a rank: its workers are simulated children.

joblib's usual backend, loky, starts interpreters of its own and talks to them over its own pipes and semaphores. On a
rank an executor of the standard library takes the place of loky's, whose processes are the world's. Functions and
results go over cloudpickle, as with loky, so that lambdas and functions of the program itself can be called.

In doubt: the workers are forked and last for one call of `Parallel`; loky's are fresh interpreters that serve the next
one, too. Large arrays are copied, not mapped into memory.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import ModuleType
from typing import Any, TypeVar

from simdist.process._runtime import Patches, current_process

__all__ = ["adapt"]

_T = TypeVar("_T")


def adapt(patches: Patches) -> None:
    """Let ranks have executors of the standard library."""
    module = sys.modules["joblib._parallel_backends"]
    if hasattr(module, "get_memmapping_executor"):
        patches.wrap(module, "get_memmapping_executor", _of_ranks)


def _of_ranks(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def get_memmapping_executor(n_jobs: int, *args: object, **settings: Any) -> object:
        if current_process() is None:
            return original(n_jobs, *args, **settings)
        return _Workers(n_jobs, settings.get("initializer"), settings.get("initargs", ()))

    return get_memmapping_executor


class _Workers:
    """Stands in for loky's executor, as far as joblib uses it."""

    def __init__(self, count: int, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
        self._executor = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), initializer, initargs)
        self._temp_folder_manager = self  # joblib says through it that a call has ended

    def submit(self, function: Callable[[], _T]) -> Future[_T]:
        """Let a worker call it."""
        outer: Future[_T] = Future()

        def pass_on(inner: Future[bytes]) -> None:
            error = inner.exception()
            if error is not None:
                outer.set_exception(error)
            else:
                outer.set_result(_pickle().loads(inner.result()))

        self._executor.submit(_call, _pickle().dumps(function)).add_done_callback(pass_on)
        return outer

    def set_current_context(self, _: object) -> None:
        """joblib names the call whose arrays it maps into memory."""

    def _clean_temporary_resources(self, **_: object) -> None:
        self._executor.shutdown()

    def terminate(self, *, kill_workers: bool = False) -> None:
        """End the workers; calls that have not begun are dropped."""
        self._executor.shutdown(cancel_futures=True)


def _pickle() -> ModuleType:
    return importlib.import_module("joblib.externals.loky.cloudpickle_wrapper")  # elsewhere in each version


def _call(function: bytes) -> bytes:
    done: bytes = _pickle().dumps(_pickle().loads(function)())
    return done
