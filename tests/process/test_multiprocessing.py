"""Processes that a rank starts with `multiprocessing`: they behave like real ones, but none of them is real.

The bodies are ordinary programs. Without simdist they run on real processes: the `real` test requires the same results.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

import simdist
from tests.real_answers import real_answer

start_processes: Any = vars(mp)["start_processes"]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def failure_of(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # any error: it is compared
        call()
    return type(caught.value).__name__, re.sub(r"pid(\(s\))? \d+(, \d+)*", "pid N", str(caught.value))


# -- bodies ----------------------------------------------------------------------------------------------------------


def put_a_sum(queue: Any, tensor: torch.Tensor, number: int) -> None:
    tensor += 1
    queue.put(
        (tensor.tolist(), number, multiprocessing.current_process().name, multiprocessing.parent_process() is None)
    )


def queues(method: str) -> Any:
    context: Any = mp.get_context(method)
    queue, tensor = context.Queue(), torch.zeros(2)
    process = context.Process(target=put_a_sum, args=(queue, tensor, 5))
    process.start()
    received = queue.get()
    process.join()
    return received, process.exitcode, tensor.tolist(), process.name


def answer(begin: Any, end: Any, lock: Any, pipe: Any) -> None:
    begin.wait()
    with lock:
        pipe.send(("got", pipe.recv()))
    end.set()


def events_and_pipes(method: str) -> Any:
    context: Any = mp.get_context(method)
    begin, end, lock = context.Event(), context.Event(), context.Lock()
    mine, theirs = context.Pipe()
    process = context.Process(target=answer, args=(begin, end, lock, theirs))
    process.start()
    theirs.close()
    mine.send([1, 2])
    begin.set()
    found = mine.recv(), end.wait(10)
    process.join()
    return found, failure_of(mine.recv)


def square(number: int) -> int:
    return number * number


def fail() -> None:
    raise ValueError("no")


def pools(method: str) -> Any:
    context: Any = mp.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(square, range(10)), failure_of(lambda: pool.apply(fail))
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        return found, list(executor.map(square, range(6))), failure_of(lambda: executor.submit(fail).result())


def many(queue: Any, size: int) -> None:
    queue.put(b"x" * size)


def more_than_a_pipe_holds(method: str) -> Any:
    context: Any = mp.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=many, args=(queue, 300_000 + index)) for index in range(3)]
    for process in processes:
        process.start()
    sizes = sorted(len(queue.get()) for _ in processes)
    for process in processes:
        process.join()
    return sizes, [process.exitcode for process in processes]


def leave(code: Any) -> None:
    sys.exit(code)


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)


def exit_codes(method: str) -> Any:
    context: Any = mp.get_context(method)
    codes = []
    for target, argument in ((leave, 3), (leave, None), (os._exit, 7), (kill_itself, 9), (kill_itself, 15)):
        process = context.Process(target=target, args=(argument,))
        process.start()
        process.join()
        codes.append(process.exitcode)
    sleeper = context.Process(target=time.sleep, args=(1000,))
    sleeper.start()
    codes.append((sleeper.is_alive(), sleeper.join(0.01), sleeper.exitcode))
    sleeper.terminate()
    sleeper.join()
    return codes, sleeper.exitcode, repr(sleeper).count("SIGTERM")


def nest(queue: Any) -> None:
    inner = multiprocessing.Process(target=square, args=(2,))
    inner.start()
    inner.join()
    queue.put((inner.exitcode, inner.name))


def children_of_children(method: str) -> Any:
    context: Any = mp.get_context(method)
    queue = context.Queue()
    process = context.Process(target=nest, args=(queue,), name="outer")
    process.start()
    found = queue.get()
    process.join()
    daemon = context.Process(target=nest, args=(queue,), daemon=True)
    daemon.start()
    daemon.join()
    return found, daemon.exitcode


def add_up(value: Any, array: Any, barrier: Any) -> None:
    barrier.wait()
    with value.get_lock():
        value.value += 1
    with array.get_lock():
        array[0] += 1.0


def put_back(end: Any) -> None:
    end.send(end.recv())


def a_pipe_that_its_maker_drops(method: str) -> Any:
    """Leave the other end only to the child, so that the pipe ends with the child."""
    context: Any = multiprocessing.get_context(method)
    own, other = context.Pipe()
    child = context.Process(target=put_back, args=(other,), daemon=True)
    child.start()
    del other
    own.send(1)
    return own.recv(), own.poll(10), failure_of(own.recv)


def shared_values(method: str) -> Any:
    context: Any = mp.get_context(method)
    value, array, barrier = context.Value("i", 5), context.Array("d", 2), context.Barrier(3)
    processes = [context.Process(target=add_up, args=(value, array, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return value.value, array[:]


PREFIXES = {"fork": "ForkProcess", "spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}


def dropped(method: str) -> list[bool]:
    """Whether the pipe to a child is open: when it has ended, and when its object is dropped."""
    context: Any = mp.get_context(method)
    child = context.Process(target=int)
    child.start()
    child.join()
    sentinel = child.sentinel
    was_open = is_open(sentinel)
    del child
    return [was_open, is_open(sentinel)]


def chosen_cores(method: str) -> list[bool]:
    """Whether a process, its child and its child's child run on the cores that the child has chosen, and an error."""
    context: Any = mp.get_context(method)
    answers = context.SimpleQueue()
    context.Process(target=choose_core, args=(answers,)).start()
    found = [answers.get(), answers.get(), len(os.sched_getaffinity(0)) == 1]
    with pytest.raises(OSError, match="Invalid argument"):
        os.sched_setaffinity(0, [1000])
    return found


