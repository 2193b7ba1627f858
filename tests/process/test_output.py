from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.faults import Crash
from tests.beside import wait_for_host
from tests.host_state import host_state

RANK = "RANK"


def test_each_ranks_lines_are_its_own_however_they_interleave(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        rank = os.environ[RANK]
        for index in range(3):
            print("rank", rank, "line", index)
            print("oh", rank, file=sys.stderr)
            time.sleep(0.001)

    result = simdist.run(body, world_size=2)

    assert [rank.stdout for rank in result.ranks] == [
        "rank 0 line 0\nrank 0 line 1\nrank 0 line 2\n",
        "rank 1 line 0\nrank 1 line 1\nrank 1 line 2\n",
    ]
    assert [rank.stderr for rank in result.ranks] == ["oh 0\n" * 3, "oh 1\n" * 3]
    assert capsys.readouterr() == ("", "")


def test_a_line_may_be_written_in_pieces_while_others_write() -> None:
    def body() -> None:
        rank = os.environ[RANK]
        for piece in (f"{rank}a", "b", f"c\n{rank}d", "e"):
            print(piece, end="", flush=True)
            time.sleep(0.001)

    result = simdist.run(body, world_size=3)

    assert [rank.stdout for rank in result.ranks] == ["0abc\n0de", "1abc\n1de", "2abc\n2de"]


def test_lines_are_echoed_whole_with_their_virtual_time() -> None:
    heard: list[tuple[int, int, str, str]] = []

    def body() -> None:
        time.sleep(1e-6 * (1 + int(os.environ[RANK])))
        print("one\ntwo", end="")
        time.sleep(1e-5)
        print(" and a half")
        print("bad", file=sys.stderr)

    simdist.run(body, world_size=2, echo=lambda *line: heard.append(line))

    assert heard == [
        (0, 1_000, "stdout", "one"),
        (1, 2_000, "stdout", "one"),
        (0, 11_000, "stdout", "two and a half"),
        (0, 11_000, "stderr", "bad"),
        (1, 12_000, "stdout", "two and a half"),
        (1, 12_000, "stderr", "bad"),
    ]


def test_a_ranks_streams_are_no_terminal() -> None:
    def body() -> tuple[object, ...]:
        with pytest.raises(TypeError):
            sys.stdout.write(3)  # type: ignore[arg-type]
        return sys.stdout.isatty(), sys.stdout.writable(), sys.stderr.encoding, sys.stdout.write("four")

    result = simdist.run(body, world_size=1)

    result.raise_for_failure()
    assert result.values == [(False, True, "utf-8", 4)]
    assert result.ranks[0].stdout == "four"


def test_what_is_written_to_the_file_of_a_stream_joins_the_stream_in_order() -> None:
    def body() -> tuple[bool, bool]:
        print("first")
        os.write(sys.stdout.fileno(), b"by number\n")
        print("then")
        os.write(sys.stderr.fileno(), b"f\xc3")
        faulthandler.dump_traceback(file=sys.stderr, all_threads=False)
        os.write(sys.stdout.fileno(), "grü".encode())
        numbers = sys.stdout.fileno(), sys.stderr.fileno()
        return numbers[0] != numbers[1], min(numbers) > 2

    result = simdist.run(body, world_size=2)

    assert result.values == [(True, True)] * 2
    for rank in result.ranks:
        assert rank.stdout == "first\nby number\nthen\ngrü"
        assert rank.stderr.startswith("f\N{REPLACEMENT CHARACTER}Stack (most recent call first):")
        assert "in body" in rank.stderr


def test_the_files_of_streams_close_with_the_world_a_killed_rank_s_too() -> None:
    seen: list[int] = []

    def body() -> None:
        seen.append(sys.stdout.fileno())
        os.write(sys.stdout.fileno(), b"last words\n")
        if os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)

    result = simdist.run(body, world_size=2)

    assert [rank.stdout for rank in result.ranks] == ["last words\n"] * 2
    for number in seen:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_bytes_go_the_same_way() -> None:
    def body() -> None:
        sys.stdout.buffer.write("grüße\n".encode())
        sys.stdout.write("plain\n")

    result = simdist.run(body, world_size=1)

    result.raise_for_failure()
    assert result.ranks[0].stdout == "grüße\nplain\n"


