"""Timeouts of waits for a program that runs on after its virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any
from unittest import mock

import pytest

import simdist

LATE_S = 0.0001
HANGS = [sys.executable, "-S", "-c", "import time; print('said', flush=True); time.sleep(1000)"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.process._programs._TOGETHER_S", 0.3)


def test_a_program_that_hangs_meets_the_timeout_of_run() -> None:
    def body() -> tuple[str, bytes, float]:
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            subprocess.run(["sh", "-c", "echo said; exec sleep 1000"], timeout=0.2, capture_output=True, check=False)
        return str(caught.value), caught.value.output, time.monotonic()

    assert simdist.run(body, world_size=1).values == [
        ("Command '['sh', '-c', 'echo said; exec sleep 1000']' timed out after 0.2 seconds", b"said\n", 0.2 + LATE_S)
    ]


def test_a_program_that_hangs_meets_the_timeout_of_wait() -> None:
    def body() -> tuple[list[object], float]:
        program = subprocess.Popen(["sleep", "1000"])
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            program.wait(timeout=1 - LATE_S)
        found = [caught.value.timeout, program.poll(), program.poll()]
        program.terminate()
        return [*found, program.wait(), program.poll()], time.monotonic()

    assert simdist.run(body, world_size=1).values == [([1 - LATE_S, None, None, -15, -15], 1.0)]


def test_communicate_goes_on_after_a_timeout() -> None:
    def body() -> tuple[Any, int | None]:
        program: Any = subprocess.Popen(HANGS, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            program.communicate(timeout=0.1)
        program.kill()
        return program.communicate(timeout=0.1), program.returncode

    assert simdist.run(body, world_size=1).values == [(("said\n", None), -9)]


def test_a_program_ends_before_a_timeout_that_is_shorter_than_its_start() -> None:
    def body() -> tuple[int, float]:
        return subprocess.Popen(["sh", "-c", "sleep 0.05; exit 3"]).wait(timeout=0.001), time.monotonic()

    assert simdist.run(body, world_size=1).values == [(3, 0.0)]


def test_an_event_loop_kills_the_program_of_a_transport_that_it_closes() -> None:
    async def start() -> tuple[int | None, float]:
        program = await asyncio.create_subprocess_exec("sleep", "1000", stdin=asyncio.subprocess.PIPE)
        program._transport.close()  # type: ignore[attr-defined]  # as asyncio does when it is cancelled
        return await program.wait(), time.monotonic()

    assert simdist.run(lambda: asyncio.run(start()), world_size=1).values == [(-9, 0.0)]


def test_a_program_that_waits_for_a_reader_who_sleeps_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_ANSWERS_S": 0.1, "_ALONE_S": 0.05, "_TOGETHER_S": 10.0}.items():
        monkeypatch.setattr(f"simdist.process._programs.{name}", value)

    async def read() -> tuple[int, int]:
        program = await asyncio.create_subprocess_exec(
            "head", "-c", "300000", "/dev/zero", stdout=asyncio.subprocess.PIPE, limit=64
        )
        size = 0
        assert program.stdout is not None
        while part := await program.stdout.read(1 << 16):
            size += len(part)
            await asyncio.sleep(0.3)
        return size, await program.wait()

    assert simdist.run(lambda: asyncio.run(read()), world_size=1).values == [(300_000, 0)]


def test_a_popen_that_a_mock_keeps_from_starting_has_no_program() -> None:
    def body() -> int:
        with mock.patch.object(subprocess.Popen, "_execute_child"):
            started: Any = subprocess.Popen(["never"])
        started.returncode = 0
        return subprocess.run(["true"], check=False).returncode

    result = simdist.run(body, world_size=1)

    assert result.values == [0]
    assert len(result.programs) == 1
