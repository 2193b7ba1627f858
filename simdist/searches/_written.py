"""Files that replay a search's findings: a scenario and a pytest test for each failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from simdist.errors import ArgumentError
from simdist.programs import Attempt
from simdist.scenario import Plan, scenario_text
from simdist.searches._outcomes import Cause
from simdist.sweeps import test_text

__all__ = ["write_failures"]


def write_failures(
    command: str, folder: Path, failures: Iterable[tuple[Plan | None, Attempt, Cause]]
) -> Iterator[Path]:
    """Write the files of each failure, found by `simdist COMMAND`; yield their paths.

    Raises:
        ArgumentError: the search was one of a function.
    """
    for number, (plan, attempt, cause) in enumerate(failures, 1):
        if plan is None:
            raise ArgumentError("write", ["a function has no scenario; each failure's replay is a call"])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{plan.name}_{number}"
        path = folder / f"{name}.toml"
        path.write_text(scenario_text(plan, attempt.faults, folder.resolve(), comment=str(cause)), encoding="utf-8")
        yield path
        function = "".join(letter if letter.isalnum() else "_" for letter in name)
        test = folder / f"test_{function}.py"
        what = f"A failure of {plan.name}, found by `simdist {command}`"
        test.write_text(test_text(what, function, str(cause), path.name), encoding="utf-8")
        yield test
