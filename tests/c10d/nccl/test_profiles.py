"""Operations over NCCL in torch's profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from tests.c10d.nccl.worlds import join, of, results


def profiled(calls: Any, **settings: Any) -> Any:
    with profile(activities=[ProfilerActivity.CPU], **settings) as found:
        calls()
    return found


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch before 2.13
def test_events_have_the_shapes_of_what_goes_in() -> None:
    def body() -> list[Any]:
        join()

        def calls() -> None:
            dist.all_gather([of(0, 0), of(0, 0)], of(1, 2))
            dist.all_reduce(of(1, 2, 3))

        found = profiled(calls, record_shapes=True)
        return [(each.name, each.input_shapes) for each in found.events() if each.name.startswith("nccl:")]

    assert results(body) == [[("nccl:all_gather", [[2]]), ("nccl:all_reduce", [[3]])]] * 2


def test_traces_say_what_was_called_in_which_group(tmp_path: Path) -> None:
    def body() -> list[Any]:
        rank = join()

        def calls() -> None:
            dist.all_gather([of(0, 0), of(0, 0)], of(1, 2))
            work: Any = dist.all_reduce(of(1, 2, 3, dtype=torch.int64), async_op=True)
            work.wait()

        path = str(tmp_path / f"{rank}.json")
        profiled(calls).export_chrome_trace(path)
        trace = json.loads(Path(path).read_text())["traceEvents"]
        return [each["args"] for each in trace if each["name"] == "record_param_comms"]

    reported = results(body)[1]
    names = ("Collective name", "dtype", "In msg nelems", "Out msg nelems")
    shown = [tuple(each[name] for name in names) for each in reported]

    assert shown[0] == ("all_gather", "Float", 2, 4)
    assert shown[-2:] == [("allreduce", "Long", 3, 3), ("wait", "Byte", 0, 0)]
    assert (
        reported[0]
        | {
            "Group size": 2,
            "Global rank start": 0,
            "Global rank stride": 1,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
            "Rank": 1,
        }
        == reported[0]
    )