def test_a_rank_that_redirects_its_output_redirects_only_its_own() -> None:
    def body() -> str:
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught) if os.environ[RANK] == "0" else contextlib.nullcontext():
            time.sleep(0.001 * (1 + int(os.environ[RANK])))
            print("from", os.environ[RANK])
            time.sleep(0.010)
        return caught.getvalue()

    result = simdist.run(body, world_size=2)

    assert result.values == ["from 0\n", ""]
    assert [rank.stdout for rank in result.ranks] == ["", "from 1\n"]


def test_a_killed_rank_writes_no_more() -> None:
    def body() -> None:
        print("before", end="")
        try:
            time.sleep(1)
        finally:
            print("after")

    result = simdist.run(body, world_size=1, faults=[Crash(rank=0, at_ns=5)])

    assert result.ranks[0].stdout == "before"


def test_what_a_hung_rank_wrote_is_reported() -> None:
    def body() -> None:
        print("half a line", end="")
        time.sleep(1)

    result = simdist.run(body, world_size=1, faults=[simdist.faults.Hang(rank=0, at_ns=5)])

    assert result.ranks[0].stdout == "half a line"


def test_an_exception_is_reported_on_stderr_without_frames_of_the_engine() -> None:
    def body() -> None:
        raise ValueError("two\nlines")

    result = simdist.run(body, world_size=1)

    lines = result.ranks[0].stderr.splitlines()
    assert lines[0] == "[rank0]: Traceback (most recent call last):"
    assert lines[1].startswith(f'[rank0]:   File "{__file__}", line ')
    assert lines[-2:] == ["[rank0]: ValueError: two", "[rank0]: lines"]


def test_an_exception_is_reported_with_the_interpreters_suggestion() -> None:
    result = simdist.run(lambda: math.sqr(2), world_size=1)  # type: ignore[attr-defined]

    expected = "[rank0]: AttributeError: module 'math' has no attribute 'sqr'. Did you mean: 'sqrt'?"
    assert result.ranks[0].stderr.splitlines()[-1] == expected


def test_a_line_is_an_event_with_its_size_and_checksum() -> None:
    result = simdist.run(lambda: print("grün"), world_size=1)

    (event,) = [event for event in result.events if event.kind == "output"]
    assert (event.time_ns, event.rank) == (0, 0)
    assert event.data == {"stream": "stdout", "size": 5, "crc": 1570091429}


def test_another_thread_of_the_host_writes_to_the_hosts_streams(capsys: pytest.CaptureFixture[str]) -> None:
    go, done = threading.Event(), threading.Event()

    def host() -> None:
        go.wait(10)
        print("from the host")
        print("trouble", file=sys.stderr)
        done.set()

    def body() -> None:
        print("from the rank")
        go.set()
        wait_for_host(done)

    thread = threading.Thread(target=host)
    thread.start()
    result = simdist.run(body, world_size=1)
    thread.join()

    result.raise_for_failure()
    assert capsys.readouterr() == ("from the host\n", "trouble\n")
    assert result.ranks[0].stdout == "from the rank\n"


def test_echo_may_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Its text is no output of the rank, whose thread calls it, and its clock is the host's."""

    def body() -> None:
        print("hello")
        sys.stderr.write("unfinished")

    times: list[float] = []
    before = time.time()

    def echo(rank: int, now_ns: int, stream: str, line: str) -> None:
        times.append(time.time())
        print(f"rank {rank}: {line}")
        print("noted", file=sys.stderr)

    result = simdist.run(body, world_size=2, echo=echo)

    assert capsys.readouterr() == ("rank 0: hello\nrank 1: hello\n", "noted\n" * 2)
    assert [rank.stdout for rank in result.ranks] == ["hello\n", "hello\n"]
    assert result.digest == simdist.run(body, world_size=2).digest
    assert all(before <= each <= time.time() for each in times)


