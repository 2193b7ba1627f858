from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

import simdist
from simdist.faults import Crash

TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMP_NUM_THREADS",
)


def c_environment(name: str) -> bytes | None:
    """Return a variable as C code of the host finds it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    found: bytes | None = getenv(name.encode())
    return found


def test_a_rank_has_the_environment_that_torchrun_sets() -> None:
    def body() -> tuple[str, ...]:
        return tuple(os.environ[name] for name in TORCHRUN)

    result = simdist.run(body, world_size=4, cluster=simdist.cluster.build(4, hosts=2), max_restarts=2)

    shared = ("default", "127.0.0.1", "29500", "0", "2", "simdist", "True", "1")
    assert result.values == [
        ("0", "0", "0", "0", "4", "2", "2", "4", *shared),
        ("1", "1", "0", "1", "4", "2", "2", "4", *shared),
        ("2", "0", "1", "2", "4", "2", "2", "4", *shared),
        ("3", "1", "1", "3", "4", "2", "2", "4", *shared),
    ]


def test_a_rank_inherits_the_hosts_environment_and_what_the_call_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HOST", "host")
    monkeypatch.setenv("FROM_BOTH", "host")

    result = simdist.run(
        lambda: (os.environ["FROM_HOST"], os.environ["FROM_BOTH"], os.getenv("FROM_CALL"), os.getenv("NOT_THERE")),
        world_size=2,
        env={"FROM_BOTH": "call", "FROM_CALL": "call"},
    )

    assert result.values == [("host", "call", "call", None)] * 2
    assert os.environ["FROM_BOTH"] == "host"
    assert "FROM_CALL" not in os.environ


def test_a_ranks_changes_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED", "host")

    def body() -> list[object]:
        rank = os.environ["RANK"]
        os.environ["MINE"] = rank
        os.environ.setdefault(f"ONLY_{rank}", "x")
        if rank == "1":
            del os.environ["SHARED"]
        time.sleep(0.001)
        return [
            os.environ["MINE"],
            os.getenvb(b"MINE"),
            os.environb[b"MINE"],
            "ONLY_0" in os.environ,
            os.environ.get("SHARED"),
            sorted(name for name in os.environ if name.startswith("ONLY")),
            os.environ.copy()["MINE"],
            len(os.environ) == len(list(os.environ)) == len(dict(os.environ)),
            (os.environ | {"A": "b"})["MINE"],
        ]

    result = simdist.run(body, world_size=2)

    assert result.values == [
        ["0", b"0", b"0", True, "host", ["ONLY_0"], "0", True, "0"],
        ["1", b"1", b"1", False, None, ["ONLY_1"], "1", True, "1"],
    ]
    assert os.environ["SHARED"] == "host"
    assert "MINE" not in os.environ


def test_a_ranks_changes_do_not_reach_the_hosts_c_environment() -> None:
    def body() -> None:
        os.environ["SIMDIST_TEST_A"] = "x"
        os.putenv("SIMDIST_TEST_B", "x")
        os.environ.pop("PATH")

    before = c_environment("PATH")
    simdist.run(body, world_size=2)

    assert c_environment("SIMDIST_TEST_A") is None
    assert c_environment("SIMDIST_TEST_B") is None
    assert c_environment("PATH") == before
    assert before


def test_the_environment_refuses_what_a_real_one_refuses() -> None:
    def body() -> None:
        with pytest.raises(TypeError, match="str expected, not int"):
            os.environ["A"] = 1  # type: ignore[assignment]
        with pytest.raises(KeyError, match="NOT_THERE"):
            os.environ["NOT_THERE"]
        with pytest.raises(KeyError, match="NOT_THERE"):
            del os.environ["NOT_THERE"]

    simdist.run(body, world_size=1).raise_for_failure()


def test_every_world_and_every_life_starts_afresh() -> None:
    def body() -> str | None:
        seen = os.environ.get("MINE")
        os.environ["MINE"] = "set before"
        time.sleep(0.001)
        return seen

    results = [simdist.run(body, world_size=2, max_restarts=1, faults=[Crash(rank=0, at_ns=500)]) for _ in range(2)]

    assert [result.restarts for result in results] == [1, 1]
    assert [result.values for result in results] == [[None, None]] * 2


def test_argv_is_the_programs_name_or_what_the_call_gives() -> None:
    assert simdist.run(lambda: sys.argv, world_size=2).values == [sys.argv[:1]] * 2
    assert simdist.run(lambda: sys.argv, world_size=2, argv=["train.py", "--lr", "1"]).values == [
        ["train.py", "--lr", "1"],
        ["train.py", "--lr", "1"],
    ]


def test_a_rank_that_changes_argv_changes_its_own() -> None:
    before = list(sys.argv)

    def body() -> list[str]:
        if os.environ["RANK"] == "0":
            sys.argv.append("--more")
        elif os.environ["RANK"] == "1":
            sys.argv = ["another"]
        time.sleep(0.001)
        return sys.argv

    result = simdist.run(body, world_size=3, argv=["train.py"])

    assert result.values == [["train.py", "--more"], ["another"], ["train.py"]]
    assert sys.argv == before


def test_without_a_launcher_nothing_is_set() -> None:
    seen = []
    simdist.spawn(lambda rank: seen.append((rank, [name for name in TORCHRUN if name in os.environ])), nprocs=2)

    assert seen == [(0, [name for name in TORCHRUN if name in os.environ]), (1, seen[0][1])]


def test_a_rank_that_replaces_os_environ_by_a_copy_has_that_for_itself() -> None:
    def body() -> tuple[str | None, ...]:
        dist.init_process_group("gloo")
        before = copy.deepcopy(os.environ)
        os.environ["CHANGED"] = "yes"
        dist.barrier()
        os.environ = before  # noqa: B003 - as Hugging Face datasets does
        dist.barrier()
        os.environ["MINE"] = os.environ["RANK"]
        dist.barrier()
        program = subprocess.run("echo $MINE", shell=True, capture_output=True, text=True).stdout.strip()
        return os.environ["RANK"], os.getenv("MINE"), os.environ.get("CHANGED"), program

    of_host = os.environ
    result = simdist.run(body, world_size=2)

    assert result.values == [("0", "0", None, "0"), ("1", "1", None, "1")]
    assert os.environ is of_host
    assert "MINE" not in os.environ


def test_a_forked_child_has_a_copy_of_what_its_parent_made_os_environ() -> None:
    def child(queue: multiprocessing.Queue[str | None]) -> None:
        os.environ["OF"] = "child"
        queue.put(os.environ.get("BEFORE"))

    def body() -> tuple[str | None, str]:
        # Programs put a plain dictionary there, which ruff (B003) and mypy refuse for good reasons.
        os.environ = {**os.environ, "BEFORE": "fork", "OF": "parent"}  # type: ignore[assignment]  # noqa: B003
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        found = queue.get()
        process.join()
        return found, os.environ["OF"]

    assert simdist.run(body, world_size=1).values == [("fork", "parent")]
