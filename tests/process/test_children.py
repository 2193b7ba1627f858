"""Programs that a rank starts: they get the rank's state, and calls that would leave the simulation are refused."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

import simdist
from simdist.errors import SimdistError, UnsupportedError
from simdist.process import original
from tests.c10d.worlds import values

SECOND = 1_000_000_000
LATE_NS = 100_000  # a wait that times out ends so much later
LATE_S = LATE_NS / 1e9
ECHO = 'echo "$RANK of $WORLD_SIZE, $MINE"'


def by_run() -> str:
    return subprocess.run(["sh", "-c", ECHO], capture_output=True, text=True, check=True).stdout


def by_output() -> str:
    return subprocess.check_output(ECHO, shell=True).decode()


def by_popen() -> str:
    with os.popen(ECHO) as pipe:
        return pipe.read()


def by_system() -> str:
    assert os.system(ECHO) == 0
    return ""


def by_stream() -> str:
    subprocess.run(ECHO, shell=True, check=True, stdout=sys.stdout)
    return ""


@pytest.mark.parametrize("start", [by_run, by_output, by_popen, by_system, by_stream])
def test_a_child_has_the_environment_of_its_rank(start: Callable[[], str]) -> None:
    def body() -> str:
        os.environ["MINE"] = f"set by {os.environ['RANK']}"
        return start()

    result = simdist.run(body, world_size=2)

    said = [(rank.value or "") + rank.stdout for rank in result.ranks]
    assert said == ["0 of 2, set by 0\n", "1 of 2, set by 1\n"]
    assert result.virtual_time_ns == 0


def test_an_environment_that_is_given_is_all_that_a_child_has() -> None:
    def body() -> str:
        return subprocess.check_output("/bin/echo -$RANK-$ONLY-", shell=True, env={"ONLY": "this"}, text=True)

    assert simdist.run(body, world_size=1).values == ["--this-\n"]


def test_what_a_child_prints_is_output_of_its_rank_where_it_waits_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        print("before")
        time.sleep(1)
        subprocess.run("echo out; echo err >&2", shell=True, check=True)
        time.sleep(1)
        print("after")

    heard: list[tuple[int, str, str]] = []

    result = simdist.run(
        body, world_size=1, echo=lambda rank, time_ns, stream, line: heard.append((time_ns, stream, line))
    )

    assert (result.ranks[0].stdout, result.ranks[0].stderr) == ("before\nout\nafter\n", "err\n")
    assert heard == [
        (0, "stdout", "before"),
        (1_000_000_000, "stdout", "out"),
        (1_000_000_000, "stderr", "err"),
        (2_000_000_000, "stdout", "after"),
    ]
    assert capfd.readouterr() == ("", "")


def test_a_child_reads_nothing_unless_it_is_given_something() -> None:
    def body() -> tuple[str, str]:
        nothing = subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout
        return nothing, subprocess.run(["cat"], input="given", capture_output=True, text=True, check=True).stdout

    assert simdist.run(body, world_size=1).values == [("", "given")]


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9), ("true", 0)])
def test_system_returns_the_status_that_wait_gives(command: str, status: int) -> None:
    def body() -> int:
        return os.system(command)

    assert simdist.run(body, world_size=1).values == [status]


def test_a_child_of_the_host_stays_the_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    simdist.run(by_stream, world_size=1)

    assert os.system("echo ours") == 0
    subprocess.run("echo $RANK-", shell=True, check=True)

    assert capfd.readouterr().out == "ours\n-\n"


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (lambda: os.execv(sys.executable, ["python"]), "os.execv would replace the whole world"),
        (lambda: os.execlp("true", "true"), "os.execv would replace the whole world"),
        (os.fork, "os.fork would copy the whole world"),
        (lambda: pty.spawn(["true"]), "os.forkpty (pty.fork and pty.spawn, too) would copy the whole world"),
        (lambda: os.waitpid(-12345, 0), "to wait for a group of processes is not simulated"),
        (
            lambda: (os.system("true"), os.waitid(os.P_PGID, 1, os.WEXITED)),
            "of os.waitid P_PID and P_ALL are simulated",
        ),
        (lambda: os.execve(sys.executable, ["python"], {}), "os.execve would replace the whole world"),
    ],
)
def test_what_would_leave_the_simulation_unseen_is_refused(start: Callable[[], Any], named: str) -> None:
    result = simdist.run(start, world_size=1)

    error = result.ranks[0].exception
    assert isinstance(error, UnsupportedError)
    assert named in str(error)
    assert multiprocessing.active_children() == []


def with_the_end(seen: list[Any], wait: Callable[[], Any]) -> None:
    seen.append(wait())
    seen.append(time.monotonic())


def test_who_waits_for_a_program_goes_on_when_its_virtual_time_is_over() -> None:
    def body() -> list[Any]:
        seen: list[Any] = []
        with_the_end(seen, lambda: subprocess.run(["true"], check=True).returncode)
        with_the_end(seen, lambda: os.system("exit 1"))
        with_the_end(seen, lambda: subprocess.check_output(["echo", "hello"]))
        program = subprocess.Popen(["false"])
        time.sleep(3)
        with_the_end(seen, program.wait)
        early = subprocess.Popen(["true"])
        time.sleep(9)
        with_the_end(seen, early.wait)
        return seen

    result = simdist.run(body, world_size=1, program_ns=5 * SECOND)

    assert result.values == [[0, 5.0, 256, 10.0, b"hello\n", 15.0, 1, 20.0, 0, 29.0]]


def test_other_ranks_and_threads_go_on_while_a_program_takes_its_time() -> None:
    def body() -> list[float]:
        times: list[float] = []
        thread = threading.Timer(2, lambda: times.append(time.monotonic()))
        thread.start()
        subprocess.run(["true"], check=True)
        thread.join()
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            subprocess.run(["true"], check=True)
        dist.barrier()
        return [*times, round(time.monotonic(), 3)]

    assert simdist.run(body, world_size=2, program_ns=5 * SECOND).values == [[2 + LATE_S, 10.0]] * 2


def test_a_program_is_there_until_its_virtual_time_is_over() -> None:
    def body() -> list[Any]:
        seen: list[Any] = []
        program = subprocess.Popen(["sh", "-c", "exit 7"], stdout=subprocess.PIPE)
        seen += [program.poll(), program.returncode]
        with pytest.raises(subprocess.TimeoutExpired, match=r"'exit 7'\]' timed out after 2 seconds"):
            program.wait(timeout=2)
        with pytest.raises(subprocess.TimeoutExpired):
            program.communicate(timeout=1)
        seen += [time.monotonic(), program.poll()]
        while program.poll() is None:
            time.sleep(0.5)
        return [*seen, time.monotonic(), program.returncode, program.communicate()]

    assert simdist.run(body, world_size=1, program_ns=5 * SECOND).values == [
        [None, None, pytest.approx(3 + 2 * LATE_S), None, pytest.approx(5 + 2 * LATE_S), 7, (b"", None)]
    ]


def test_an_event_loop_waits_for_a_program_in_virtual_time() -> None:
    async def ask() -> tuple[bytes, int | None, float]:
        program = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
        other = asyncio.create_task(asyncio.sleep(7))
        said = (await program.communicate())[0], program.returncode, time.monotonic()
        await other
        return said

    result = simdist.run(lambda: asyncio.run(ask()), world_size=2, program_ns=5 * SECOND)

    assert result.values == [(b"hello\n", 0, 5.0)] * 2
    assert result.virtual_time_ns == 7 * SECOND + LATE_NS


def test_an_event_loop_writes_to_a_program_that_a_thread_waits_for() -> None:
    async def main() -> Any:
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec("sh", "-c", "cat; exit 3", stdin=pipe, stdout=pipe)
        output, _ = await asyncio.wait_for(program.communicate(b"text"), 5)
        return output, program.returncode

    assert simdist.run(lambda: asyncio.run(main()), world_size=1).values == [(b"text", 3)]


def test_an_event_loop_reads_what_a_program_goes_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.process._programs._ALONE_S", 0.01)

    async def main() -> Any:
        pipe = asyncio.subprocess.PIPE
        command = 'while read x; do echo "got $x"; done; head -c 300000 /dev/zero'
        program = await asyncio.create_subprocess_exec("sh", "-c", command, stdin=pipe, stdout=pipe)
        assert program.stdin is not None
        assert program.stdout is not None
        answers = []
        for text in (b"one\n", b"two\n"):
            program.stdin.write(text)
            answers.append(await program.stdout.readline())
        program.stdin.close()
        return answers, len(await program.stdout.read()), await program.wait()

    result = simdist.run(lambda: asyncio.run(main()), world_size=1)

    assert result.values == [([b"got one\n", b"got two\n"], 300_000, 0)]


def test_a_loop_that_only_asks_for_the_end_comes_to_it() -> None:
    def body() -> int:
        program = subprocess.Popen(["true"])
        while program.poll() is None:
            pass
        return program.returncode

    result = simdist.run(body, world_size=1, program_ns=5_000_000)

    assert result.values == [0]
    assert 5_000_000 <= result.virtual_time_ns < 10_000_000


@pytest.mark.simdist(world_size=1, program_ns=5 * SECOND)
def test_a_marker_says_how_long_programs_take() -> None:
    subprocess.run(["true"], check=True)

    assert time.monotonic() == 5.0


def _run_by_torch(*words: Any, **named: Any) -> None:
    """Start a program from code of torch, such as its search for a compiler."""
    code = compile("run(*words, **named)", str(Path(torch.__file__).parent / "compiler.py"), "exec")
    exec(code, {"run": subprocess.run, "words": words, "named": named})


def test_a_program_of_torch_takes_no_virtual_time_whatever_it_takes_to_end() -> None:
    def body(real_s: float) -> float:
        for captured in (False, True):
            _run_by_torch(["sleep", str(real_s)], timeout=60, check=True, capture_output=captured)
        return time.monotonic()

    results = [simdist.run(body, world_size=1, args=(real_s,)) for real_s in (0.0, 0.05)]

    assert [result.values for result in results] == [[0.0], [0.0]]
    assert [event.kind for event in results[0].events] == [event.kind for event in results[1].events]


def test_a_program_of_torch_that_hangs_is_ended_by_its_real_timeout() -> None:
    def body() -> tuple[float, object]:
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            _run_by_torch(["sleep", "1000"], timeout=0.05, check=True)
        return time.monotonic(), caught.value.cmd

    assert simdist.run(body, world_size=1).values == [(0.0, ["sleep", "1000"])]


def test_run_with_a_timeout_kills_in_virtual_time() -> None:
    def body() -> tuple[float, str]:
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            subprocess.run(["true"], timeout=2, check=False)
        return time.monotonic(), str(caught.value)

    assert simdist.run(body, world_size=1, program_ns=3600 * SECOND).values == [
        (2 + LATE_S, "Command '['true']' timed out after 2 seconds")
    ]


@pytest.mark.parametrize("command", [["sleep", "1000"], ["true"]], ids=["that runs on", "that has long ended"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_program_at_once(command: list[str], number: int) -> None:
    def body() -> tuple[int, float]:
        program = subprocess.Popen(command)
        if command == ["true"]:
            original(os.waitid)(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        time.sleep(2)
        os.kill(program.pid, 0)
        program.send_signal(number)
        return program.wait(timeout=3), time.monotonic()

    assert simdist.run(body, world_size=1, program_ns=3600 * SECOND).values == [(-number, 2.0)]


def test_a_thread_that_waits_for_a_program_wakes_by_its_last_signal() -> None:
    def body() -> tuple[int, float]:
        program = subprocess.Popen(["sleep", "1000"])
        threading.Timer(2, program.terminate).start()
        return program.wait(), time.monotonic()

    assert simdist.run(body, world_size=1, program_ns=3600 * SECOND).values == [(-15, 2 + LATE_S)]


def test_programs_without_a_time_can_be_ended_by_pid_and_group() -> None:
    def body() -> list[int]:
        first = subprocess.Popen(["sleep", "1000"])
        first.terminate()
        second = subprocess.Popen(["sleep", "1000"])
        os.kill(second.pid, signal.SIGINT)
        third = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        os.killpg(os.getpgid(third.pid), signal.SIGKILL)
        fourth: Any = SubprocessHandler(
            "sleep", ("1000",), {}, None, None, 0, None
        )  # as torch's elastic agent starts workers
        fourth.close()
        return [first.wait(), second.wait(timeout=1), third.wait(), fourth.proc.wait()]

    assert simdist.run(body, world_size=1).values == [[-15, -2, -9, -15]]


def test_a_program_ignores_the_signals_that_its_rank_ignores() -> None:
    def body() -> list[int]:
        ended = []
        for handler in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(signal.SIGINT, handler)
            signal.signal(signal.SIGUSR1, handler)
            program = ["sh", "-c", "kill -INT $$; kill -USR1 $$; exit 3"]
            ended.append(subprocess.call(program))
            ended.append(os.waitpid(os.posix_spawn("/bin/sh", program, {}), 0)[1])
        return ended

    assert simdist.run(body, world_size=1).values == [[3, 3 << 8, -2, 2]]


@pytest.fixture
def in_background() -> Iterator[None]:
    """Ignore SIGINT, like a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_background")