def choose_core(answers: Any) -> None:
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    answers.put(len(os.sched_getaffinity(0)) == 1)
    context: Any = mp.get_context("fork")
    child = context.Process(target=lambda: answers.put(len(os.sched_getaffinity(0)) == 1))
    child.start()
    child.join()


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


PROGRAMS: dict[Callable[[str], Any], Callable[[str], Any]] = {
    queues: lambda method: (
        ([1.0, 1.0], 5, f"{PREFIXES[method]}-1", False),
        0,
        [float(method != "fork")] * 2,  # pickled tensors move to shared memory
        f"{PREFIXES[method]}-1",
    ),
    events_and_pipes: lambda method: ((("got", [1, 2]), True), ("EOFError", "")),
    pools: lambda method: (
        ([n * n for n in range(10)], ("ValueError", "no")),
        [n * n for n in range(6)],
        ("ValueError", "no"),
    ),
    more_than_a_pipe_holds: lambda method: ([300_000, 300_001, 300_002], [0, 0, 0]),
    exit_codes: lambda method: ([3, 0, 7, -9, -15, (True, None, None)], -15, 1),
    children_of_children: lambda method: ((0, "Process-1:1"), 1),
    a_pipe_that_its_maker_drops: lambda method: (1, True, ("EOFError", "")),
    shared_values: lambda method: (8, [3.0, 0.0]),
    dropped: lambda method: [True, False],
    chosen_cores: lambda method: [True, True, len(os.sched_getaffinity(0)) == 1],
}


