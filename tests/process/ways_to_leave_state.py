"""Ways in which a program leaves something behind in state that all code of a process shares.

`WAYS` has for each a function that does it, and one that returns what is there. On a rank with its own modules this
module is a copy, so nothing here may compare functions of two copies: `Left` and `left` are found by their names.
"""

from __future__ import annotations

import builtins
import codecs
import collections
import collections.abc
import contextlib
import copyreg
import csv
import decimal
import enum
import faulthandler
import gc
import importlib
import json
import locale
import logging
import mimetypes
import multiprocessing
import os
import random
import readline
import resource
import signal
import socket
import string
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import types
import unittest.mock
import warnings
import zlib
from collections.abc import Callable
from multiprocessing import forkserver, spawn
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import _tensor_str
from torch.nn.modules import module as modules

from simdist.process.stdlib._collector import host_froze

_torch: Any = torch  # some of its functions have no types
Way = tuple[Callable[[], object], Callable[[], object]]


class Left:
    """A class that is left somewhere; as a finder it finds nothing."""

    find_spec = classmethod(lambda *_: None)


def left(*_: Any, **__: Any) -> Any:
    """Replace a function, and do nothing."""


def _is_left(thing: Any) -> bool:
    return getattr(thing, "__name__", "") in ("left", "Left")


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _found(name: str) -> bool:
    with contextlib.suppress(LookupError):
        codecs.lookup_error(name)
        return True
    return False


def _hook_of_modules() -> int:
    return len(modules._global_forward_hooks)


def _move() -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def _limit_files(soft: int = 100) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