def test_ranks_of_a_program_that_ignores_interrupts_do_so_and_pass_it_on() -> None:
    def body() -> tuple[bool, list[int]]:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGINT)
        program = ["sh", "-c", "kill -INT $$; exit 3"]
        ended = [subprocess.call(program)]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ended.append(subprocess.call(program))
        return ignored, ended

    assert simdist.run(body, world_size=1).values == [(True, [3, -2])]


def test_a_program_that_outlives_its_virtual_time_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.process._programs._PATIENCE_S", 0.1)

    with pytest.raises(SimdistError) as caught:
        simdist.run(_looks_at_a_server, world_size=1)

    assert str(caught.value) == (
        "rank 0: the program 'sleep' has reached the end of its virtual time, and still runs on for more than 0.1 real "
        "seconds; program_ns (in files program_time, of simdist launch --program-time) says how long the programs of "
        "ranks take, and one that runs until it is stopped needs more than that"
    )


def _looks_at_a_server() -> int | None:
    try:
        return subprocess.Popen(["sleep", "1000"]).poll()
    except Exception:  # no wall clock may decide what a rank does
        return 0


def test_who_looks_at_a_program_without_a_virtual_time_finds_it_ended() -> None:
    def body() -> tuple[int | None, float]:
        return subprocess.Popen(["sh", "-c", "sleep 0.05; exit 4"]).poll(), time.monotonic()

    assert simdist.run(body, world_size=1).values == [(4, 0.0)]


