"""Threads of a rank that talk over a pipe of the system wait in virtual time; for programs, in real time."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

import simdist


def by_os(fd: int) -> bytes:
    found = b""
    while part := os.read(fd, 100):
        found += part
    os.close(fd)
    return found


def by_file(fd: int) -> bytes:
    with os.fdopen(fd, "rb", 0) as file:
        return file.read()


def by_line(fd: int) -> bytes:
    with os.fdopen(fd) as file:
        return "".join(file).encode()


READERS = [by_os, by_file, by_line]


@pytest.mark.parametrize("read", READERS)
def test_a_reader_waits_for_another_thread(read: Callable[[int], bytes]) -> None:
    def body() -> tuple[bytes, float]:
        end, other = os.pipe()

        def write() -> None:
            for _ in range(3):
                time.sleep(1)
                os.write(other, b"line\n")
            time.sleep(1)
            os.close(other)

        threading.Thread(target=write).start()
        return read(end), time.monotonic()

    assert simdist.run(body, world_size=2).values == [(b"line\n" * 3, 4.0)] * 2


@pytest.mark.parametrize("write", ["os", "file"])
def test_a_writer_waits_for_room(write: str) -> None:
    def body() -> tuple[int, int, float]:
        end, other = os.pipe()
        found: list[int] = []

        def read() -> None:
            with os.fdopen(end, "rb") as file:
                while part := file.read(10_000):
                    found.append(len(part))
                    time.sleep(1)

        reader = threading.Thread(target=read)
        reader.start()
        if write == "os":
            written = os.write(other, bytes(300_000))
            os.close(other)
        else:
            with os.fdopen(other, "wb") as file:
                written = file.write(bytes(300_000))
        reader.join()
        return written, sum(found), time.monotonic()

    assert simdist.run(body, world_size=1).values == [(300_000, 300_000, 30.0)]


def test_a_thread_logs_what_programs_write() -> None:
    def body() -> bytes:
        end, other = os.pipe()
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(by_line(end)))
        reader.start()
        for text in ("one", "two"):
            subprocess.run(["sh", "-c", f"sleep 0.05; echo {text}"], stdout=other, check=True)
        os.close(other)
        reader.join()
        return found[0]

    assert simdist.run(body, world_size=1).values == [b"one\ntwo\n"]


def test_a_thread_logs_what_its_rank_prints() -> None:
    def body() -> bytes:
        end, other = os.pipe()
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(by_os(end)))
        reader.start()
        before = os.dup(1)
        os.dup2(other, 1)
        os.close(other)
        print("printed")
        sys.stdout.flush()
        subprocess.run(["echo", "said"], check=True)
        os.dup2(before, 1)
        os.close(before)
        reader.join()
        return found[0]

    assert simdist.run(body, world_size=1).values == [b"printed\nsaid\n"]


def forked(end: int, other: int) -> None:
    found = os.read(end, 100)
    time.sleep(1)
    os.write(other, found + b" too")


def test_a_forked_child_has_the_pipes_of_its_parent() -> None:
    def body() -> tuple[bytes, float]:
        (end, other), (back, there) = os.pipe(), os.pipe()
        child = multiprocessing.get_context("fork").Process(target=forked, args=(end, there))
        child.start()
        time.sleep(1)
        os.write(other, b"said")
        found = os.read(back, 100)
        child.join()
        return found, time.monotonic()

    assert simdist.run(body, world_size=1).values == [(b"said too", 2.0)]


def test_who_waits_for_nobody_hangs_and_that_is_reported() -> None:
    def body() -> None:
        end, _ = os.pipe()
        os.read(end, 1)

    (rank,) = simdist.run(body, world_size=1).ranks

    assert (rank.status, rank.waiting) == ("hung", "read from a pipe")
