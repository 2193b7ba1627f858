"""The same program again, in a fresh Python process under another hash seed.

The child gets a `Job` and returns a `Recording`, both pickled: plain data of simdist's own, from its own child process.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from simdist.determinism._recorder import record
from simdist.determinism._recording import Recording
from simdist.errors import SimdistError

__all__ = ["Fresh", "Job", "do", "in_fresh_process", "main"]

_LONGEST_S = 3600


@dataclass(frozen=True, slots=True)
class Job:
    """What a fresh process has to do: import `module`, call `function(*arguments)`, and record it.

    `paths` is its `sys.path`; `lines` and `shake` are those of `recording`.
    """

    module: str
    function: str
    arguments: tuple[object, ...] = ()
    lines: bool = False
    shake: bool = False
    paths: tuple[str, ...] = ()


class Fresh(Protocol):
    """Does a job in a process that has done nothing else, under a hash seed."""

    def __call__(self, job: Job, hash_seed: str, /) -> Recording:
        """The recording.

        Raises:
            SimdistError: the process ended without one.
        """
        ...


def in_fresh_process(job: Job, hash_seed: str) -> Recording:
    """Do the job in a new interpreter.

    Raises:
        SimdistError: the job can't be handed over, or the process died.
    """
    here = str(Path(__file__).resolve().parents[2])
    try:
        data = pickle.dumps(replace(job, paths=tuple(sys.path)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SimdistError(
            f"a fresh process needs the program's arguments, and they can't be handed over: {error}"
        ) from None
    with tempfile.TemporaryDirectory(prefix="simdist-") as folder:
        asked, answered = Path(folder) / "job", Path(folder) / "recording"
        asked.write_bytes(data)
        child = _run(
            [sys.executable, "-c", "from simdist.determinism import main; main()", str(asked), str(answered)],
            env=os.environ
            | {
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
            },
        )
        if not answered.exists():
            tail = "\n".join(f"  {line}" for line in child.stderr.rstrip().splitlines()[-12:])
            raise SimdistError(f"the run in a fresh process ended with exit code {child.returncode}:\n{tail}")
        answer = pickle.loads(answered.read_bytes())
    if isinstance(answer, str):
        raise SimdistError(f"the run in a fresh process failed:\n{answer}")
    if not isinstance(answer, Recording):
        raise SimdistError(f"a fresh process answered with {type(answer).__name__}")
    return answer


def _run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, env=env, capture_output=True, text=True, errors="replace", check=False, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        raise SimdistError(f"the run in a fresh process did not end within {_LONGEST_S} s of real time") from None


def do(job: Job) -> Recording | str:
    """Do the job here, including the import of the function; return a text with the error if that fails."""
    sys.path.extend(path for path in job.paths if path not in sys.path)
    failed: list[str] = []

    def call() -> None:
        try:
            entry = getattr(importlib.import_module(job.module), job.function)
        except Exception:
            failed.append(traceback.format_exc())
        else:
            entry(*job.arguments)

    found = record(call, lines=job.lines, shake=job.shake)
    return failed[0] if failed else found


def main() -> None:
    """Main function of the fresh process: the first argument names the file with the job, the second the result's."""
    asked, answered = map(Path, sys.argv[1:3])
    sys.argv[1:] = []
    answer = do(pickle.loads(asked.read_bytes()))
    unfinished = answered.with_suffix(".part")
    unfinished.write_bytes(pickle.dumps(answer))
    unfinished.replace(answered)
    sys.stdout.flush()
    os._exit(0)  # a thread that the program left behind must not keep the process