WAYS: dict[str, Way] = {
    "attribute of builtins": (lambda: setattr(builtins, "left", 1), lambda: hasattr(builtins, "left")),
    "function of builtins": (lambda: setattr(builtins, "ascii", left), lambda: _is_left(builtins.ascii)),
    "environment": (lambda: os.environ.update(LEFT="1"), lambda: "LEFT" in os.environ),
    "working folder": (lambda: os.chdir("/usr"), os.getcwd),
    "file mask": (lambda: os.umask(0o123), _mask),
    "search path": (lambda: sys.path.append("/left"), lambda: "/left" in sys.path),
    "finder": (lambda: sys.meta_path.append(Left), lambda: any(map(_is_left, sys.meta_path))),
    "module put there": (
        lambda: sys.modules.update(left_behind=types.ModuleType("left_behind")),
        lambda: "left_behind" in sys.modules,
    ),
    "recursion limit": (lambda: sys.setrecursionlimit(4321), sys.getrecursionlimit),
    "switch interval": (lambda: sys.setswitchinterval(0.25), sys.getswitchinterval),
    "digits of an integer": (lambda: sys.set_int_max_str_digits(5000), sys.get_int_max_str_digits),
    "excepthook": (lambda: setattr(sys, "excepthook", left), lambda: _is_left(sys.excepthook)),
    "displayhook": (lambda: setattr(sys, "displayhook", left), lambda: _is_left(sys.displayhook)),
    "unraisablehook": (lambda: setattr(sys, "unraisablehook", left), lambda: _is_left(sys.unraisablehook)),
    "excepthook of threads": (
        lambda: setattr(threading, "excepthook", left),
        lambda: _is_left(threading.excepthook),
    ),
    "collector": (gc.disable, gc.isenabled),
    "thresholds of the collector": (lambda: gc.set_threshold(12345), gc.get_threshold),
    "flags of the collector": (lambda: gc.set_debug(gc.DEBUG_UNCOLLECTABLE), gc.get_debug),
    "flags of dlopen": (lambda: sys.setdlopenflags(sys.getdlopenflags() ^ os.RTLD_GLOBAL), sys.getdlopenflags),
    "largest field": (lambda: csv.field_size_limit(5000), csv.field_size_limit),
    "limit of files": (_limit_files, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    "time zone": (_move, lambda: (time.tzname, time.localtime(0).tm_hour)),
    "timeout of sockets": (lambda: socket.setdefaulttimeout(17), socket.getdefaulttimeout),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_NUMERIC)),
    "level of a logger": (lambda: logging.getLogger("left").setLevel(7), lambda: logging.getLogger("left").level),
    "root logger": (lambda: logging.basicConfig(level=13, force=True), lambda: logging.getLogger().level),
    "disabled logging": (lambda: logging.disable(33), lambda: logging.root.manager.disable),
    "class of loggers": (
        lambda: logging.setLoggerClass(type("Left", (logging.Logger,), {})),
        lambda: _is_left(logging.getLoggerClass()),
    ),
    "class of loggers of the manager": (
        lambda: logging.Logger.manager.setLoggerClass(type("Left", (logging.Logger,), {})),
        lambda: _is_left(logging.Logger.manager.loggerClass),
    ),
    "records of logs": (
        lambda: logging.setLogRecordFactory(left),
        lambda: _is_left(logging.getLogRecordFactory()),
    ),
    "name of a level": (lambda: logging.addLevelName(77, "LEFT"), lambda: logging.getLevelName(77)),
    "warnings in logs": (
        lambda: logging.captureWarnings(True),
        lambda: vars(logging)["_warnings_showwarning"] is None,
    ),
    "filter of warnings": (
        lambda: warnings.simplefilter("ignore", BytesWarning),
        lambda: ("ignore", BytesWarning) in [(each[0], each[2]) for each in warnings.filters],
    ),
    "random numbers": (lambda: random.seed(99), random.getstate),
    "decimal numbers": (lambda: setattr(decimal.getcontext(), "prec", 7), lambda: decimal.getcontext().prec),
    "mock": (lambda: unittest.mock.patch("json.dumps", left).start(), lambda: _is_left(json.dumps)),
    "attribute of a module": (lambda: setattr(string, "left", 1), lambda: hasattr(string, "left")),
    "deleted attribute": (lambda: delattr(string, "hexdigits"), lambda: hasattr(string, "hexdigits")),
    "attribute of a class": (
        lambda: setattr(collections.Counter, "left", 1),
        lambda: hasattr(collections.Counter, "left"),
    ),
    "attribute of a class with a metaclass": (
        lambda: setattr(enum.IntFlag, "left", 1),
        lambda: hasattr(enum.IntFlag, "left"),
    ),
    "method of torch": (
        lambda: setattr(torch.nn.Linear, "extra_repr", left),
        lambda: _is_left(torch.nn.Linear.extra_repr),
    ),
    "attribute of torch.Tensor": (lambda: setattr(torch.Tensor, "left", 1), lambda: hasattr(torch.Tensor, "left")),
    "pickling by type": (lambda: copyreg.pickle(Left, left), lambda: any(map(_is_left, copyreg.dispatch_table))),
    "extension of pickles": (
        lambda: copyreg.add_extension("left", "left", 77),
        lambda: ("left", "left") in vars(copyreg)["_extension_registry"],
    ),
    "dialect of CSV": (lambda: csv.register_dialect("left", delimiter="|"), lambda: "left" in csv.list_dialects()),
    "dialect of CSV that is gone": (
        lambda: csv.unregister_dialect("excel-tab"),
        lambda: "excel-tab" in csv.list_dialects(),
    ),
    "type of files": (
        lambda: mimetypes.add_type("left/left", ".left"),
        lambda: mimetypes.guess_type("file.left")[0],
    ),
    "modules for a fork server": (
        lambda: multiprocessing.set_forkserver_preload(["left"]),
        lambda: vars(forkserver)["_forkserver"]._preload_modules,
    ),
    "interpreter of children": (lambda: multiprocessing.set_executable("/left"), lambda: vars(spawn)["_python_exe"]),
    "signal handler": (lambda: signal.signal(signal.SIGUSR2, left), lambda: _is_left(signal.getsignal(signal.SIGUSR2))),
    "faulthandler": (
        lambda: faulthandler.disable() if faulthandler.is_enabled() else faulthandler.enable(),
        faulthandler.is_enabled,
    ),
    "folder of temporary files": (lambda: setattr(tempfile, "tempdir", "/usr"), lambda: tempfile.tempdir),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "default device": (lambda: torch.set_default_device("meta"), lambda: torch.get_default_device().type),
    "deterministic algorithms": (
        lambda: torch._C._set_deterministic_algorithms(True, warn_only=True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "anomaly mode": (lambda: _torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "print options of torch": (
        lambda: _torch.set_printoptions(precision=9),
        lambda: _tensor_str.PRINT_OPTS.precision,
    ),
    "print options of numpy": (lambda: np.set_printoptions(precision=3), lambda: np.get_printoptions()["precision"]),
    "errors of numpy": (lambda: np.seterr(over="raise"), lambda: np.geterr()["over"]),
    "precision of products": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "threads of torch": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "warnings of torch": (lambda: torch.set_warn_always(True), torch.is_warn_always_enabled),
    "switch of a backend": (
        lambda: torch._C._set_mkldnn_enabled(False),
        lambda: torch.backends.mkldnn.enabled,
    ),
    "hook of all modules": (lambda: _torch.nn.modules.module.register_module_forward_hook(left), _hook_of_modules),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "types that may be loaded": (
        lambda: torch.serialization.add_safe_globals([Left]),
        lambda: any(map(_is_left, torch.serialization.get_safe_globals())),
    ),
    "sharing strategy": (
        lambda: _torch.multiprocessing.set_sharing_strategy("file_system"),
        lambda: _torch.multiprocessing.get_sharing_strategy(),
    ),
}

# Changes that all ranks see, and that the run's result names.
NAMED: dict[str, tuple[Way, str]] = {
    "callback of the collector": (
        (lambda: gc.callbacks.append(left), lambda: any(map(_is_left, gc.callbacks))),
        "gc.callbacks, put back when the world ended",
    ),
    "frozen objects": (
        (gc.freeze, host_froze),
        "objects frozen by gc.freeze, set by rank 0 at ways_to_leave_state.py",
    ),
    "tracing of memory": (
        (tracemalloc.start, tracemalloc.is_tracing),
        "the tracing of memory (tracemalloc), set by rank 0 at ways_to_leave_state.py",
    ),
    "kind of an abstract class": (
        (
            lambda: collections.abc.Container.register(zlib.error),
            lambda: issubclass(zlib.error, collections.abc.Container),
        ),
        "error as a kind of Container, set by rank 0 at ways_to_leave_state.py",
    ),
    "history of readline": (
        (lambda: readline.add_history("left"), lambda: readline.get_current_history_length()),
        "readline's history or settings 'left', set by rank 0 at ways_to_leave_state.py",
    ),
    "coding errors": (
        (lambda: codecs.register_error("left", left), lambda: _found("left")),
        "the handler of coding errors 'left', set by rank 0 at ways_to_leave_state.py",
    ),
}


def leave(name: str) -> tuple[object, object]:
    """Do it on rank 0; returns on every rank what is there before and afterwards."""
    do, look = WAYS[name] if name in WAYS else NAMED[name][0]
    dist.init_process_group("gloo")
    before = look()
    dist.barrier()
    if dist.get_rank() == 0:
        do()
    dist.barrier()
    return before, look()


def turns() -> list[str]:
    """Set the same attribute on ranks 0 and 1; all ranks then read it in turns."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shared: Any = string
    if rank < 2:
        shared.left = f"set by {rank}"
    seen = []
    for _ in range(3):
        dist.barrier()
        seen.append(getattr(shared, "left", "abc"))
    return seen


def patched_by_a_helper_of_torch() -> bool:
    """Replace a method of torch with a helper of torch's tests; True if it is this rank's replacement that is there."""
    helpers: Any = importlib.import_module("torch.testing._internal.common_fsdp")
    dist.init_process_group("gloo")

    def unshard() -> None: ...

    with helpers.patch_unshard(unshard):
        dist.barrier()
        return helpers.FSDPParamGroup.unshard is unshard


def turns_of_a_child(started: Callable[[], None]) -> list[str]:
    """Let a rank and its forked child read in turns an attribute that the rank has set; the rank has a mock."""
    shared: Any = string
    shared.left = "set by the rank"
    mocks = [unittest.mock.MagicMock()]
    len(mocks[0])  # sets a method in its class
    mine, childs = multiprocessing.Pipe()

    def child() -> None:
        for _ in range(3):
            childs.send(f"{shared.left}, {len(mocks)} mock")
            childs.recv()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    seen = [mine.recv()]
    started()
    for _ in range(2):
        mine.send(None)
        seen.append(mine.recv())
    mine.send(None)
    process.join()
    return seen


def refused() -> list[str]:
    """Return the texts with which Python refuses to set or delete attributes."""
    known: Any = types.SimpleNamespace(int=int, string=string, left=Left)
    texts = []
    acts: tuple[Callable[[], object], ...] = (
        lambda: setattr(known.int, "left", 1),
        lambda: setattr(known.string, "__dict__", {}),
        lambda: delattr(known.left, "missing"),
    )
    for act in acts:
        try:
            act()
        except (TypeError, AttributeError) as error:
            texts.append(str(error))
    return texts


def folder_of_a_child() -> str:
    """Change rank 0's working folder; returns the working folder of a child of each rank."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        os.chdir("/usr")
    dist.barrier()
    return subprocess.run(["pwd"], capture_output=True, text=True, check=True).stdout.strip()