@pytest.mark.parametrize("method", PREFIXES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_processes_of_a_rank_do_what_real_ones_do(program: Callable[[str], Any], method: str) -> None:
    result = simdist.run(program, world_size=1, args=(method,))

    result.raise_for_failure()
    assert result.values == [PROGRAMS[program](method)]
    assert result.virtual_time_ns < 100_000_000


@pytest.mark.real
@pytest.mark.parametrize("method", PREFIXES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_real_processes_do_that(program: Callable[[str], Any], method: str) -> None:
    found = real_answer(program, method, tuple(PROGRAMS))

    names = re.compile(r"Process-[\d:]+")  # the runner's own number comes first
    assert names.sub("", repr(found)) == names.sub("", repr(PROGRAMS[program](method)))


# -- the properties of a child ---------------------------------------------------------------------------------------


def test_a_child_has_its_own_pid_environment_handlers_and_cause_of_chance() -> None:
    def child(queue: Any) -> None:
        os.environ["MINE"] = "child"
        random_number = random.random()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        queue.put((os.getpid(), os.getppid(), os.environ["RANK"], random_number, os.urandom(4)))
        time.sleep(100)

    def body() -> Any:
        queue = multiprocessing.get_context("fork").Queue()
        processes = [multiprocessing.get_context("fork").Process(target=child, args=(queue,)) for _ in range(2)]
        for process in processes:
            process.start()
        reported = [queue.get() for _ in processes]
        time.sleep(1)
        for process in processes:
            process.terminate()
            process.join()
        return os.getpid(), "MINE" in os.environ, reported, [process.exitcode for process in processes]

    first = simdist.run(body, world_size=2)
    second = simdist.run(body, world_size=2)

    assert first.values == second.values
    assert first.digest == second.digest
    pids, drawn = set(), set()
    for rank, (pid, has_mine, reported, codes) in enumerate(first.values):
        assert not has_mine
        assert codes == [5, 5]
        pids.add(pid)
        for child_pid, parent_pid, its_rank, *chance in reported:
            assert (parent_pid, its_rank) == (pid, str(rank))
            pids.add(child_pid)
            drawn.add(repr(chance))
    assert len(pids) == 6
    assert len(drawn) == 4


def test_what_a_forked_child_does_to_its_arguments_is_its_own() -> None:
    class Counter:
        def __init__(self) -> None:
            self.counts = {"n": 0}
            self.array = np.zeros(3)
            self.shared = torch.multiprocessing.Array("d", 2)

        def __getstate__(self) -> Any:
            raise AssertionError("no fork pickles")

    def child(counter: Counter, tensor: torch.Tensor) -> None:
        counter.counts["n"] += 1
        counter.array += 1
        counter.shared[0] += 1
        tensor += 1

    def body() -> Any:
        counter, tensor = Counter(), torch.zeros(1 << 19)
        process = multiprocessing.get_context("fork").Process(target=child, args=(counter, tensor))
        process.start()
        process.join()
        return process.exitcode, counter.counts, counter.array.sum(), counter.shared[:], tensor.sum().item()

    assert simdist.run(body, world_size=1).values == [(0, {"n": 0}, 0.0, [1.0, 0.0], 0.0)]


def test_what_a_child_prints_is_its_ranks_and_so_is_its_traceback() -> None:
    def body() -> int | None:
        process = multiprocessing.get_context("fork").Process(target=fail)
        process.start()
        process.join()
        return process.exitcode

    rank = simdist.run(body, world_size=2).ranks[1]

    assert rank.value == 1
    assert rank.stderr.startswith("Process ForkProcess-1:\nTraceback (most recent call last):\n")
    assert rank.stderr.endswith("ValueError: no\n")
    assert "simdist" not in rank.stderr


def test_a_daemon_ends_with_its_parent_and_others_are_waited_for() -> None:
    def body() -> None:
        context = multiprocessing.get_context("fork")
        context.Process(target=time.sleep, args=(3600,), daemon=True).start()
        context.Process(target=time.sleep, args=(5,)).start()

    result = simdist.run(body, world_size=1)

    assert result.ranks[0].exit_code == 0
    assert result.virtual_time_ns == 5_001_000_001  # each check for living children takes a nanosecond


def test_an_orphan_sees_that_its_parent_is_gone() -> None:
    def child() -> None:
        while os.getppid() != 1:
            time.sleep(1)
        print("alone")

    def body() -> None:
        multiprocessing.get_context("fork").Process(target=child, daemon=True).start()
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGKILL)

    result = simdist.run(body, world_size=1)

    assert result.ranks[0].stdout == "alone\n"
    assert result.virtual_time_ns == 3_001_000_000


def test_an_orphan_that_never_ends_is_killed() -> None:
    def child() -> None:
        while True:
            time.sleep(1)

    def body() -> None:
        multiprocessing.get_context("fork").Process(target=child, daemon=True).start()
        os.kill(os.getpid(), signal.SIGKILL)

    result = simdist.run(body, world_size=2)

    assert [rank.exit_code for rank in result.ranks] == [-9, -9]
    assert result.virtual_time_ns == 30_000_000_000


def test_a_deadlock_between_processes_names_them() -> None:
    def child(lock: Any, pipe: Any) -> None:
        with lock:
            pipe.recv()

    def body() -> None:
        context = multiprocessing.get_context("fork")
        lock, ends = context.Lock(), context.Pipe()
        process = context.Process(target=child, args=(lock, ends[1]), name="feeder")
        process.start()
        process.join()

    result = simdist.run(body, world_size=1)

    assert result.ranks[0].status == "hung"
    assert result.ranks[0].waiting == "join of process 20000"


def test_a_child_may_not_use_its_parents_group() -> None:
    def child(queue: Any) -> None:
        queue.put((dist.get_rank(), failure_of(lambda: dist.all_reduce(torch.ones(1)))))

    def body() -> Any:
        dist.init_process_group("gloo")
        queue = multiprocessing.get_context("fork").Queue()
        process = multiprocessing.get_context("fork").Process(target=child, args=(queue,))
        process.start()
        found = queue.get()
        process.join()
        dist.destroy_process_group()
        return found

    for rank, (reported, (kind, text)) in enumerate(simdist.run(body, world_size=2).values):
        assert reported == rank
        assert kind == "SimdistError"
        assert text.startswith(f"a child process of rank {rank} uses the rank's group ")


def reduce_inside(index: int, size: int, port: int) -> None:
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=index, world_size=size)
    tensor = torch.tensor(float(index + 1))
    dist.all_reduce(tensor)
    print(index, tensor.item())
    dist.destroy_process_group()


