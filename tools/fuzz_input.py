"""Feed bad input of every kind to simdist, and look at how it refuses it.

    python tools/fuzz_input.py --count 2000 --seed 0
    python tools/fuzz_input.py --minutes 10 --kinds trace,python
    python tools/fuzz_input.py --only trace:17          # one case again, shown whole

Every input ends with exit code 0, 1 or 2 (a call of Python: with a result, or an error of simdist's), within a few
seconds, without a traceback and without a line of simdist's own code; an output file that was there is whole, new or
old. What fails is made smaller, and printed with its seed; the exit code is 1 then.

Commands run in this process, through the real `main`; one in `--fresh` of them again in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools._hostile import PRELUDE  # noqa: E402
from tools._input_cases import KINDS, Case, make  # noqa: E402

__all__ = ["Ending", "failures_of", "main", "run_case", "run_markers", "shrunk"]

SLOW_S = 8.0  # processor time: a refusal never takes that long
_MARKERS = 40  # test files in one run of pytest
_OURS = re.compile(r"simdist/[\w/]+\.py")


@dataclass(frozen=True)
class Ending:
    """How an input ended: what it printed, its exit code, and what is wrong with its files."""

    code: int
    text: str
    seconds: float = 0.0
    files: tuple[str, ...] = ()


def main(arguments: list[str] | None = None) -> int:
    """Run the cases, shrink and print those that fail; returns 1 if any did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stop after so long, whatever the count")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS), help="of " + ",".join(KINDS))
    parser.add_argument("--fresh", type=int, default=40, metavar="N", help="every N-th command in a process of its own")
    parser.add_argument("--only", metavar="KIND:INDEX", help="one case")
    options = parser.parse_args(arguments)
    if options.only:
        kind, _, index = options.only.partition(":")
        return _show(make(kind, f"{options.seed}/{index}"))
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    counts: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    failed = 0
    started = time.monotonic()
    for index, kind in _order(options.kinds, options.count):
        if deadline is not None and time.monotonic() > deadline:
            break
        case = make(kind, f"{options.seed}/{index}")
        if kind == "marker":
            batch = [make(kind, f"{options.seed}/{index}/{each}") for each in range(_MARKERS)]
            counts[kind] += len(batch)
            failed += _report_markers(batch, f"{kind}:{index} --seed {options.seed}")
            continue
        counts[kind] += 1
        fresh = [True] if case.words and options.fresh and index % options.fresh == 0 else []
        for alone in (False, *fresh):
            counts["in fresh processes"] += alone
            ending = run_case(case, fresh=alone)
            codes[ending.code] += 1
            problems = failures_of(ending)
            if problems:
                failed += 1
                _report(case, problems, f"--only {kind}:{index} --seed {options.seed}")
    reported = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"exit codes {dict(sorted(codes.items()))}")
    print(f"{reported}; {failed} failed; {time.monotonic() - started:.0f} s")
    return int(failed > 0)