# -- without subprocess ------------------------------------------------------------------------------------------------

SHELL = ["sh", "-c", "echo of $RANK; exit 3"]


def by_posix_spawn() -> int:
    return os.waitpid(os.posix_spawn("/bin/sh", SHELL, os.environ), 0)[1] >> 8


def by_posix_spawnp() -> int:
    return os.wait4(os.posix_spawnp("sh", SHELL, os.environ), 0)[1] >> 8


def by_spawn() -> int:
    return os.spawnl(os.P_WAIT, "/bin/sh", *SHELL)


def by_spawn_in_path() -> int:
    return os.waitpid(os.spawnvpe(os.P_NOWAIT, "sh", SHELL, {"RANK": os.environ["RANK"]}), 0)[1] >> 8


def by_wait() -> int:
    os.posix_spawnp("sh", SHELL, os.environ)
    return os.wait()[1] >> 8


def by_waitid() -> int:
    os.posix_spawnp("sh", SHELL, os.environ)
    return os.waitid(os.P_ALL, 0, os.WEXITED).si_status  # type: ignore[union-attr]


@pytest.mark.parametrize("start", [by_posix_spawn, by_posix_spawnp, by_spawn, by_spawn_in_path, by_wait, by_waitid])
def test_programs_started_without_subprocess_are_the_rank_s_and_named(
    start: Callable[[], int], capfd: pytest.CaptureFixture[str]
) -> None:
    result = simdist.run(lambda: (start(), time.monotonic()), world_size=2, program_ns=5 * SECOND)

    assert result.values == [(3, 5.0)] * 2
    assert [rank.stdout for rank in result.ranks] == ["of 0\n", "of 1\n"]
    assert capfd.readouterr().out == ""
    assert result.programs == (f"sh, started at test_children.py:{_line_of(start)} by ranks 0, 1",)
    _, ended = [event for event in result.events if event.rank == 1 and event.kind.startswith("program-")]
    assert ended.data == {"name": "sh", "exit_code": 3}