def test_a_job_that_a_rank_spawns_is_simulated_too() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        start_processes(reduce_inside, args=(3, 30_000 + dist.get_rank()), nprocs=3, start_method="spawn")
        tensor = torch.ones(())
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return tensor.item()

    result = simdist.run(body, world_size=2)

    assert result.values == [2.0, 2.0]
    assert [rank.stdout for rank in result.ranks] == ["0 6.0\n1 6.0\n2 6.0\n"] * 2


@pytest.mark.usefixtures("small_heap")
def test_nothing_is_left_behind() -> None:
    def body() -> None:
        context: Any = mp.get_context("fork")
        queue = context.Queue()
        context.Process(target=time.sleep, args=(3600,), daemon=True).start()
        queue.put(torch.ones(3))
        os._exit(3)

    simdist.run(body, world_size=2)
    gc.collect()  # garbage of earlier tests
    before = open_files(), vars(multiprocessing.process)["_current_process"], multiprocessing.active_children()
    simdist.run(body, world_size=2)

    after = open_files(), vars(multiprocessing.process)["_current_process"], multiprocessing.active_children()
    assert after == before


def save_by_a_process(folder: str) -> list[float]:
    dist.init_process_group("gloo")
    state = {"x": torch.arange(2.0) + dist.get_rank(), "shared": torch.ones(1)}
    for name in ("first", "second"):  # the process stays for the next one
        kind = state_dict_saver.AsyncCheckpointerType.PROCESS
        saving: Any = state_dict_saver.async_save(state, checkpoint_id=f"{folder}/{name}", async_checkpointer_type=kind)
        saving.result()
    loaded = {"shared": torch.zeros(1)}
    state_dict_loader.load(loaded, checkpoint_id=f"{folder}/second")
    dist.destroy_process_group()
    return [float(loaded["shared"]), float(sum(1 for _ in Path(folder, "second").iterdir()))]


@pytest.mark.usefixtures("small_heap")
def test_a_checkpoint_is_saved_by_a_process_of_its_own(tmp_path: Path) -> None:
    result = simdist.run(save_by_a_process, world_size=2, args=(str(tmp_path),))

    assert result.values == [[1.0, 3.0]] * 2
    gc.collect()  # the garbage of the processes prints nothing


def test_a_tensor_is_pickled_for_a_process_before_there_is_one() -> None:
    """It is the rank's first use of `multiprocessing`."""

    def body() -> list[int]:
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(torch.arange(3))
        tensor: torch.Tensor = pickle.loads(buffer.getvalue())
        return tensor.tolist()

    assert simdist.run(body, world_size=1).values == [[0, 1, 2]]


def test_a_value_that_is_the_first_of_its_kind_is_freed_without_a_word() -> None:
    complaints: list[Any] = []

    def body() -> int:
        value: Any = mp.get_context("spawn").Value("i", 5)
        return int(value.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda seen: complaints.append(seen.exc_value))
        assert simdist.run(body, world_size=2).values == [5, 5]

    assert complaints == []


def _late(seconds: float, end: Any) -> None:
    time.sleep(seconds)
    end.send("there")


@pytest.mark.parametrize("asks", ["is it alive", "is there a message"])
def test_who_only_asks_after_a_child_gets_to_its_end(asks: str) -> None:
    def body() -> float:
        here, there = mp.get_context("fork").Pipe()
        child = mp.get_context("fork").Process(target=_late, args=(0.03, there))
        child.start()
        while child.is_alive() if asks == "is it alive" else not here.poll():
            pass
        return time.monotonic()

    first, again = (simdist.run(body, world_size=2) for _ in range(2))

    assert all(0.03 < ended_s < 0.04 for ended_s in first.values)
    assert first.digest == again.digest


def test_children_are_in_the_order_of_their_start() -> None:
    def ages(wanted: int, pipe: Connection) -> None:
        for _ in range(wanted):
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True).start()
        pipe.send([child.name for child in multiprocessing.active_children()])

    def body() -> list[list[str]]:
        first, second = multiprocessing.Pipe()
        ages(20, second)
        child = multiprocessing.get_context("fork").Process(target=ages, args=(20, second))
        child.start()
        child.join()
        return [first.recv(), first.recv()]

    own, childs = simdist.run(body, world_size=1).values[0]

    assert own == [f"ForkProcess-{number}" for number in range(1, 21)]
    assert childs == [f"ForkProcess-21:{number}" for number in range(1, 21)]
