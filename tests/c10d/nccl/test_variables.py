"""The variables of ProcessGroupNCCL (torch 2.13): wrong values, and the effects of the rarer ones."""

from __future__ import annotations

import os
import pickle
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d.backends.nccl._variables import Variables
from simdist.inside.torch import Place
from tests.builds import VERSION
from tests.c10d.nccl.worlds import join, of, results, run, said

MINUTE = 60_000_000_000
PREFIX = "[PG ID 0 PG GUID 0(default_pg) Rank {}] "


def lines(result: simdist.RunResult, rank: int) -> list[str]:
    """Return the lines that a rank has logged, without times and places."""
    return [line.partition("] ")[2] for line in result.ranks[rank].stderr.splitlines()]


def backend() -> Any:
    """Return the default group's ProcessGroupNCCL."""
    group: Any = dist.group.WORLD
    return group._get_backend(torch.device("cuda"))


def reduce_once() -> None:
    join()
    dist.all_reduce(of(1))


def leave_one_out(*absent: int) -> None:
    """Let the `absent` ranks sleep instead of calling the second all_reduce."""
    rank = join()
    dist.all_reduce(of(1))
    if rank in absent:
        time.sleep(3000)
    dist.all_reduce(of(1))
    torch.cuda.synchronize()


# -- values ------------------------------------------------------------------------------------------------------------

