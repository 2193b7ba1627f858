"""Groups, sessions and priorities are those of the simulated processes, and the host's stay as they were."""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simdist

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what Linux has")


def of_host() -> list[Any]:
    return [
        (os.getpgrp(), os.getsid(0), os.getpriority(os.PRIO_PROCESS, 0)),
        (os.getresuid(), os.getresgid(), os.getgroups(), Path("/").stat().st_ino),
        (os.sched_getscheduler(0), resource.prlimit(0, resource.RLIMIT_CORE)),
    ]


@pytest.fixture(autouse=True)
def _host_stays_as_it_is() -> Any:
    before = of_host()
    yield
    assert of_host() == before


def values(body: Callable[..., Any], world_size: int = 2) -> list[Any]:
    result = simdist.run(body, world_size=world_size)
    result.raise_for_failure()
    return result.values


def test_a_rank_leads_a_group_and_a_session() -> None:
    def body() -> tuple[bool, list[int | None]]:
        pid, failed = os.getpid(), []
        for leave in (os.setsid, os.setpgrp, lambda: os.setpgid(0, 0), lambda: os.getpgid(10**6)):
            try:
                failed.append(leave())
            except OSError as error:
                failed.append(error.errno)
        own = pid == os.getpgrp() == os.getpgid(0) == os.getpgid(pid) == os.getsid(0) == os.getsid(pid)
        return own, failed

    assert values(body) == [(True, [errno.EPERM] * 3 + [errno.ESRCH])] * 2


def leave(results: Any) -> None:
    began = os.getpgrp(), os.getsid(0), os.getpriority(os.PRIO_PROCESS, 0)
    os.setpgid(0, 0)
    alone = os.getpgrp() == os.getpid()
    os.setpgid(0, os.getppid())
    os.setsid()
    results.put((began, alone, os.getsid(0) == os.getpid(), os.getpgid(os.getppid())))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_begins_in_the_group_of_its_parent(method: str) -> None:
    def body() -> bool:
        context: Any = multiprocessing.get_context(method)
        results = context.SimpleQueue()
        os.nice(2)
        child = context.Process(target=leave, args=(results,))
        child.start()
        found = results.get()
        child.join()
        pid = os.getpid()
        return bool(found == ((pid, pid, os.getpriority(os.PRIO_PROCESS, pid)), True, True, pid))

    assert values(body) == [True, True]


def wait() -> None:
    time.sleep(1000)


def test_a_signal_to_a_group_reaches_its_processes_and_programs() -> None:
    def body() -> tuple[Any, ...]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = multiprocessing.get_context("fork").Process(target=wait)
        child.start()
        program, apart = (subprocess.Popen(["sleep", "60"], start_new_session=new) for new in (False, True))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.kill(0, signal.SIGUSR1)
        child.join()
        ended = child.exitcode, program.wait(), apart.returncode
        os.killpg(os.getpgid(apart.pid), signal.SIGKILL)
        return *ended, apart.wait()

    child, program, apart, killed = values(body, 1)[0]
    assert (program, apart, killed) == (-signal.SIGUSR1, None, -signal.SIGKILL)
    assert child == -signal.SIGUSR1


def test_priorities_are_noted_for_each_process() -> None:
    def body() -> list[Any]:
        own = os.getpid()
        found: list[Any] = [os.nice(3), os.getpriority(os.PRIO_PROCESS, own), os.getpriority(os.PRIO_PGRP, 0)]
        os.setpriority(os.PRIO_PROCESS, own, 50)
        os.sched_setscheduler(own, os.SCHED_FIFO, os.sched_param(7))
        found += [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(own).sched_priority]
        os.sched_setparam(0, os.sched_param(8))
        found += [os.sched_getparam(0).sched_priority, resource.prlimit(own, resource.RLIMIT_CORE, (0, 0)) is None]
        return [*found, resource.prlimit(0, resource.RLIMIT_CORE)]

    nice = os.getpriority(os.PRIO_PROCESS, 0)
    expected = [nice + 3, nice + 3, nice + 3, 19, os.SCHED_FIFO, 7, 8, False, (0, 0)]
    assert values(body) == [expected] * 2


OF_ROOT: dict[str, Callable[[], object]] = {
    "setuid": lambda: os.setuid(65_534),
    "seteuid": lambda: os.seteuid(65_534),
    "setresgid": lambda: os.setresgid(65_534, 65_534, 65_534),
    "setgroups": lambda: os.setgroups([5]),
    "chroot": lambda: os.chroot("/"),
    "clock_settime": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
    "clock_settime_ns": lambda: time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns()),
}


@pytest.mark.parametrize("name", OF_ROOT)
def test_what_would_change_the_machine_is_refused(name: str) -> None:
    result = simdist.run(OF_ROOT[name], world_size=1)

    error = result.ranks[0].exception
    assert isinstance(error, PermissionError)
    assert error.errno == errno.EPERM
    assert f"rank 0 would change the host's process or machine ({name})" in str(error)


def test_a_process_may_set_the_user_that_it_has() -> None:
    def body() -> None:
        os.setuid(os.getuid())
        os.seteuid(os.geteuid())
        os.setresgid(-1, os.getgid(), -1)

    values(body, 1)


@pytest.mark.parametrize("before", [os.setsid, os.setpgrp, functools.partial(os.nice, 3)])
def test_a_program_may_be_prepared_in_its_own_process(before: Callable[[], object]) -> None:
    def body() -> tuple[bool, int, int]:
        program = subprocess.Popen(["sleep", "60"], preexec_fn=before)
        leads = os.getpgid(program.pid) == program.pid
        niceness = os.getpriority(os.PRIO_PROCESS, program.pid)
        program.kill()
        return leads, niceness, program.wait()

    nices = isinstance(before, functools.partial)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert values(body) == [(not nices, own + 3 if nices else own, -signal.SIGKILL)] * 2
