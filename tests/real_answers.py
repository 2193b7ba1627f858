"""What programs return on a real process. One process runs all of them: each takes seconds to import torch."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

__all__ = ["real_answer"]

Program = Callable[[str], Any]


def real_answer(program: Program, argument: str, among: tuple[Program, ...]) -> Any:
    """What `program(argument)` returns on a spawned process, which runs all of `among`, in order, and once.

    The "forkserver" has imported torch before it forks child processes.
    """
    failed, answer = _answers(among, argument)[among.index(program)]
    assert not failed, answer
    return answer


@functools.cache
def _answers(programs: tuple[Program, ...], argument: str) -> list[tuple[bool, Any]]:
    context: Any = mp.get_context("spawn")  # whose names begin with 1
    ours, theirs = context.Pipe(duplex=False)
    runner = context.Process(target=_report, args=(theirs, programs, argument))
    runner.start()
    theirs.close()  # so that the end of the runner is the end of the pipe, and not a wait for ever
    answers = [ours.recv() for _ in programs]
    runner.join()
    return answers


def _report(end: Any, programs: tuple[Program, ...], argument: str) -> None:
    context: Any = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch.multiprocessing", "torch.distributed.checkpoint"])
    for program in programs:
        try:
            answer = False, program(argument)
        except BaseException:
            answer = True, traceback.format_exc()
        end.send(answer)
