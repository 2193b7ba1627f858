"""The tool that tries other versions of torch: its commands, its counts, and its answers to bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools import versions

REPORT = """<testsuites><testsuite time="12.3">
<testcase classname="tests.kernel.test_bus" name="test_a"/>
<testcase classname="tests.kernel.test_bus.TestMore" name="test_b[1]"><failure message="x"/></testcase>
<testcase classname="tests.kernel.test_bus" name="test_c"><skipped message="x"/></testcase>
<testcase classname="tests.conformance.test_common.TestGroups"
 name="test_new_group_local_sync_sanity_check[simulated]"><failure message="x"/></testcase>
</testsuite></testsuites>"""
FAILED = "tests/kernel/test_bus.py::TestMore::test_b[1]"
DOCTOR = {
    "features": [
        {"name": "simulated ranks", "on": True, "why_off": ""},
        {"name": "virtual CUDA devices", "on": False, "why_off": "no such thing"},
    ]
}
Runs = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def runner(
    about: str, *, report: str = REPORT, install: int = 0, bad_program: bool = False
) -> tuple[Runs, list[list[str]]]:
    """Return a function that answers like the commands, and the list of commands that it got."""
    commands: list[list[str]] = []

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        commands.append(list(command))
        code, out, error = 0, "", ""
        if "pip" in command:
            code, error = install, "no such version\n"
        elif "doctor" in command:
            out = json.dumps(DOCTOR)
        elif "pytest" in command:
            target = next(each for each in command if each.startswith("--junitxml=")).partition("=")[2]
            Path(target).write_text(report)
        elif set(versions.KERNELS) & set(command):
            failed = versions.GPU_PROGRAMS[:1] if "compiled" in command else []
            out = json.dumps([failed if bad_program else [], 61.4])
        elif "-c" in command:
            out = about
        return subprocess.CompletedProcess(list(command), code, out, error)

    return run, commands


def python_here() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_interpreter", lambda python: sys.executable if python == python_here() else None)


def test_a_version_gets_an_environment_and_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, commands = runner("2.14.1+cu130 3.11 CUDA-13.0", bad_program=True)
    file = tmp_path / "rows.json"

    code = versions.main(["2.14.1", "--tests", "tests/kernel", "--json", str(file)], run)

    out = capsys.readouterr().out
    assert code == 1
    name = Path(versions.GPU_PROGRAMS[0]).stem
    devices = f"no such thing | not run | 7 of 7, 61 s | 6 of 7, not {name}, 61 s"
    works = "works | works | works"
    assert f"| 2.14.1 | CUDA-13.0 | 3.11 | {works} | {devices} | 1 passed, 1 skipped | 1 | 1 | 12 |" in out
    assert f"failed with torch 2.14.1, Python 3.11: {FAILED}: x" in out
    (row,) = json.loads(file.read_text())
    assert (row["failed"], row["passed"], row["skipped"], len(row["known"])) == ([FAILED], 1, 1, 1)
    install = next(each for each in commands if "pip" in each)
    assert "torch==2.14.1" in install
    assert not any(each.startswith("torch==2.13") for each in install)
    assert any(each.startswith("pytest") for each in install)
    assert [each[-3:] for each in commands if "--no-deps" in each] == [["--no-deps", "-e", str(versions.ROOT)]]


def test_what_is_known_to_differ_is_no_failure() -> None:
    test = "tests.conformance.test_common.TestGroups"
    name = "test_new_group_local_sync_sanity_check[simulated]"
    report = f'<testsuite><testcase classname="{test}" name="{name}"><failure/></testcase></testsuite>'

    run, _ = runner("2.14.1 3.11 CPU", report=report)
    assert versions.main(["2.14.1", "--tests", "tests/conformance"], run) == 0
    run, _ = runner("2.13.0 3.11 CPU", report=report)
    assert versions.main(["2.13.0", "--tests", "tests/conformance"], run) == 1


def test_the_first_command_is_the_one_of_the_readme() -> None:
    assert versions.first_command("pip install . && simdist run a.toml    # and more\n") == ["simdist", "run", "a.toml"]
    assert Path(versions.first_command()[-1]).suffix == ".toml"


@pytest.mark.parametrize(("second", "checks"), [("", "1 of 45"), ("<failure/>", "0 of 45"), ("<skipped/>", "0 of 45")])
def test_a_wish_holds_if_its_test_passes_with_both_forms(second: str, checks: str, tmp_path: Path) -> None:
    owner, test = "tests.device.test_tensors", "test_a_tensor_is_made_on_a_device"
    report = tmp_path / "report.xml"
    report.write_text(
        f'<testsuite><testcase classname="{owner}" name="{test}[python]"/>'
        f'<testcase classname="{owner}" name="{test}[compiled]">{second}</testcase></testsuite>'
    )
    row = versions.Row("2.13.0", "3.11")

    versions.count(row, report, {})

    assert row.checks == checks


def test_an_installation_that_fails_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = runner("", install=1)

    assert versions.main(["9.9.9", "--tests", "tests/kernel"], run) == 1
    assert f"| 9.9.9 |  | {python_here()} | exit code 1: no such version |" in capsys.readouterr().out


def test_an_environment_with_another_version_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    run, _ = runner("2.13.0+cpu 3.11 CPU")

    assert versions.main(["--environment", f"2.14.1={tmp_path}", "--tests", "tests/kernel"], run) == 1
    assert "torch 2.13.0+cpu is installed there" in capsys.readouterr().out


def test_bad_input_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["2.x", "--python", "4", "--python", "3.99", "--tests", "nowhere", "--environment", "2.14.1=nowhere"]

    assert versions.main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        "'2.x' is no version of torch; one is like 2.14.1",
        "'4' is no version of Python; one is like 3.12",
        "there is no Python 3.99 here",
        "--environment 2.14.1=nowhere",
        "--tests nowhere",
    ]


def test_each_known_difference_is_of_a_test_that_is_there() -> None:
    for test, why in versions.known_for("2.14.1").items():
        file, *_, name = test.split("::")
        assert name.partition("[")[0] in (versions.ROOT / file).read_text()
        assert why