def _line_of(start: Callable[[], int]) -> int:
    source, first = inspect.getsourcelines(start)
    return first + next(n for n, line in enumerate(source) if "spawn" in line and "def " not in line)


def test_a_rank_waits_for_its_own_children_alone() -> None:
    ours = subprocess.Popen(["true"])

    def body() -> list[Any]:
        seen: list[Any] = []
        subprocess.run(["true"], check=True)
        for wait in (os.wait, lambda: os.waitpid(-1, os.WNOHANG), lambda: os.wait3(0)):
            with pytest.raises(ChildProcessError, match=r"\[Errno 10\] No child processes"):
                wait()
        late = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
        early = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1,))
        early.start()
        seen.append(os.waitpid(-1, os.WNOHANG)[0])
        seen.append(os.waitpid(-1, 0)[0] == early.pid)
        os.kill(late, signal.SIGTERM)
        seen.append(os.waitpid(-1, 0) == (late, signal.SIGTERM))
        return [*seen, round(time.monotonic(), 1)]

    assert simdist.run(body, world_size=1, program_ns=5 * SECOND).values == [[0, True, True, 6.0]]
    assert ours.wait() == 0


def test_actions_on_files_come_after_the_rank_s_own_streams(tmp_path: Path) -> None:
    def body() -> None:
        to_file = (os.POSIX_SPAWN_OPEN, 1, tmp_path / "out", os.O_WRONLY | os.O_CREAT, 0o600)
        os.waitpid(os.posix_spawnp("sh", ["sh", "-c", "echo out; echo err >&2; cat"], {}, file_actions=[to_file]), 0)

    result = simdist.run(body, world_size=1)

    assert (tmp_path / "out").read_text() == "out\n"
    assert (result.ranks[0].stdout, result.ranks[0].stderr) == ("", "err\n")


