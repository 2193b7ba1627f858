"""psutil, filelock and shared memory on ranks, whose pids the operating system does not know."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import make
from simdist.errors import UnsupportedError
from tests.warm import Interpreters

SECOND = 1_000_000_000


def values(body: Any, *args: Any, world_size: int = 1, **settings: Any) -> list[Any]:
    result = simdist.run(body, args=args, world_size=world_size, **settings)
    result.raise_for_failure()
    assert result.shared_state == ()
    return result.values


def of_itself() -> dict[str, Any]:
    import psutil

    time.sleep(2)
    me = psutil.Process()
    with me.oneshot():
        found = {
            "pid": me.pid == os.getpid() and psutil.pid_exists(os.getpid()),
            "name": me.name(),
            "memory": me.memory_info().rss > 10_000_000 and me.memory_percent() > 0,
            "status": me.status(),
            "began": me.create_time(),
            "cmdline": me.cmdline(),
            "rank": me.environ()["RANK"],
            "threads": me.num_threads(),
            "cores": me.cpu_affinity() == sorted(os.sched_getaffinity(0)),
        }
    found["cpu"] = me.cpu_percent(), me.cpu_percent(interval=1), me.cpu_times()[:2]
    parent = me.parent()
    found["parent"] = parent.pid == os.getppid(), parent.parent(), parent.children() == [me]
    return found


def test_psutil_shows_a_rank_to_itself() -> None:
    psutil = pytest.importorskip("psutil")
    host_name = psutil.Process().name()

    (found,) = values(of_itself, argv=["train.py", "--lr", "1"])

    assert found == {
        "pid": True,
        "name": host_name,
        "memory": True,
        "status": "running",
        "began": 1_767_225_600.0,  # the start of 2026
        "cmdline": [sys.executable, "train.py", "--lr", "1"],
        "rank": "0",
        "threads": 1,
        "cores": True,
        "cpu": (0.0, 100.0, (3.0, 0.0)),
        "parent": (True, None, True),
    }


@pytest.mark.parametrize("isolate", [False, True])
def test_psutil_knows_of_ranks_wherever_it_is_imported_first(*, isolate: bool, interpreters: Interpreters) -> None:
    pytest.importorskip("psutil")
    program = """
import sys, simdist
def body():
    import psutil
    return psutil.Process().name(), psutil.pids()
