"""Dumps of the flight recorder, read by torch's own analyser."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.determinism import CallStacks
from simdist.trace import flight_recorder_dumps, trace_of, write_flight_recorder
from simdist.world import observed_by
from tests.trace import analyser, runs


def begin() -> int:
    dist.init_process_group("gloo")
    return dist.get_rank()


def one_rank_never_calls() -> None:
    rank = begin()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank != 2:
        dist.all_reduce(torch.ones(4))


def one_rank_has_another_size() -> None:
    rank = begin()
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(6 if rank == 1 else 4))


def one_rank_calls_something_else() -> None:
    rank = begin()
    dist.all_reduce(torch.ones(4))
    if rank == 3:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))


def everything() -> None:
    rank, size, tensor = begin(), dist.get_world_size(), torch.ones(4, 2)
    parts = [torch.empty(4, 2) for _ in range(size)]
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 1)
    dist.all_gather(parts, tensor)
    dist.gather(tensor, parts if rank == 0 else None, dst=0)
    dist.scatter(tensor, parts if rank == 0 else None, src=0)
    dist.reduce(tensor, 0)
    dist.reduce_scatter(torch.empty(4, 2), parts)
    dist.all_to_all_single(torch.empty(8), torch.ones(8))
    dist.barrier()
    dist.monitored_barrier()
    group = dist.new_group([1, 3], group_desc="odd")
    if rank in (1, 3):
        dist.all_reduce(tensor, group=group)
    if rank == 0:
        dist.send(tensor, 3, tag=7)
    if rank == 3:
        dist.recv(tensor, tag=7)


@pytest.fixture
def analysed(tmp_path: Path) -> Callable[..., list[str]]:
    """A function that returns the analyser's lines about a program on four ranks."""

    def analysed(program: Callable[[], None], *options: str, stacks: bool = False) -> list[str]:
        with observed_by(CallStacks()) as watching:
            result = simdist.run(program, world_size=4)
        write_flight_recorder(trace_of(result), tmp_path, watching.frames if stacks else None)
        return analyser.analysed(tmp_path, *options)

    return analysed


def test_the_analyser_names_the_rank_that_hangs_the_others(analysed: Callable[..., list[str]]) -> None:
    said = analysed(one_rank_never_calls, stacks=True)

    assert said[0] == "Not all ranks joining collective, sequence number: 4"
    assert "missing ranks: {2}" in said
    assert "group info: 0:default_pg" in said
    assert any(line.startswith("one_rank_never_calls at ") for line in said)


@pytest.mark.parametrize(
    ("program", "culprit"),
    [
        (one_rank_has_another_size, "Culprit rank 1; Error type: SIZE_OR_SYNTAX_MISMATCH"),
        (one_rank_calls_something_else, "Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH"),
    ],
)
def test_the_analyser_names_the_rank_that_disagrees(
    program: Callable[[], None], culprit: str, analysed: Callable[..., list[str]]
) -> None:
    said = analysed(program)

    assert said[0] == "Collective sequence number: 2 has errors"
    assert any(culprit in line for line in said)


def test_the_analyser_finds_nothing_wrong_with_every_kind_of_operation(analysed: Callable[..., list[str]]) -> None:
    assert analysed(everything) == []


def test_in_a_deadlock_each_rank_misses_the_other() -> None:
    zero, one = flight_recorder_dumps(trace_of(runs.stuck())).values()

    assert [entry["profiling_name"] for entry in zero["entries"]] == ["gloo:recv 0<-1"]
    assert [entry["profiling_name"] for entry in one["entries"]] == ["gloo:recv 1<-0"]
    assert set(zero["pg_config"]) == set(one["pg_config"]) == {"0", "0 1->0", "0 0->1"}


def test_an_entry_is_what_torch_writes(tmp_path: Path) -> None:
    files = write_flight_recorder(trace_of(runs.crashed()), tmp_path / "dumps")

    dump: dict[str, Any] = pickle.loads(files[0].read_bytes())
    assert [file.name for file in files] == [f"nccl_trace_rank_{rank}" for rank in range(3)]
    assert dump["version"] == "2.10"
    assert dump["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    assert dump["pg_status"]["0"]["last_enqueued_collective"] == 2
    assert dump["pg_status"]["0"]["last_completed_collective"] == 1
    first, second = dump["entries"]
    assert first | {"frames": []} == {
        "frames": [],
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "rank 0",
        "thread_id": "0",
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": 1_200_000,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 1_200_000,
        "time_discovered_completed_ns": first["time_discovered_completed_ns"],
        "retired": True,
        "is_p2p": False,
    }
    assert (second["state"], second["retired"]) == ("scheduled", True)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("gloo:all_reduce", [[4, 2]], [[4, 2]]),
        ("gloo:all_gather", [[4, 2]], [[4, 4, 2]]),
        ("gloo:gather", [[4, 2]], [[4, 4, 2]]),
        ("gloo:scatter", [[4, 4, 2]], [[4, 2]]),
        ("gloo:reduce_scatter", [[4, 4, 2]], [[4, 2]]),
        ("gloo:all_to_all", [[8]], [[8]]),
        ("gloo:barrier", [], []),
    ],
)
def test_sizes_are_written_as_torchs_gloo_does(name: str, inputs: list[Any], outputs: list[Any]) -> None:
    entries = dumps_of_everything()[0]["entries"]

    entry = next(entry for entry in entries if entry["profiling_name"] == name)

    assert (entry["input_sizes"], entry["output_sizes"]) == (inputs, outputs)


def test_who_is_not_the_root_has_nothing_to_give_or_to_take() -> None:
    entries = {entry["profiling_name"]: entry for entry in dumps_of_everything()[1]["entries"]}

    assert entries["gloo:gather"]["output_sizes"] == []
    assert entries["gloo:scatter"]["input_sizes"] == []


def dumps_of_everything() -> dict[int, dict[str, Any]]:
    return flight_recorder_dumps(trace_of(simdist.run(everything, world_size=4)))