class Watching(Exception):
    """An error in the program that watches a world."""


@pytest.mark.parametrize("failing", ["stdout", "stderr"])
def test_what_echo_raises_comes_out_of_the_run_and_ends_the_world(failing: str) -> None:
    reached: list[str] = []
    before = host_state()

    def body() -> None:
        rank = os.environ[RANK]
        time.sleep(1e-6 * int(rank))
        try:
            print("said", file=sys.stdout if failing == "stdout" else sys.stderr)
        except BaseException:
            time.sleep(1)  # even a rank that catches everything ends here
            reached.append(rank)
        reached.append(rank)

    def echo(rank: int, now_ns: int, stream: str, line: str) -> None:
        raise Watching(f"{rank} {now_ns} {stream} {line}")

    with pytest.raises(Watching) as caught:
        simdist.run(body, world_size=3, echo=echo)

    assert str(caught.value) == f"0 0 {failing} said"
    assert caught.traceback[-1].name == "echo"
    assert reached == []
    assert host_state() == before


def test_what_echo_raises_about_a_traceback_comes_out_too() -> None:
    def body() -> None:
        raise ValueError("of the rank")

    def echo(*line: object) -> None:
        raise Watching("of the host")

    with pytest.raises(Watching, match="of the host"):
        simdist.run(body, world_size=2, echo=echo)


def test_what_progress_raises_comes_out_of_the_run() -> None:
    before = host_state()

    def body() -> None:
        while True:
            time.sleep(1)

    def progress(now_ns: int, events: int) -> None:
        raise Watching("of the host")

    with pytest.raises(Watching, match="of the host"):
        simdist.run(body, world_size=3, progress=progress)

    assert host_state() == before


@contextlib.contextmanager
def _laid_over(path: Path, fd: int) -> Iterator[None]:
    """Redirect a descriptor to a file, as in programs that also want the output of C code and of children."""
    saved = os.dup(fd)
    with path.open("w") as file:
        os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        os.dup2(saved, fd)
        os.close(saved)


def test_what_a_rank_lays_over_its_standard_output_is_its_own(tmp_path: Path) -> None:
    def body() -> None:
        rank = os.environ[RANK]
        print("begin")
        with _laid_over(tmp_path / f"outer{rank}", 1):
            print("inside")
            time.sleep(0.001)  # the other rank has its own file by now
            with _laid_over(tmp_path / f"inner{rank}", sys.stdout.fileno()):
                print("deep")
            os.write(1, b"raw\n")
            subprocess.run(["echo", "program"], check=True)
            subprocess.run(["echo", "explicit"], check=True, stdout=sys.stdout)
            print("still in", rank, file=sys.stderr)
        print("end")
        os.dup2(1, 2)
        print("one stream", file=sys.stderr)
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        os.system("echo lost")
        print("lost")

    streams, before, dup = [os.fstat(number) for number in (1, 2)], host_state(), os.dup
    result = simdist.run(body, world_size=2)

    result.raise_for_failure()
    for rank in (0, 1):
        assert (tmp_path / f"outer{rank}").read_text() == "inside\nraw\nprogram\nexplicit\n"
        assert (tmp_path / f"inner{rank}").read_text() == "deep\n"
        assert result.ranks[rank].stdout == "begin\nend\none stream\n"
        assert result.ranks[rank].stderr == f"still in {rank}\n"
    assert all(os.path.samestat(os.fstat(number), each) for number, each in zip((1, 2), streams, strict=True))
    assert host_state() == before
    assert os.dup is dup