TRUTHS = (
    *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_RETHROW_CUDA_ERRORS"),
    *("TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_CUDA_EVENT_CACHE"),
    *(["TORCH_NCCL_AVOID_RECORD_STREAMS"] if VERSION < (2, 15) else []),
    *("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "TORCH_FR_CPP_STACK"),
    *("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "ENABLE_INTRA_NODE_COMM"),
    *("NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING", "TORCH_NCCL_TRACE_CPP_STACK"),
    *("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "TORCH_NCCL_BCAST_UNIQUEID", "TORCH_NCCL_HIGH_PRIORITY"),
)
NUMBERS = (
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_COORD_CHECK_MILSEC"),
    *("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RANKS_PER_ROOT"),
)


def test_a_value_that_is_none_is_refused_in_torchs_words() -> None:
    wrong = dict.fromkeys(TRUTHS, "maybe") | dict.fromkeys(NUMBERS, "many")

    found = {name: str(run(reduce_once, 1, env={name: value}).ranks[0].exception) for name, value in wrong.items()}

    assert found == {name: f"Invalid value for environment variable: {name}" for name in wrong}


@pytest.mark.parametrize(("text", "number"), [("5abc", 5), (" 7", 7), ("+3", 3), ("-1", -1), ("0x10", 0)])
def test_a_number_is_what_stoi_makes_of_it(text: str, number: int) -> None:
    assert Variables({"N": text}, lambda *_: None).number(9, "N") == number


@pytest.mark.parametrize("text", ["", "abc", "99999999999"])
def test_what_stoi_refuses_is_refused(text: str) -> None:
    with pytest.raises(RuntimeError, match=r"^Invalid value for environment variable: N$"):
        Variables({"N": text}, lambda *_: None).number(9, "N")


def test_an_old_name_is_reported_and_the_new_one_goes_before_it() -> None:
    reported: list[tuple[Any, ...]] = []
    variables = Variables({"NEW": "0", "OLD": "yes"}, lambda *what: reported.append(what))

    assert variables.truth(True, "NEW", "OLD") is False
    assert reported == [("old truth", "Environment variable OLD is deprecated; use NEW instead", Place.OLD_TRUTH)]


def test_old_names_are_warned_of_once_for_each_kind_of_value() -> None:
    env = {"NCCL_BLOCKING_WAIT": "0", "NCCL_DESYNC_DEBUG": "0", "NCCL_ASYNC_ERROR_HANDLING": "3"}

    result = run(join, 1, env=env)

    assert lines(result, 0)[:2] == [
        "Warning: Environment variable NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead "
        "(function operator())",
        "Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING "
        "instead (function operator())",
    ]


def test_each_group_reads_them_when_it_is_made() -> None:
    def body() -> list[bool]:
        found = []
        for value in ("1", "0"):
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = value
            join(timeout=timedelta(seconds=1))
            work = dist.all_reduce(of(1), async_op=True) if dist.get_rank() == 0 else None
            found.append(work is not None and "DistBackendError" in said(work.wait))
            dist.distributed_c10d._abort_process_group()
        return found

    env = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    with pytest.raises(simdist.SimdistError):
        results(body, 1, env=env | {"TORCH_NCCL_RANKS_PER_ROOT": "0"})
    assert results(body, 1, env=env) == [[False, False]]


# -- dumps and ends ----------------------------------------------------------------------------------------------------


def test_every_rank_that_finds_a_timeout_says_that_it_is_its_own() -> None:
    result = run(leave_one_out, 3, args=[1])

    for rank in (0, 2):
        reported = lines(result, rank)
        assert f"{PREFIX.format(rank)}First PG on this rank to signal dumping." in reported
        assert any(" collective timeout from this local rank and we will try" in line for line in reported)
    assert any("collective timeout from  rank 2 and we will try our best" in line for line in lines(result, 1))


@pytest.mark.parametrize(("handling", "code"), [("7", -6), ("-1", -6)])
def test_an_unknown_handling_of_errors_tears_down(handling: str, code: int) -> None:
    result = run(leave_one_out, 2, args=[1], env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": handling})

    assert result.ranks[0].exit_code == code
    assert result.ranks[0].ended_ns == 660_100_000_000


def test_an_abort_while_the_watchdog_sleeps_does_not_save_the_process() -> None:
    def body() -> None:
        if join(timeout=timedelta(seconds=1)) == 0:
            dist.all_reduce(of(1), async_op=True)
            time.sleep(10)
            dist.distributed_c10d._abort_process_group()
            time.sleep(100)
        else:
            backend().eager_connect_single_device(torch.device("cuda", 1))

    result = run(body)

    assert [rank.exit_code for rank in result.ranks] == [-6, 0]
    assert result.ranks[0].ended_ns == 61_100_000_000


def test_without_a_recorder_a_dump_is_tried_twice_and_writes_nothing(tmp_path: Path) -> None:
    env = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_", "TORCH_FR_BUFFER_SIZE": "0"}

    result = run(leave_one_out, 2, args=[1], env=env)

    preparing = f"{PREFIX.format(1)}ProcessGroupNCCL preparing to dump debug info. Include stack trace: "
    assert [line for line in lines(result, 1) if "preparing" in line] == [
        f"{preparing}1, only active collectives: 0",
        f"{preparing}0, only active collectives: 0",
    ]
    assert not list(tmp_path.iterdir())
    assert result.ranks[1].ended_ns == 1_081_000_000_000


def test_a_watchdog_that_has_ended_is_missed_by_the_monitor() -> None:
    env = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}

    # torchrun's workers have 1 there, which aborts first.
    result = run(leave_one_out, 2, args=[1], env=env | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})

    assert result.ranks[0].exit_code == -6
    assert result.ranks[0].ended_ns == 4 * 8 * MINUTE
    reported = [line for line in lines(result, 0) if "watchdog got stuck" in line or "Terminating" in line]
    assert reported[0].startswith(
        f"{PREFIX.format(0)}ProcessGroupNCCL's watchdog got stuck for 480 seconds without making "
    )
    assert reported[0].endswith("otherwise, please attempt to debug the hang. ")
    assert reported[1] == (
        f"{PREFIX.format(0) * 2}Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL "
        "watchdog hang."
    )


def test_a_heart_that_beats_faster_than_a_watchdog_sleeps_finds_it_stuck() -> None:
    def body() -> None:
        rank = join()
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        tensor = of(1)
        dist.all_reduce(tensor, group=group)
        if rank == 0:
            dist.all_reduce(tensor, group=group)
        time.sleep(100)

    env = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    result = run(body, env=env)

    assert [rank.exit_code for rank in result.ranks] == [-6, 0]
    assert result.ranks[0].ended_ns // 1_000_000 == 15_000


def test_what_ends_a_process_dumps_if_it_is_asked_to_and_asks_the_others(tmp_path: Path) -> None:
    def body() -> None:
        rank = join()
        dist.all_reduce(of(1))
        if rank == 0:
            backend().abort()
        time.sleep(500)

    env = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1"}
    result = run(body, env=env)

    assert [rank.exit_code for rank in result.ranks] == [0, -6]
    first = f"{PREFIX.format(0)}ProcessGroupNCCL preparing to dump debug info. Include stack trace: 0, only active "
    assert lines(result, 0)[0] == f"{first}collectives: 0"
    assert any("Observed flight recorder dump signal from another rank" in line for line in lines(result, 1))
    entries = [pickle.loads((tmp_path / f"rank_{rank}").read_bytes())["entries"] for rank in range(2)]
    assert ["frames" in each[0] for each in entries] == [False, True]


def test_a_wrong_variable_of_dumps_ends_the_process_that_dumps() -> None:
    result = run(leave_one_out, 2, args=[1], env={"TORCH_INCLUDE_STACK_TRACE": "some"})

    assert [rank.exit_code for rank in result.ranks] == [-6, -6]
    assert result.ranks[1].ended_ns == 601_000_000_000
    assert result.ranks[1].stderr.endswith(
        "what():  Invalid value for environment variable: TORCH_INCLUDE_STACK_TRACE\n"
    )


def test_an_error_in_some_ranks_is_reported_with_the_rank_in_that_group() -> None:
    def body() -> None:
        rank = join()
        group = dist.new_group([1, 2], timeout=timedelta(seconds=1))
        if rank:
            tensor = of(1)
            dist.all_reduce(tensor, group=group)
            if rank == 2:
                dist.all_reduce(tensor, group=group)
            time.sleep(10)

    result = run(body, 3, env={"TORCH_NCCL_PROPAGATE_ERROR": "1"})

    assert any(line.endswith(" remote error detected from rank: 1") for line in lines(result, 1))


# -- pipes -------------------------------------------------------------------------------------------------------------


def test_who_writes_into_the_pipe_gets_a_dump_and_training_goes_on(tmp_path: Path) -> None:
    def body() -> list[Any]:
        rank = join()
        tensor = of(1)
        dist.all_reduce(tensor)
        found = []
        for _ in range(2):
            if rank == 0:
                (tmp_path / "pipe_1.pipe").write_text("1\n")
            time.sleep(2)
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            path = tmp_path / "dump_1"
            found.append(len(pickle.loads(path.read_bytes())["entries"]) if rank else 0)
        return found

    env = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"}
    result = run(body, env=env)

    assert result.values == [[0, 0], [1, 2]]
    assert stat.S_ISFIFO((tmp_path / "pipe_0.pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump_1", "pipe_0.pipe", "pipe_1.pipe"]


def test_a_pipe_that_nobody_writes_into_does_not_hide_a_deadlock(tmp_path: Path) -> None:
    def body() -> None:
        if join() == 0:
            dist.all_reduce(of(1))
        else:
            time.sleep(5)

    with_pipe = run(body, env={"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_"})
    without = run(body)

    assert "making a communicator of group" in with_pipe.ranks[0].waiting
    assert 0 <= with_pipe.ranks[0].ended_ns - without.ranks[0].ended_ns <= 1_000_000_000


def test_a_pipe_that_can_not_be_made_ends_the_process(tmp_path: Path) -> None:
    def body() -> None:
        join()
        time.sleep(1)

    result = run(body, 1, env={"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/none/pipe_"})

    what = f"Error creating named pipe {tmp_path}/none/pipe_0.pipe, Error: No such file or directory"
    assert result.ranks[0].stderr == f"terminate called after throwing an instance of 'c10::Error'\n  what():  {what}\n"


# -- communicators -----------------------------------------------------------------------------------------------------


def test_many_ranks_have_several_roots() -> None:
    def body() -> list[int]:
        join()
        dist.all_reduce(of(1))
        store = dist.distributed_c10d._get_default_store()
        keys = "UniqueNCCLID:0", "UniqueNCCLID:1", "UniqueNCCLID:2", "0"
        return [int(store.check([f"cuda//{key}"])) for key in keys]

    assert results(body, 5, env={"TORCH_NCCL_RANKS_PER_ROOT": "2"}) == [[1, 1, 1, 0]] * 5
    assert results(body, 2) == [[0, 0, 0, 1]] * 2


def test_a_root_that_never_comes_is_missed_by_all() -> None:
    def body() -> str:
        if join(timeout=timedelta(seconds=9)) == 2:
            time.sleep(20)
            return ""
        return said(lambda: dist.all_reduce(of(1)))

    first, second, _ = results(body, 3, env={"TORCH_NCCL_RANKS_PER_ROOT": "2"})

    assert first == second.replace("[1]", "[0]", 1)
    assert first == (
        "DistBackendError: [0] is setting up NCCL communicators and retrieving ncclUniqueId from roots via TCPStore by "
        'key \'["UniqueNCCLID:0","UniqueNCCLID:1"]\', but got error: wait timeout after 9000ms, keys: '
        "/default_pg/0//cuda//UniqueNCCLID:0, /default_pg/0//cuda//UniqueNCCLID:1. This may indicate a possible "
        "application crash on rank 0 or a network set up issue."
    )


def test_ids_that_are_not_reported_are_refused_with_the_way_out() -> None:
    result = run(reduce_once, 2, env={"TORCH_NCCL_BCAST_UNIQUEID": "0"})
    alone = run(reduce_once, 1, env={"TORCH_NCCL_BCAST_UNIQUEID": "0"})

    assert str(result.ranks[0].exception).startswith("TORCH_NCCL_BCAST_UNIQUEID=0: without an ncclUniqueId from rank 0")
    assert alone.ranks[0].exit_code == 0


def test_a_groups_config_chooses_communicators_that_do_not_block() -> None:
    def body(blocking: int) -> tuple[str, int]:
        options: Any = dist.ProcessGroupNCCL.Options()
        options.config.blocking = blocking
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", pg_options=options)
        if dist.get_rank():
            time.sleep(40)
        return said(lambda: dist.all_reduce(of(1)))[:35], options.config.blocking

    env = {"TORCH_NCCL_NONBLOCKING_TIMEOUT": "30"}

    assert run(body, args=[0], env=env).values[0] == ("DistBackendError: NCCL timeout in: ", 0)
    assert run(body, args=[0], env={"TORCH_NCCL_NONBLOCKING_TIMEOUT": "30.0"}).values[0][0].startswith("DistBackend")
    assert run(body, args=[1], env=env).values == [("nothing", 1)] * 2
    assert (
        run(body, args=[-2147483648], env=env | {"TORCH_NCCL_USE_COMM_NONBLOCKING": "yes"}).values
        == [("nothing", 1)] * 2
    )


def test_a_flag_that_is_none_is_reported() -> None:
    result = run(reduce_once, 1, env={"TORCH_NCCL_USE_COMM_NONBLOCKING": "yes"})

    assert lines(result, 0)[0] == (
        "Warning: Ignoring invalid value for boolean flag TORCH_NCCL_USE_COMM_NONBLOCKING: yesvalid values are 0 or 1. "
        "(function check_env)"
    )