def _order(kinds: Sequence[str], count: int) -> Iterator[tuple[int, str]]:
    """Yield the kinds in turn; one run of pytest counts as all the markers in it."""
    done = index = 0
    while done < count:
        kind = kinds[index % len(kinds)]
        # Markers run in batches, so that in the end there are as many as inputs of any other kind.
        if kind != "marker" or len(kinds) == 1 or (index // len(kinds)) % _MARKERS == _MARKERS // 2:
            yield index, kind
            done += _MARKERS if kind == "marker" else 1
        index += 1


# -- one case -------------------------------------------------------------------------------------------------------


def run_case(case: Case, *, fresh: bool = False) -> Ending:
    """Run a command or a piece of Python, in a folder of its own."""
    with _folder(case.files) as folder:
        if case.code:
            return _of_python(case)
        words = [_placed(word) for group in case.words for word in group]
        for word in words:
            if word.startswith("out-"):
                (folder / word).write_text("old")
        before = {path.name for path in folder.iterdir()}
        ending = _in_a_process(words) if fresh else _in_this_process(words)
        return replace(ending, files=tuple(_files_problems(folder, case, before, ending.code)))


def failures_of(ending: Ending) -> list[str]:
    """Return what is wrong with an ending."""
    wrong = [*ending.files]
    if ending.code not in (0, 1, 2):
        wrong.append(f"exit code {ending.code}")
    if "Traceback (most recent call last)" in _without_ranks(ending.text):
        wrong.append("a traceback")
    if _OURS.search(_without_ranks(ending.text)):
        wrong.append("a line of simdist")
    if "bug in simdist" in ending.text:
        wrong.append("an internal error")
    if ending.seconds > SLOW_S:
        wrong.append(f"{ending.seconds:.1f} s")
    awkward = set(re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f]", ending.text))
    if awkward:
        wrong.append(f"control characters {sorted(awkward)}")
    if len(ending.text) > 200_000:
        wrong.append(f"{len(ending.text)} letters")
    return wrong


def _without_ranks(text: str) -> str:
    """Remove the ranks' own tracebacks: they show the program's errors."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*\[rank ?\d+[^\]]*\]:? ", line))


def _in_this_process(words: Sequence[str]) -> Ending:
    from simdist.cli import main as simdist

    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True)
    threads, path, modules = threading.active_count(), list(sys.path), set(sys.modules)
    started = time.process_time()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), _limited():
        try:
            simdist(args=list(words), prog_name="simdist")
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:  # print it as the interpreter would
            out.write(traceback.format_exc())
            code = 70
    seconds = time.process_time() - started
    text = out.buffer.getvalue().decode("utf-8")
    left = [name for name in ("job", "mod") if name in sys.modules and name not in modules]
    files = [f"modules left: {left}"] if left else []
    files += ["sys.path changed"] if sys.path != path else []
    files += ["a thread left"] if threading.active_count() != threads else []
    return Ending(int(code), text, seconds, tuple(files))


def _in_a_process(words: Sequence[str]) -> Ending:
    try:
        given = [os.fsencode(word) for word in words]
    except UnicodeEncodeError:  # no shell can pass these words
        return Ending(2, "")
    if any(b"\0" in word for word in given) or sum(map(len, given)) > 100_000:
        return Ending(2, "")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    command: list[Any] = [sys.executable, "-m", "simdist", *given]
    done = subprocess.run(command, capture_output=True, env=environ, check=False, timeout=120)
    return Ending(done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace"))


def _of_python(case: Case) -> Ending:
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    from simdist.errors import InternalError, SimdistError, StallError

    scope: dict[str, Any] = {}
    exec(PRELUDE, scope)
    threads = threading.active_count()
    started = time.process_time()
    text, code = "", 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), _limited():
        try:
            exec(case.code % ", ".join(case.parts), scope)
        except (SimdistError, ProcessRaisedException, ProcessExitedException) as error:
            code = 70 if isinstance(error, InternalError | StallError) else 2
            text = str(error) if isinstance(error, SimdistError) else ""
        except BaseException:
            text, code = traceback.format_exc(), 70
    files = ("a thread left",) if threading.active_count() != threads else ()
    return Ending(code, text, time.process_time() - started, files)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Interrupt a command that does not end, as a person would."""

    def late(*_: object) -> NoReturn:
        raise TimeoutError("no end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(100)  # a busy machine may take its time
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _folder(files: Any) -> Iterator[Path]:
    home = Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        os.chdir(folder)
        yield folder
    finally:
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)


def _placed(word: str) -> str:
    return f"out-{word.removeprefix('OUT:')}" if word.startswith("OUT:") else word


def _files_problems(folder: Path, case: Case, before: set[str], code: int) -> Iterator[str]:
    """Check that inputs are unchanged, outputs are whole, and no other file is left behind."""
    named = {_placed(word) for group in case.words for word in group}
    for name, content in case.files.items():
        if (folder / name).read_bytes() != content and not (name in named and name == "job.py" and code != 2):
            yield f"{name} was changed"
    if ("--flight-recorder", ".") in case.words and code != 2:  # its files may be anywhere, as requested
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("out-"):
            yield from _output_problems(path, code)
        elif path.name not in {*before, "__pycache__"} | {word.partition("/")[0] for word in named}:
            yield f"{path.name} was left behind"


def _output_problems(path: Path, code: int) -> Iterator[str]:
    content = path.read_bytes()
    if content == b"old":
        return
    if code == 2:
        yield f"{path.name} was written, and the exit code is 2"
    try:
        if path.name.endswith(".svg") and not content.startswith(b"{"):  # the name may be any output's
            xml.etree.ElementTree.fromstring(content)
        elif content.startswith(b'{"data"'):
            for line in content.splitlines():
                json.loads(line)
        elif path.name.endswith((".json", ".svg")):
            json.loads(content)
    except (ValueError, xml.etree.ElementTree.ParseError) as error:
        yield f"{path.name} is not whole: {error}"


Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
"""A function like `subprocess.run`."""


# -- markers --------------------------------------------------------------------------------------------------------


def run_markers(cases: Sequence[Case], run: Run = subprocess.run) -> dict[int, list[str]]:
    """Run pytest once with `run`, over a file for each case; returns what is wrong, by case."""
    files = {
        f"test_{index}.py": f"import pytest\n{PRELUDE}\n{case.code % ', '.join(case.parts)}".encode()
        for index, case in enumerate(cases)
    }
    with _folder(files) as folder:
        command = [sys.executable, "-m", "pytest", "-p", "simdist.testing.plugin", "-p", "no:cacheprovider", "-p"]
        command += ["no:xdist", "-p", "no:hypothesispytest", "-q", "--continue-on-collection-errors", "-rN"]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST") and key != "CI"}
        environ |= {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
        try:
            done = run(
                [*command, f"--rootdir={folder}", "--timeout=60"],
                capture_output=True,
                env=environ,
                check=False,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return {index: ["no end, of these together"] for index in range(len(cases))}
        text = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
    found: dict[int, list[str]] = {}
    if done.returncode not in (0, 1, 2):
        found[-1] = [f"pytest ended with exit code {done.returncode}\n{text[-3000:]}"]
    parts = re.split(r"^(?=_{3,} )", text, flags=re.MULTILINE)
    for part in parts:
        named = re.search(r"test_(\d+)\.py", part)
        ours = _OURS.search(part)
        traced = "Traceback (most recent call last)" in part or "INTERNALERROR" in part
        if ours or traced:
            index = int(named[1]) if named else -1
            found.setdefault(index, []).append(f"{'a traceback' if traced else f'a line of {ours[0]}'}\n{part[:1500]}")  # type: ignore[index]
    return found


def _report_markers(batch: Sequence[Case], where: str) -> int:
    found = run_markers(batch)
    for index, problems in found.items():
        print(f"\n== {where}, case {index}: {'; '.join(problems)}")
        if index >= 0:
            print(batch[index].code % ", ".join(batch[index].parts))
    return len(found)


# -- what failed ----------------------------------------------------------------------------------------------------


def shrunk(case: Case) -> Case:
    """Return the case without the parts that its failure does not need."""
    wanted = _signature(run_case(case))
    smaller = True
    while smaller:
        smaller = False
        for attempt in _smaller(case):
            if _signature(run_case(attempt)) == wanted:
                case, smaller = attempt, True
                break
    return case


def _signature(ending: Ending) -> tuple[list[str], str]:
    """Return what distinguishes failures: the problems, and a traceback's last line without names and numbers."""
    last = ending.text.rstrip().rpartition("\n")[2] if "a traceback" in failures_of(ending) else ""
    return [re.sub(r"[\d.]+", "", problem) for problem in failures_of(ending)], re.sub(r"'[^']*'|\d+", "", last)


def _smaller(case: Case) -> Iterator[Case]:
    for index in range(len(case.parts)):
        yield replace(case, parts=case.parts[:index] + case.parts[index + 1 :])
    for index in range(2, len(case.words)):
        yield replace(case, words=case.words[:index] + case.words[index + 1 :])
    for name, content in case.files.items():
        if name == "job.py":
            continue
        lines = content.splitlines(keepends=True)
        for size in (len(lines) // 2, len(lines) // 4, 1):
            for start in range(0, len(lines), size) if 0 < size < len(lines) and len(lines) // size < 80 else ():
                yield replace(case, files={**case.files, name: b"".join(lines[:start] + lines[start + size :])})


def _report(case: Case, problems: Sequence[str], where: str) -> None:
    small = shrunk(case)
    print(f"\n== {where}: {'; '.join(problems)}")
    _show(small if failures_of(run_case(small)) else case)
    sys.stdout.flush()


def _show(case: Case) -> int:
    if case.kind == "marker":
        print(case.code % ", ".join(case.parts))
        return 0
    if case.code:
        print(case.code % ", ".join(case.parts))
    for name, content in case.files.items():
        if name != "job.py":
            print(f"-- {name}: {content[:1500]!r}")
    if case.words:
        print("-- simdist", *(repr(word)[:200] for group in case.words for word in group))
    ending = run_case(case)
    print(f"-- exit code {ending.code}, {ending.seconds:.2f} s, {failures_of(ending) or 'as it should be'}")
    print(ending.text[-2500:].encode("utf-8", "backslashreplace").decode())
    return int(bool(failures_of(ending)))


if __name__ == "__main__":
    sys.exit(main())