finders = list(sys.meta_path)
assert "psutil" not in sys.modules
first = simdist.run(body, world_size=2, isolate=ISOLATE)
assert finders == sys.meta_path
again = simdist.run(body, world_size=2, isolate=not ISOLATE)
assert finders == sys.meta_path
assert first.values[0][1] == [500, 1000, 1001] == again.values[0][1], (first.ranks, again.ranks)
import psutil
assert psutil.Process().name() == first.values[0][0] and 500 not in psutil._pmap
simdist.run(lambda: None, world_size=1)
assert psutil._LOWEST_PID != 500
print("done", first.shared_state, again.shared_state)
"""
    program = program.replace("ISOLATE", str(isolate))
    found = interpreters.run([sys.executable, "-c", program], anew=["simdist", "psutil"])

    assert (found.stdout, found.stderr) == ("done () ()\n", "")


def sleeper() -> None:
    time.sleep(5)


def of_children() -> dict[str, Any]:
    import psutil

    process = multiprocessing.get_context("fork").Process(target=sleeper)
    process.start()
    time.sleep(1)
    (child,) = psutil.Process().children(recursive=True)
    found = {"same": child.pid == process.pid, "status": child.status(), "parent": child.ppid() == os.getpid()}
    child.terminate()
    found["zombie"] = child.status()
    with pytest.raises(psutil.ZombieProcess):
        child.memory_info()
    found["code"] = child.wait(timeout=3)
    found["gone"] = not child.is_running() and not psutil.pid_exists(child.pid)
    with pytest.raises(psutil.NoSuchProcess):
        child.memory_info()
    found["left"] = psutil.Process().children()
    return found


def test_psutil_shows_a_rank_its_children() -> None:
    pytest.importorskip("psutil")

    assert values(of_children) == [
        {
            "same": True,
            "status": "sleeping",
            "parent": True,
            "zombie": "zombie",
            "code": -15,
            "gone": True,
            "left": [],
        }
    ]


def test_psutil_shows_the_processes_of_a_ranks_own_machine() -> None:
    psutil = pytest.importorskip("psutil")

    def body() -> list[int]:
        found = [process.pid for process in psutil.process_iter()]
        time.sleep(1)
        return found

    assert values(body, world_size=4, cluster=make(4, hosts=2)) == [[500, 1000, 1001]] * 2 + [[500, 1002, 1003]] * 2


@pytest.mark.parametrize("call", [("nice", 5), ("cpu_affinity", [0]), ("rlimit", 7, (9, 9))], ids=lambda each: each[0])
def test_psutil_changes_nothing_about_the_process_that_all_ranks_live_in(call: tuple[Any, ...]) -> None:
    psutil = pytest.importorskip("psutil")
    before = getattr(psutil.Process(), call[0])(*call[1:2] if call[0] == "rlimit" else ())

    result = simdist.run(lambda: getattr(psutil.Process(), call[0])(*call[1:]), world_size=1)

    assert isinstance(result.ranks[0].exception, UnsupportedError)
    assert f"psutil.Process.{call[0]}() can't be set on a simulated rank" in str(result.ranks[0].exception)
    assert getattr(psutil.Process(), call[0])(*call[1:2] if call[0] == "rlimit" else ()) == before


@pytest.mark.parametrize("kind", ["SoftFileLock", "FileLock"])
def test_ranks_take_turns_with_a_lock_of_filelock(tmp_path: Path, kind: str) -> None:
    filelock = pytest.importorskip("filelock")

    def body() -> tuple[float, float]:
        with getattr(filelock, kind)(tmp_path / "lock"):
            began = time.monotonic()
            time.sleep(1)
            return began, time.monotonic()

    assert values(body, world_size=3) == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]


def test_what_a_rank_leaves_in_shared_memory_goes_with_its_world() -> None:
    def body() -> tuple[str, bytes]:
        left = shared_memory.SharedMemory(create=True, size=8)
        view: Any = left.buf
        view[:5] = b"hello"
        again = shared_memory.SharedMemory(left.name)
        view = again.buf
        read = bytes(view[:5])
        again.close()
        left.close()
        removed = shared_memory.SharedMemory(create=True, size=8)
        removed.close()
        removed.unlink()
        return left.name, read

    ((name, read),) = values(body)

    assert read == b"hello"
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(name)


# -- libraries that keep a rank's state, while ranks share modules ----------------------------------------------------


def with_accelerate() -> tuple[int, int, float]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    reduced = accelerator.reduce(torch.ones(1))
    return accelerator.process_index, accelerator.num_processes, reduced.item()


def with_hydra() -> tuple[str, int]:
    from hydra import compose, initialize
    from omegaconf import OmegaConf

    dist.init_process_group("gloo")
    OmegaConf.register_new_resolver("mine", dist.get_rank)
    with initialize(version_base=None, config_path=None):
        dist.barrier()
        config = compose(overrides=["+rank=${oc.env:RANK}", "+mine=${mine:}"])
        dist.barrier()
    return config.rank, config.mine


def with_fabric() -> tuple[int, int]:
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.barrier()
    return fabric.global_rank, rank_zero_only.rank


LIBRARIES = {
    "accelerate": (with_accelerate, [(0, 2, 2.0), (1, 2, 2.0)]),
    "hydra": (with_hydra, [("0", 0), ("1", 1)]),
    "lightning": (with_fabric, [(0, 0), (1, 1)]),
}


@pytest.mark.real
@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_have_what_a_library_keeps_for_one_though_they_share_modules(library: str) -> None:
    pytest.importorskip(library)
    body, expected = LIBRARIES[library]

    assert values(body, world_size=2) == expected
    assert values(body, world_size=2) == expected


def test_tables_of_a_library_are_each_rank_s_and_the_host_s_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("accelerate.state")
    for name in ("PartialState", "AcceleratorState", "GradientState"):
        setattr(module, name, type(name, (), {"_shared_state": {"of": "host"}}))
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    tables: Any = module

    def body() -> list[Any]:
        dist.init_process_group("gloo")
        seen = [dict(tables.PartialState._shared_state)]
        tables.PartialState._shared_state["of"] = dist.get_rank()
        dist.barrier()
        return [*seen, tables.PartialState._shared_state["of"]]

    assert values(body, world_size=2) == [[{}, 0], [{}, 1]]
    assert tables.PartialState._shared_state == {"of": "host"}


def test_bars_of_tqdm_are_each_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tqdm.std")
    of_host = WeakSet([test_bars_of_tqdm_are_each_ranks_own])
    bars: Any = type("tqdm", (), {"_instances": of_host})
    monkeypatch.setattr(module, "tqdm", bars, raising=False)
    monkeypatch.setitem(sys.modules, "tqdm.std", module)

    def body() -> list[int]:
        dist.init_process_group("gloo")
        before = len(bars._instances)
        bars._instances.add(body)
        dist.barrier()
        return [before, len(bars._instances)]

    assert values(body, world_size=2) == [[0, 1], [0, 1]]
    assert bars._instances is of_host


def test_psutil_that_each_rank_imports_for_itself_knows_of_ranks() -> None:
    pytest.importorskip("psutil")

    def body() -> tuple[int, list[int]]:
        import psutil

        return psutil.Process().pid, psutil.pids()

    result = simdist.run(body, world_size=2, isolate=["psutil"])

    assert result.values == [(1000, [500, 1000, 1001]), (1001, [500, 1001])]


def test_files_of_tensorboard_have_the_same_names_in_every_world(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def main(folder: str) -> list[str]:
        from torch.utils.tensorboard import SummaryWriter

        for _ in range(2):
            SummaryWriter(f"{folder}/{os.environ['RANK']}").close()
        return sorted(path.suffix for path in Path(folder, os.environ["RANK"]).iterdir())

    for world in range(2):
        result = simdist.run(main, world_size=2, args=(str(tmp_path / str(world)),))
        assert result.values == [[".0", ".1"]] * 2