def test_a_program_that_nobody_ends_goes_with_its_world() -> None:
    result = simdist.run(lambda: subprocess.Popen(["sleep", "1000"]).pid, world_size=1)

    with pytest.raises(ProcessLookupError):
        os.kill(result.values[0], 0)


def test_a_run_names_the_programs_that_its_ranks_started() -> None:
    def body() -> None:
        for _ in range(2):
            subprocess.run(["echo", "/tmp/some/file"], check=True)
        os.system("'true' && false")

    result = simdist.run(body, world_size=2)

    line = body.__code__.co_firstlineno
    assert result.programs == (
        f"echo, started at test_children.py:{line + 2} by ranks 0, 1, 4 times",
        f"true, started at test_children.py:{line + 3} by ranks 0, 1",
    )
    assert result.summary()["programs"] == list(result.programs)
    of_rank = [event.data for event in result.events if event.rank == 1 and event.kind.startswith("program-")]
    assert of_rank[-2:] == [
        {"name": "true", "where": f"test_children.py:{line + 3}"},
        {"name": "true", "exit_code": 1},
    ]


def test_psutil_counts_programs_among_the_children_of_their_rank() -> None:
    psutil = pytest.importorskip("psutil")

    def body() -> bool:
        program = subprocess.Popen(["sleep", "1000"])
        (child,) = psutil.Process().children()
        return bool(child.pid == program.pid and child.name() == "sleep" and psutil.pid_exists(child.pid))

    assert simdist.run(body, world_size=1).values == [True]


def test_a_rank_reads_from_a_program_that_waits_for_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simdist.process._programs._ANSWERS_S", 0.05)
    flag = tmp_path / "flag"
    script = f"echo ready; while ! test -e {flag}; do sleep 0.01; done; echo seen; echo more; echo err >&2"

    def body() -> Any:
        dist.init_process_group("gloo")
        found = None
        if dist.get_rank() == 0:
            pipe = subprocess.PIPE
            with subprocess.Popen(["sh", "-c", script], stdout=pipe, stderr=pipe, text=True, bufsize=1) as program:
                assert program.stdout is not None
                assert program.stderr is not None
                found = program.stdout.readline(), next(program.stdout), program.stdout.read(), program.stderr.read()
        else:
            threading.Event().wait(2)  # a deadline
            time.sleep(3)  # a timer
            flag.touch()
        dist.barrier()
        return found

    assert values(body, 2) == [("ready\n", "seen\n", "more\n", "err\n"), None]


def test_a_program_that_says_nothing_ends_the_run_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simdist.process._programs._ANSWERS_S", 0.01)
    monkeypatch.setattr("simdist.process._programs._PATIENCE_S", 0.05)

    def body() -> None:
        program = subprocess.Popen(["sleep", "100"], stdout=subprocess.PIPE)
        assert program.stdout is not None
        with program.stdout:
            program.stdout.readline()

    with pytest.raises(
        SimdistError, match=r"from the program 'sleep', at test_children.py:\d+, which has said nothing"
    ):
        simdist.run(body, world_size=2)


def test_a_program_that_popen_spawns_is_one_program() -> None:
    def body() -> int:
        return subprocess.run(["/bin/sh", "-c", "exit 3"], close_fds=False, check=False).returncode  # by posix_spawn

    assert simdist.run(body, world_size=1).values == [3]
