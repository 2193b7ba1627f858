"""Everything of the host process that a world touches while it runs, for comparisons before and after."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as _c

__all__ = ["host_state"]

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_NAMES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS), "sleep", "localtime", "gmtime", "ctime", "strftime")),
    (time, ("asctime", "clock_gettime", "clock_gettime_ns")),
    (os, ("getpid", "getppid", "_exit", "kill", "abort", "fork", "putenv", "unsetenv", "environ", "environb")),
    (os.environ, ("_data",)),
    (os.environb, ("_data",)),
    (signal, ("signal", "raise_signal")),
    (atexit, ("register", "unregister")),
    (sys, ("stdout", "stderr", "stdin", "argv", "excepthook", "unraisablehook")),
    (dist, ("TCPStore", "FileStore", "HashStore", "PrefixStore", "ProcessGroupGloo")),
    (c10d, ("TCPStore", "PrefixStore", "ProcessGroupGloo", "_world", "_default_pg_init_method")),
    (
        c10d.Backend,
        ("backend_list", "backend_capability", "backend_type_map", "_plugins", "default_device_backend_map"),
    ),
    (torch.futures, ("wait_all", "collect_all")),
    (torch._C.Future, ("wait",)),
    (threading.Thread, ("start", "join")),
)


def host_state() -> dict[str, object]:
    """Return the present state by name: replaced names by identity, settings and generator states by content."""
    state: dict[str, object] = {
        f"{getattr(owner, '__name__', type(owner).__name__)}.{name}": id(getattr(owner, name, None))
        for owner, names in _NAMES
        for name in names
    }
    numpy: Any = np.random.get_state(legacy=True)
    state |= {
        "environ": {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"},
        "argv": list(sys.argv),
        "random": random.getstate(),
        "numpy.random": (numpy[0], numpy[1].tobytes(), *numpy[2:]),
        "torch.random": torch.get_rng_state().numpy().tobytes(),
        "default dtype": torch.get_default_dtype(),
        "threads of torch": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "debug level": _c.get_debug_level(),
        "backends": tuple(c10d.Backend.backend_list),
        "devices": dict(c10d.Backend.default_device_backend_map),
        "initialized": dist.is_initialized(),
        "a backend called sim": hasattr(c10d.Backend, "SIM"),
        "warnings": list(warnings.filters),
        "atexit": atexit._ncallbacks(),
        "affinity": os.sched_getaffinity(0),
        "scheduler": os.sched_getscheduler(0),
    }
    return state
