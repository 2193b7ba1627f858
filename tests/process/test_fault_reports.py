"""`faulthandler` on a rank: nothing of it reaches the host, and registered signals write reports."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import simdist
from tests.c10d.worlds import values

SIGNAL = signal.SIGUSR1
unregister: Any = faulthandler.unregister  # the stubs have no result


def test_no_thread_of_faulthandler_outlives_a_rank(tmp_path: Path) -> None:
    with (tmp_path / "stacks").open("w") as file:
        simdist.run(lambda: faulthandler.dump_traceback_later(0.02, file=file), world_size=1).raise_for_failure()
        time.sleep(0.1)

    assert (tmp_path / "stacks").read_text() == ""


def test_a_registered_signal_reports_where_the_rank_is_and_it_lives_on() -> None:
    def program() -> str:
        faulthandler.register(SIGNAL)
        os.kill(os.getpid(), SIGNAL)
        return "alive"

    before = signal.getsignal(SIGNAL)
    result = simdist.run(program, world_size=2)

    result.raise_for_failure()
    assert result.values == ["alive"] * 2
    for rank in result.ranks:
        first, second = rank.stderr.splitlines()[:2]
        assert re.fullmatch(r"Current thread 0x[0-9a-f]{16} \(most recent call first\):", first)
        assert re.fullmatch(rf'  File "{re.escape(__file__)}", line \d+ in program', second)
    assert signal.getsignal(SIGNAL) is before
    assert not unregister(SIGNAL)


def test_other_threads_are_reported_first_and_only_if_asked_for() -> None:
    def program() -> None:
        event = threading.Event()
        thread = threading.Thread(target=event.wait)
        thread.start()
        time.sleep(1)
        for every in (True, False):
            faulthandler.register(SIGNAL, all_threads=every)
            os.kill(os.getpid(), SIGNAL)
        event.set()
        thread.join()

    result = simdist.run(program, world_size=1)

    result.raise_for_failure()
    lines = result.ranks[0].stderr.splitlines()
    heads = [line.split()[0] for line in lines if line.endswith("(most recent call first):")]
    assert heads == ["Thread", "Current", "Current"]
    assert " in wait" in lines[1]


def test_a_report_goes_to_a_file_and_on_to_the_handler_before(tmp_path: Path) -> None:
    def program() -> list[int]:
        called: list[int] = []
        signal.signal(SIGNAL, lambda number, _: called.append(number))
        with (tmp_path / "report").open("w") as file:
            faulthandler.register(SIGNAL, file=file, chain=True)
            os.kill(os.getpid(), SIGNAL)
            faulthandler.register(SIGNAL, file=file.fileno())
            os.kill(os.getpid(), SIGNAL)
            removed = [unregister(SIGNAL), unregister(SIGNAL)]
            os.kill(os.getpid(), SIGNAL)
        return [*called, *removed]

    assert values(program, 1) == [[SIGNAL, SIGNAL, True, False]]
    assert (tmp_path / "report").read_text().count("Current thread") == 2


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "signal 11 cannot be registered, use enable() instead"),
        (0, "signal number out of range"),
        (1000, "signal number out of range"),
    ],
)
def test_what_can_not_be_registered_is_refused_in_pythons_words(number: int, words: str) -> None:
    def program() -> list[str]:
        texts = []
        for act in (faulthandler.register, faulthandler.unregister):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                act(number)
            texts.append(str(caught.value))
        return texts

    with pytest.raises((RuntimeError, ValueError), match=re.escape(words)):
        faulthandler.unregister(number)
    assert simdist.run(program, world_size=1).values == [[words] * 2]


def test_a_signal_that_is_registered_no_longer_ends_the_rank() -> None:
    def program() -> None:
        faulthandler.register(SIGNAL)
        faulthandler.unregister(SIGNAL)
        os.kill(os.getpid(), SIGNAL)

    assert simdist.run(program, world_size=1).ranks[0].exit_code == -SIGNAL
