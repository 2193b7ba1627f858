"""The results of programs on a real process. One process runs all of them, since importing torch takes seconds."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

__all__ = ["real_answer"]

Program = Callable[[str], Any]


def real_answer(program: Program, argument: str, among: tuple[Program, ...]) -> Any:
    """Return the result of `program(argument)` on a spawned process, which runs each of `among` once, in order.

    The "forkserver" has imported torch before it forks child processes.
    """
    failed, answer = _answers(among, argument)[among.index(program)]
    assert not failed, answer
    return answer


@functools.cache
def _answers(programs: tuple[Program, ...], argument: str) -> list[tuple[bool, Any]]:
    context: Any = mp.get_context("spawn")  # its processes' names are counted from 1
    ours, theirs = context.Pipe(duplex=False)
    runner = context.Process(target=_report, args=(theirs, programs, argument))
    runner.start()
    theirs.close()  # so that the pipe ends when the runner does, instead of blocking forever
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
