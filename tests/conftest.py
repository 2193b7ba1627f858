"""Guards around every test: nothing really sleeps, nothing opens a socket, and nothing is left behind.

Tests of real processes and real time (`real_plugin.py`) are free of the guards.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import gc
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests.warm import Interpreters

pytest_plugins = ["pytester", "tests.real_plugin"]

# Every run has the same examples, however slow the machine is; tools/fuzz.py finds new ones.
settings.register_profile(
    "simdist", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simdist")

LONGEST_SLEEP_S = 0.2

_real_sleep = time.sleep  # the guard lets short ones through
_offences: list[str] = []
_guarding = False
_may_open = False  # True: the test may open internet sockets, on the loopback device


def _guarded_sleep(seconds: Any) -> None:
    if _guarding and seconds > LONGEST_SLEEP_S:
        _offences.append(f"slept for {seconds} s of real time")
        raise AssertionError(_offences[-1])
    _real_sleep(seconds)


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _guarding and not _may_open and event == "socket.__new__" and arguments[1] in (socket.AF_INET, socket.AF_INET6):
        _offences.append("opened an internet socket")
        raise AssertionError(_offences[-1])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes golden files anew; their diff is reviewed."""
    parser.addoption("--rewrite-golden", action="store_true", help="write the golden files anew")


def pytest_configure(config: pytest.Config) -> None:
    """Import simdist as it is: pytest would rewrite the assertions of each module, because the package has a plugin."""
    hook: Any = config.pluginmanager.rewrite_hook
    hook._must_rewrite.discard("simdist")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Switch the garbage collector off: collection makes thousands of tests and hardly any garbage; saves a fifth."""
    given(none())(lambda _: None)()  # hypothesis visits all objects at its first test: now there are still few
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        # A full collection visits all of torch, which takes a second and frees nothing: garbage is in young objects.
        gc.set_threshold(*gc.get_threshold()[:2], 10_000)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Collect the last tests' garbage, then freeze: the runner and the interpreter would visit all of torch thrice."""
    gc.collect(1)
    gc.freeze()


# A shell's background job ignores SIGINT, and so do its children: tests begin as in the foreground.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Replaced before any test module is imported: a `from time import sleep` there must find the engine's function.
time.sleep = _guarded_sleep  # replaced, not called
sys.addaudithook(_on_audit)


@pytest.fixture(autouse=True)
def leaves_no_trace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that really sleeps, opens a socket, or leaves a thread or a replaced name behind."""
    global _guarding
    if request.node.get_closest_marker("real") is not None:
        yield
        gc.enable()  # torch's reader of flight records switches the collector off and does not restore it
        return
    threads, alive, before = threading.enumerate(), _thread._count(), _surroundings()
    _offences.clear()
    _guarding = True
    try:
        yield
    finally:
        _guarding = False
        gc.enable()  # as above
    # A thread still runs a few instructions after it has reported that its work is done. This also holds for threads
    # of a fixture's world when the test begins, so fewer threads than at the beginning are no fault.
    patience = threading.Event()
    for _ in range(3000):
        if _thread._count() <= alive:
            break
        patience.wait(0.01)
    after = _surroundings()
    assert not _offences
    assert threading.enumerate() == threads
    assert _thread._count() <= alive
    assert {name: value for name, value in after.items() if value != before.get(name, value)} == {}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off: when it runs, and what it frees, depends on earlier tests."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def small_heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit garbage collections to the test's own objects: one of all of torch takes half a second."""
    from simdist.process.modules import _left_behind
    from simdist.process.stdlib import _collector

    for module in (_collector, _left_behind):  # each world counts the frozen objects one by one
        monkeypatch.setattr(module, "host_froze", lambda: True)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def internet_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test open sockets to itself."""
    monkeypatch.setattr(sys.modules[__name__], "_may_open", True)


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Interpreters]:
    """Interpreters that have imported torch, for tests that need their own process; all workers share them."""
    made = Interpreters(os.environ.get("PYTEST_XDIST_TESTRUNUID", "")[:12])
    yield made
    made.close()


@pytest.fixture
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The kernels of virtual devices in C++, from the user's cache folder or built there; None without g++.

    On a busy machine a build may take longer than the limit of a test: that limit ends with the build.
    """
    from simdist.device import build_kernels, built_kernels, compiler  # imports torch

    path = built_kernels()
    if path.exists():
        return path
    if compiler() is None:
        return None
    request.config.hook.pytest_timeout_cancel_timer(item=request.node)
    shared = tmp_path_factory.getbasetemp().parent
    with (shared / "kernels.lock").open("w") as lock:  # several test processes may be here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        return path if path.exists() else build_kernels()


@pytest.fixture
def warm_processes(interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch) -> Interpreters:
    """Let the determinism checks, also the plugin's, take their fresh processes from `interpreters`."""
    from simdist.determinism import _fresh
    from simdist.testing._plugin import _repeat

    monkeypatch.setattr(_fresh, "_run", interpreters.run)
    monkeypatch.setattr(_repeat, "subprocess", interpreters)
    return interpreters


def _surroundings() -> dict[str, object]:
    found: dict[str, object] = {
        "sockets": _sockets(),
        "time.sleep": time.sleep,  # compared, not called
        "time.time": time.time,  # likewise
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "sys.argv": sys.argv,
        "sys.excepthook": sys.excepthook,
        "os.environ": id(os.environ._data),  # type: ignore[attr-defined]
        "os.getpid": os.getpid,
        "Thread.start": threading.Thread.start,
    }
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None:
        found["_world"] = id(c10d._world)
    return found


def _sockets() -> list[tuple[int, int]]:
    # Includes files that C++ opened, which no audit hook sees. Hot in every test, so without names, which take longer.
    found = []
    with contextlib.suppress(FileNotFoundError):
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            with contextlib.suppress(OSError):  # the descriptor of listdir itself
                status = os.fstat(number)
                if stat.S_ISSOCK(status.st_mode):
                    found.append((status.st_dev, status.st_ino))
    return sorted(found)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test's worlds find a loop endless after a tenth of the turns, and a thread stubborn after 20 ms.

    The reports are the same.
    """
    from simdist.kernel import Simulation, _simulation

    monkeypatch.setattr(_simulation, "_GRACE_S", 0.02)
    begin: Any = Simulation.__init__
    defaults: dict[str, Any] = begin.__kwdefaults__
    monkeypatch.setitem(defaults, "idle_turns", defaults["idle_turns"] // 10)


@pytest.fixture
def insistent(no_collector: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test's worlds end stubborn threads sooner: no collection, with a finalizer, can be under way in them."""
    from simdist.kernel import _simulation

    shorter = {"_GRACE_S": 0.02, "_ABANDONED_S": 0.02, "_COLLECTION_S": 0.001, "_BETWEEN_S": 0.005}
    for name, seconds in shorter.items():
        monkeypatch.setattr(_simulation, name, seconds)


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `simdist run` and `launch` skip the look at all modules around a world: most worlds take less time."""
    from simdist.cli import _launch, _run
    from simdist.shared import SharedWrites

    for command in (_launch, _run):
        monkeypatch.setattr(command, "shared_writes", lambda: nullcontext(SharedWrites()))