def test_pytest_moves_the_hosts_streams_from_a_rank_too(tmp_path: Path) -> None:
    """As pytest does at a breakpoint."""
    pytests: dict[str, Any] = {"__name__": "_pytest.capture", "os": os}
    exec("def move(source, number):\n    os.dup2(source, number)", pytests)
    saved = os.dup(2)

    def body() -> bool:
        with (tmp_path / "file").open("w") as file:
            pytests["move"](file.fileno(), 2)
            try:
                return os.path.samestat(os.fstat(2), os.fstat(file.fileno()))
            finally:
                pytests["move"](saved, 2)

    before = os.fstat(2)
    result = simdist.run(body, world_size=2)
    os.close(saved)

    assert result.values == [True, True]
    assert os.path.samestat(os.fstat(2), before)


def test_pytest_on_ranks_moves_their_own_streams(tmp_path: Path) -> None:
    pytests: dict[str, Any] = {"__name__": "_pytest.capture", "os": os}
    exec("def move(source, number):\n    os.dup2(source, number)", pytests)
    entry: dict[str, Any] = {"__name__": "_pytest.config"}
    exec("def main(capture):\n    capture()", entry)

    def captured() -> None:
        rank = int(os.environ[RANK])
        saved = os.dup(1)
        with (tmp_path / f"file{rank}").open("w") as file:
            pytests["move"](file.fileno(), 1)
            time.sleep(0.001 * (rank + 1))  # the first to begin is the first to end
            print("inside", rank)
            pytests["move"](saved, 1)
        os.close(saved)
        print("end", rank)

    before = os.fstat(1)
    result = simdist.run(lambda: entry["main"](captured), world_size=2)

    assert [rank.stdout for rank in result.ranks] == ["end 0\n", "end 1\n"]
    assert [(tmp_path / f"file{rank}").read_text() for rank in (0, 1)] == ["inside 0\n", "inside 1\n"]
    assert os.path.samestat(os.fstat(1), before)


def test_a_child_has_what_its_parent_laid_over(tmp_path: Path) -> None:
    def body() -> None:
        with _laid_over(tmp_path / "file", 1):
            for kind in (multiprocessing.get_context("fork").Process, multiprocessing.get_context("spawn").Process):
                child = kind(target=print, args=(kind._start_method,))
                child.start()
                child.join()

    simdist.run(body, world_size=1).raise_for_failure()

    assert (tmp_path / "file").read_text() == "fork\nspawn\n"


@pytest.mark.parametrize("killed", [False, True])
def test_files_of_killed_ranks_are_not_reported_by_others(monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """Python 3.14 reports a file whose finalizer fails, on the rank that collects it."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    of_a_file = types.SimpleNamespace(err_msg="Exception ignored while finalizing file <a file>")
    of_another = types.SimpleNamespace(err_msg=None)

    def body() -> None:
        if os.environ[RANK] == "1" and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        if os.environ[RANK] == "0":
            for each in (of_a_file, of_another):
                hook: Any = sys.unraisablehook
                hook(each)

    simdist.run(body, world_size=2)

    assert reported == ([of_another] if killed else [of_a_file, of_another])


@pytest.mark.usefixtures("small_heap")
def test_what_a_rank_left_writes_nothing_when_the_host_collects_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Bar:
        def __init__(self) -> None:
            self.file, self.itself = sys.stderr, self

        def __del__(self) -> None:
            self.file.write("closed")

    def body() -> None:
        gc.disable()
        Bar()

    simdist.run(body, world_size=1).raise_for_failure()
    gc.collect()

    assert capsys.readouterr().err == ""


def test_a_killed_childs_closed_stream_leaves_the_host_alone(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        with io.StringIO() as stream, contextlib.redirect_stderr(stream):
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
            child.start()
            time.sleep(1)
            child.kill()
            child.join()

    simdist.run(body, world_size=1)

    assert capfd.readouterr() == ("", "")
