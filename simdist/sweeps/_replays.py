"""Failures as files: for each a scenario that replays it, a test of that scenario, and a picture of the crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simdist.errors import ArgumentError
from simdist.programs import PlanProgram
from simdist.scenario import Expectations, Plan, run_scenario, scenario_text
from simdist.sweeps._crashes import attempt_of
from simdist.sweeps._failure import Failures
from simdist.sweeps._picture import picture

__all__ = ["test_text", "write_replays", "write_tests"]

_TEST = '''"""{what}. It passes once that is mended."""

from pathlib import Path

from simdist.scenario import load, run_scenario


def test_{function}() -> None:
    """{account}"""
    report = run_scenario(load(str(Path(__file__).with_name("{scenario}"))))

    assert report.ok, "; ".join(f"{{each.name}}: {{each.evidence}}" for each in report.verdicts if not each.ok)
'''

_SWEEP = '''"""A crash that {name} does not survive, found by `simdist.sweep`. It passes once that is mended."""

import simdist
from simdist.faults import Crash, Hang, HostCrash, Signal
from {module} import {top}


def test_{function}() -> None:
    """{account}"""
    report = {call}

    report.raise_for_failure()
'''


def write_tests(report: Failures, folder: Path) -> Iterator[Path]:
    """Write a test for each failure of a function's sweep that the report shows; yield their paths.

    Raises:
        ArgumentError: the function, or an argument, has no name that a file could use.
    """
    call = report.call
    if call is None or not call.is_whole or call.module is None:
        lacks = [
            f"{name}: has no text that Python could read"
            for name, text in (call.given if call else {}).items()
            if text == "..."
        ]
        if call is not None and call.module is None:
            lacks.append(f"fn: {call.function} stands in no module, so that no file can import it")
        raise ArgumentError("write_tests", lacks or ["the report is of no function; write_replays is for scenarios"])
    folder.mkdir(parents=True, exist_ok=True)
    top = call.function.partition(".")[0]
    for number, failure in enumerate(report.shortest(), 1):
        function = f"{call.function.replace('.', '_')}_{number}"
        path = folder / f"test_{function}.py"
        path.write_text(
            _SWEEP.format(
                name=call.function,
                module=call.module,
                top=top,
                function=function,
                account=_quoted(failure.account),
                call=call.with_function(call.function, failure.case.faults),
            ),
            encoding="utf-8",
        )
        yield path


def _quoted(account: str) -> str:
    return account.replace("\\", "/").replace('"', "'")


def test_text(what: str, function: str, account: str, scenario: str) -> str:
    """Return a pytest file whose test runs the scenario in the same folder, and passes if its expectations hold."""
    return _TEST.format(what=what, function=function, account=_quoted(account), scenario=scenario)


def write_replays(report: Failures, plan: Plan, folder: Path) -> Iterator[Path]:
    """Write the files of each failure that the report shows into `folder`; yield scenario, test and picture."""
    for number, failure in enumerate(report.shortest(), 1):
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{plan.name}_{number}"
        path = folder / f"{name}.toml"
        struck = PlanProgram(replace(plan, faults=())).planned(attempt_of(failure.case))
        struck = replace(struck, overrides=plan.overrides)
        text = scenario_text(struck, failure.case.faults, folder.resolve(), comment=failure.account)
        path.write_text(text, encoding="utf-8")
        yield path
        function = "".join(letter if letter.isalnum() else "_" for letter in name)
        test = folder / f"test_{function}.py"
        what = f"A crash that {plan.name} does not survive, found by `simdist sweep`"
        test.write_text(test_text(what, function, failure.account, path.name), encoding="utf-8")
        yield test
        alone = replace(struck, expect=Expectations(outcomes=plan.expect.outcomes))  # no other run to compare with
        drawn = folder / f"{name}.svg"
        drawn.write_text(picture(run_scenario(alone).result, failure.account), encoding="utf-8")
        yield drawn
