"""Log files of workers: in the same places and with the same content as torchrun's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Launched = Callable[..., Result]

# One write for each line: real processes share their output, and Python may not buffer.
SPEAKS = """
import os, sys
rank = os.environ["RANK"]
sys.stdout.write(f"out of {rank}\\n")
sys.stderr.write(f"err of {rank}\\n")
sys.stdout.write(f"an apple from {rank}\\n")
sys.stdout.flush()
"""
CASES: dict[str, tuple[str, ...]] = {
    "tee all": ("--tee=3",),
    "tee some": ("-t", "0:1,1:2"),
    "redirect all": ("--redirects=3",),
    "redirect some": ("-r", "0:3"),
    "redirect and tee": ("-r", "1", "-t", "2"),
    "a filter": ("--local-ranks-filter=1",),
    "a filter and files": ("--local-ranks-filter=1", "--tee=0:3,1:1"),
    "a role": ("--tee=1", "--role=trainer"),
    "lines again": ("--tee=3", "--duplicate-stdout-filters=apple", "--duplicate-stderr-filters=nothing"),
    "lines of one": ("--tee=3", "--duplicate-stdout-filters=apple,out", "--local-ranks-filter=0"),
}
WORDS = ("--nproc-per-node=2", "--rdzv-id=job", "--log-dir=logs")


def files(folder: Path) -> dict[str, list[str]]:
    """Return the sorted lines by path below the run's folder; sorted, since workers write to a file in parallel."""
    (run,) = (folder / "logs").iterdir()
    found = [path for path in sorted(run.rglob("*")) if path.is_file()]
    return {str(path.relative_to(run)): sorted(path.read_text().splitlines()) for path in found}


def shown(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if re.search(r"(out|err) of|apple", line))


@pytest.mark.parametrize(
    ("case", "console", "logs"),
    [
        (
            "tee some",
            ["[default0]:an apple from 0", "[default0]:out of 0", "an apple from 1", "out of 1"],
            {"attempt_0/0/stdout.log": ["an apple from 0", "out of 0"], "attempt_0/1/stderr.log": ["err of 1"]},
        ),
        ("redirect some", ["an apple from 1", "out of 1"], None),
        ("a filter", ["an apple from 1", "out of 1"], {}),
        (
            "lines of one",
            ["[default0]:an apple from 0", "[default0]:out of 0"],
            {
                "attempt_0/0/stderr.log": ["err of 0"],
                "attempt_0/0/stdout.log": ["an apple from 0", "out of 0"],
                "attempt_0/1/stderr.log": ["err of 1"],
                "attempt_0/1/stdout.log": ["an apple from 1", "out of 1"],
                "attempt_0/filtered_stdout.log": ["[default0]:an apple from 0", "[default0]:out of 0"],
            },
        ),
    ],
)
def test_output_goes_where_torchrun_sends_it(
    launched: Launched, tmp_path: Path, case: str, console: list[str], logs: dict[str, list[str]] | None
) -> None:
    result = launched(SPEAKS, before=(*WORDS, *CASES[case]))

    assert result.exit_code == 0, result.output
    assert shown(result.stdout) == console
    assert logs is None or files(tmp_path) == logs


def test_each_life_has_its_files_and_lines_begin_as_one_likes(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${role_name} ${rank} (${local_rank}): ")
    text = SPEAKS + "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and sys.exit(3)\n"

    result = launched(text, before=("--nproc-per-node=2", "--nnodes=2", "--max-restarts=1", *WORDS[1:], "--tee=1"))

    assert result.exit_code == 0, result.output
    assert shown(result.stdout)[-1] == "default 3 (1): out of 3"
    assert set(files(tmp_path)) == {
        f"node_{node}/attempt_{life}/{rank}/stdout.log" for node in (0, 1) for life in (0, 1) for rank in (0, 1)
    }
    assert files(tmp_path)["node_1/attempt_1/0/stdout.log"] == ["an apple from 2", "out of 2"]


def test_the_last_line_is_there_without_a_line_end(launched: Launched, tmp_path: Path) -> None:
    result = launched("print('50 %', end='\\r'); print('100 %', end='')", before=(*WORDS[1:], "--tee=1"))

    assert result.stdout == "[default0]:50 %\r100 %\n"


@pytest.mark.real
@pytest.mark.parametrize("case", CASES)
def test_torchrun_writes_that(launched: Launched, tmp_path: Path, case: str) -> None:
    words = (*WORDS, *CASES[case])
    simulated = launched(SPEAKS, before=words)
    (tmp_path / "real").mkdir()

    real = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "../script.py"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
        cwd=tmp_path / "real",
    )

    assert simulated.exit_code == 0, simulated.output
    assert shown(simulated.stdout) == shown(real.stdout)
    assert shown(simulated.stderr) == shown(real.stderr)
    assert files(tmp_path) == files(tmp_path / "real")
