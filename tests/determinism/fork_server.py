"""A fresh interpreter that has imported torch, and does each job in a fork of its own.

A fresh process for each of a hundred jobs would import torch a hundred times. Each fork has the hash seed and the
addresses of this interpreter, and has done nothing else; two servers have two hash seeds and two address spaces.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from simdist.determinism import Job, Recording

__all__ = ["ForkServer"]


class ForkServer:
    """Does jobs under one hash seed; `close` ends it."""

    def __init__(self, hash_seed: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.determinism.fork_server"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, job: Job) -> Recording:
        """The recording of the job."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(job, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        assert isinstance(answer, Recording), answer
        return answer

    def close(self) -> None:
        """End the interpreter."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _serve() -> None:
    import torch._dynamo  # noqa: F401 - what takes long; DDP wants it

    import simdist.api  # noqa: F401
    from simdist.determinism import do

    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            job: Any = pickle.load(asked)
        except EOFError:
            return
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                answer = do(job)
            except BaseException:
                answer = traceback.format_exc()
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        answers.write(data or pickle.dumps("the fork died"))
        answers.flush()


if __name__ == "__main__":
    _serve()
