"""Any input leads to a run or an error in simdist's own words. Properties, and a share of `tools/fuzz_input.py`."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simdist
from simdist.cli import main
from simdist.errors import InternalError, ScenarioError, SimdistError, TraceError
from simdist.faults import Fault, file_key, problems_of
from simdist.scenario import load
from simdist.settings import SETTINGS, check_settings
from simdist.trace import read_trace
from simdist.values import Unfit, brief, findings_of, found, plain, shown
from tests.strategies import (
    event_lines,
    fault_fields,
    odd_arguments,
    odd_values,
    plain_arguments,
    scenario_tables,
    seeds,
)
from tests.warm import Interpreters
from tools._hostile import toml
from tools._input_cases import KINDS, make
from tools.fuzz_input import failures_of, run_case, run_markers

again = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a folder serves all examples


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """A function that writes a scenario next to a workload, and returns its path."""
    (tmp_path / "job.py").write_text("def work(*args, **kwargs): pass\n")

    def write(table: dict[str, Any]) -> str:
        path = tmp_path / "file.toml"
        path.write_bytes(toml(table).encode("utf-8", "replace"))
        return str(path)

    return write


def ending(call: Callable[[], Any], error: type[Exception]) -> tuple[Any, Any]:
    """Return a call's result and None; or None and the error of this kind that it raises."""
    try:
        return call(), None
    except error as raised:
        return None, raised


@again
@given(table=scenario_tables)
def test_a_scenario_is_a_plan_or_a_list_of_problems(
    write: Callable[[dict[str, Any]], str], table: dict[str, Any]
) -> None:
    file = write(table)

    plan, refusal = ending(lambda: load(file), ScenarioError)

    if refusal is None:
        assert 1 <= plan.world_size <= 2**15
        return
    assert refusal.problems
    assert all(plain(problem, "") == problem and len(problem) < 1000 for problem in refusal.problems)


@given(odd_arguments)
def test_arguments_are_good_or_reported_and_what_is_good_stays_so(arguments: dict[str, Any]) -> None:
    checked, refusal = ending(lambda: check_settings("it", arguments), SimdistError)

    if refusal is None:
        assert set(checked) == set(arguments)
        assert set(check_settings("it", checked)) == set(arguments)
        return
    assert not isinstance(refusal, InternalError)
    assert all(len(line) < 1000 for line in str(refusal).splitlines())


@again
@given(fields=fault_fields(), last=st.integers(0, 2))
def test_a_fault_is_wrong_in_a_file_if_it_is_wrong_in_python(
    write: Callable[[dict[str, Any]], str], fields: tuple[Callable[..., Fault], dict[str, Any]], last: int
) -> None:
    kind, values = fields
    fault = kind(**{name: None if name == "life" and value == "every" else value for name, value in values.items()})
    table = {file_key(name): value for name, value in values.items()} | {"kind": fault.kind}
    file = write({"world_size": 2, "max_restarts": last, "workload": {"target": "job:work"}, "faults": [table]})

    plan, refusal = ending(lambda: load(file), ScenarioError)

    in_python = problems_of([fault], 2, max_restarts=last, has_disk=False)
    assert (refusal is None) == (in_python == []), (str(refusal), in_python)
    if refusal is None:
        assert dataclasses.asdict(plan.faults[0]) == dataclasses.asdict(fault)


@given(odd_values)
def test_any_value_can_be_shown_on_one_plain_line(value: Any) -> None:
    for text in (found(value), shown(value), brief(value)):
        assert plain(text, "") == text
        assert "\n" not in text
        assert len(text) < 120


@given(st.sampled_from(sorted(SETTINGS)), odd_values)
def test_a_spec_gives_back_plain_data_or_says_what_is_wrong(name: str, value: Any) -> None:
    checked, unfit = ending(lambda: SETTINGS[name].check(value), Unfit)

    if unfit is None:
        assert findings_of(SETTINGS[name], checked) == ()
    else:
        assert unfit.findings
        assert str(unfit)


@again
@given(text=event_lines())
def test_a_trace_that_is_read_can_be_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)

    _, refusal = ending(lambda: read_trace(file), TraceError)
    result = CliRunner().invoke(main, ["show", str(file)])

    assert result.exit_code == (0 if refusal is None else 2), result.output
    assert result.stderr == ("" if refusal is None else f"{refusal}\n")
    assert result.stderr.count("\n") <= 1
    assert len(result.stderr) < 2000


def program(*args: object, **kwargs: object) -> str:
    """Return the arguments as text."""
    return repr((args, kwargs))


@settings(max_examples=20)
@given(plain_arguments)
def test_the_replay_line_repeats_the_run(arguments: dict[str, Any]) -> None:
    first = simdist.run(program, **arguments)

    second = eval(first.replay)

    assert "# shortened" not in first.replay
    assert (second.digest, second.values, second.replay) == (first.digest, first.values, first.replay)


@given(seeds)
def test_the_same_seed_makes_the_same_input(seed: int) -> None:
    for kind in sorted(set(KINDS) - {"trace", "options"}):  # those begin with a run
        assert make(kind, str(seed)) == make(kind, str(seed))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"marker"}))
def test_a_share_of_the_fuzz(kind: str) -> None:
    for index in range(8):
        case = make(kind, f"suite/{index}")

        assert failures_of(run_case(case)) == [], case


def test_a_share_of_the_fuzz_of_markers(interpreters: Interpreters) -> None:
    def run(words: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        done = interpreters.run(words, env=env)
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.encode(), done.stderr.encode())

    assert run_markers([make("marker", f"suite/{index}") for index in range(12)], run) == {}
