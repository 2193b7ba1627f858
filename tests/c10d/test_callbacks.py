"""Errors in callbacks of futures: the same types and texts as torch's, with the stack that torch shows."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.inside.torch import Place
from tests.c10d.worlds import values

SAID = "Got the following error when running the callback: "


def fail(_: Any) -> None:
    raise KeyError("mine")


def fail_with_notes(_: Any) -> None:
    error = ValueError()
    error.add_note("one")
    error.add_note("two")
    raise error


def fail_without_a_text(_: Any) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise TypeError("mute")

    raise MuteError


def leave(_: Any) -> None:
    raise SystemExit(3)


def fail_deeper(_: Any) -> None:
    for each in (1,):
        fail(each)


def future_of(tensor: torch.Tensor) -> Any:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work.get_future()


HERE = ("fail", "fail_with_notes", "fail_without_a_text", "leave", "fail_deeper", "fails_at_once")
_CALLERS = ("train", "raised", "stories")


def raised(act: Callable[[], object]) -> str:
    """Return the error's type and text, with the functions of this file that are on the stack."""
    try:
        act()
    except Exception as error:
        lines = str(error).splitlines()
        kept = (line.rpartition(": ")[2] for line in lines if line.startswith("  "))
        inner = [name for name in kept if name in (*HERE, *_CALLERS)]
        return " | ".join([type(error).__name__, *(line for line in lines if line[:2] != "  " and line), *inner])
    return "nothing"


def stories() -> dict[str, str]:
    dist.init_process_group("gloo")
    done = future_of(torch.ones(2))
    done.wait()
    found = {
        each.__name__: raised(done.then(each).wait)
        for each in (fail, fail_with_notes, fail_without_a_text, leave, fail_deeper)
    }
    found["value"] = raised(done.then(fail).value)
    found["chain"] = raised(done.then(fail).then(lambda future: future.value()).wait)
    found["wait_all"] = raised(lambda: torch.futures.wait_all([done.then(fail)]))
    found["add_done_callback"] = raised(lambda: done.add_done_callback(fail))
    for hook in (fails_later, fails_when_chained, fails_at_once):
        found[hook.__name__] = raised(partial(train, hook))
    dist.barrier()
    return found


def train(hook: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(None, hook)
    model(torch.ones(1, 3)).sum().backward()


LONG = 4_000_000  # elements, so that real Gloo is not done when the next line runs


def fails_later(state: Any, bucket: Any) -> Any:
    return future_of(torch.ones(LONG)).then(fail)


def fails_when_chained(state: Any, bucket: Any) -> Any:
    return future_of(torch.ones(LONG)).then(fail).then(lambda future: future.wait()[0])


def fails_at_once(state: Any, bucket: Any) -> Any:
    future = future_of(bucket.buffer())
    future.wait()
    return future.then(fail)


for _hook in (fails_later, fails_when_chained, fails_at_once):
    _hook.__annotations__.clear()  # DDP compares them with types, and these are texts

MINE = f"RuntimeError | {SAID}KeyError: 'mine' | At:"
CHAINED = f"RuntimeError | {SAID}RuntimeError: {SAID}KeyError: 'mine' | At: | At:"
MUTE = f"{SAID}MuteError: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
NOTED = "[WITH __notes__]" if sys.version_info >= (3, 12) else ""
STORIES = {
    "fail": f"{MINE} | fail | stories",
    "fail_with_notes": f"RuntimeError | {SAID}ValueError{NOTED}:  | __notes__ (len=2): | one | two | At: | "
    "fail_with_notes"
    " | stories",
    "fail_without_a_text": f"RuntimeError | {MUTE} | At: | MESSAGE UNAVAILABLE DUE TO EXCEPTION: TypeError: mute | At:"
    " | fail_without_a_text | stories | stories",
    "leave": f"RuntimeError | {SAID}SystemExit: 3 | At: | leave | stories",
    "fail_deeper": f"{MINE} | fail | fail_deeper | stories",
    "value": f"{MINE} | fail | stories",
    "chain": f"{CHAINED} | fail | stories | stories",
    "wait_all": f"{MINE} | fail | raised | stories",
    "add_done_callback": "nothing",
    "fails_later": f"{MINE} | fail",
    "fails_when_chained": f"{CHAINED} | fail",
    "fails_at_once": f"{MINE} | fail | fails_at_once | train | raised | stories",
}
"""The expected texts; real ranks report the same (`tests/parity/test_callbacks.py`)."""


def test_errors_of_callbacks_have_torchs_types_and_texts() -> None:
    assert values(stories, 2) == [STORIES] * 2


def test_an_error_of_a_callback_that_returns_nothing_is_logged() -> None:
    def main() -> None:
        dist.init_process_group("gloo")
        future = future_of(torch.ones(2))
        future.add_done_callback(fail)
        future.wait()

    result = simdist.run(main, world_size=2)

    result.raise_for_failure()
    logged = result.ranks[1].stderr
    assert logged.startswith("[rank1]:[E")
    assert f" {Place.CALLBACK_FAILED}] {SAID}KeyError: 'mine'\n\nAt:\n  {__file__}(" in logged
    assert logged.endswith("): fail\n\n"), "Gloo's thread has no more of a stack"


def test_over_nccl_a_callback_runs_at_once_with_the_callers_stack() -> None:
    def main() -> str:
        dist.init_process_group("nccl")
        torch.cuda.set_device(0)
        return raised(future_of(torch.ones(2, device="cuda")).then(fail).wait)

    assert values(main, 1, backend="nccl") == [f"{MINE} | fail"]


def test_a_hook_that_returns_none_kills_its_rank_alone() -> None:
    def none(state: Any, bucket: Any) -> Any:
        return None

    def main() -> None:
        dist.init_process_group("gloo")
        none.__annotations__.clear()
        train(none)

    result = simdist.run(main, world_size=2)

    assert [rank.exit_code for rank in result.ranks] == [-signal.SIGSEGV] * 2
    assert "a DDP communication hook that returns None" in result.ranks[0].stderr
