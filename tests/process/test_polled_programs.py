"""A rank that polls the output of a program waits for it in real time, while virtual time stands still."""

from __future__ import annotations

import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import simdist

SPEAKING = "import sys, time; time.sleep(0.05); print('one', flush=True); time.sleep(0.05); print('two', flush=True)"
SILENT = "import sys; sys.stdin.read()"
Wait = Callable[[int, float | None], bool]


def by_select(fd: int, timeout_s: float | None) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


def by_poll(fd: int, timeout_s: float | None) -> bool:
    polled = select.poll()
    polled.register(fd, select.POLLIN)
    return bool(polled.poll(None if timeout_s is None else timeout_s * 1e3))


def by_selector(fd: int, timeout_s: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


@pytest.mark.parametrize("timeout_s", [None, 20.0])
@pytest.mark.parametrize("wait", [by_select, by_poll, by_selector])
def test_all_that_a_program_says_is_there_at_once(wait: Wait, timeout_s: float | None) -> None:
    def body() -> tuple[bytes, float]:
        said = b""
        with subprocess.Popen([sys.executable, "-S", "-c", SPEAKING], stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            while wait(program.stdout.fileno(), timeout_s) and (part := os.read(program.stdout.fileno(), 100)):
                said += part
        return said, time.monotonic()

    assert simdist.run(body, world_size=1).values == [(b"one\ntwo\n", 0.0)]


def with_silent_program(body: Callable[[int], Any]) -> Callable[[], Any]:
    def program() -> Any:
        kinds: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process: Any = subprocess.Popen([sys.executable, "-S", "-c", SILENT], **kinds)
        with process as silent:
            found = body(silent.stdout.fileno())
            silent.stdin.close()
            return found

    return program


@pytest.mark.parametrize("wait", [by_select, by_poll, by_selector])
def test_a_program_that_says_nothing_is_waited_for_only_so_long(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.process._programs._TOGETHER_S", 0.1)

    def body(fd: int) -> tuple[list[bool], float]:
        return [wait(fd, 3600.0) for _ in range(3)], time.monotonic()

    answers, now_s = simdist.run(with_silent_program(body), world_size=1).values[0]
    assert answers == [False] * 3
    assert 3 * 3600 <= now_s < 3 * 3600 + 1


@pytest.mark.parametrize("wait", [by_select, by_poll, by_selector])
def test_who_polls_other_descriptors_does_not_wait_for_a_program(wait: Wait) -> None:
    def body(fd: int) -> tuple[bool, bool]:
        read, write = os.pipe()
        timed_out = not wait(read, 1e6)  # it would end the run if it was real time
        os.write(write, b"x")
        return timed_out, wait(read, None)

    assert simdist.run(with_silent_program(body), world_size=1).values == [(True, True)]
