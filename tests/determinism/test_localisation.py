"""Planted nondeterminism is found and localised; clean programs raise no alarm."""

from __future__ import annotations

import inspect
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simdist.determinism import DeterminismReport, Job, Recording, check, do
from tests.determinism import clean, helper, planted
from tests.determinism.simulate import simulate
from tests.warm import Interpreters

NOT_PROGRAMS = ("begin", "report")
Checked = Callable[[ModuleType, str], DeterminismReport]


def programs(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name not in NOT_PROGRAMS
    ]


@pytest.fixture(scope="module")
def checked(interpreters: Interpreters) -> Iterator[Checked]:
    """A function that checks a program; each is checked only once."""
    left = os.environ["SIMDIST_TEST_MARK"] = f"simdist-test-{uuid.uuid4().hex}"  # the file that one program leaves
    reports: dict[tuple[str, str], DeterminismReport] = {}

    def checked(module: ModuleType, name: str) -> DeterminismReport:
        words = (module.__name__, name)
        if words not in reports:
            if name == "state_of_the_module":
                simulate(*words)
            job = Job(simulate.__module__, "simulate", words)
            reports[words] = check(lambda: simulate(*words), job, target=name, fresh=fresh)
        return reports[words]

    def fresh(job: Job, hash_seed: str) -> Recording:
        recording = interpreters.call(hash_seed, do, job)
        assert isinstance(recording, Recording), recording
        return recording

    yield checked
    del os.environ["SIMDIST_TEST_MARK"]
    for file in Path(tempfile.gettempdir()).glob(f"{left}*"):
        file.unlink()


def guilty_line(name: str) -> tuple[str, int]:
    """Return file and line that the program marks as the cause: in its own body, or elsewhere with its name."""
    source, first = inspect.getsourcelines(getattr(planted, name))
    for number, line in enumerate(source, start=first):
        if line.rstrip().endswith("# <- here"):
            return str(planted.__file__), number
    for module in (helper, planted):
        for number, line in enumerate(Path(str(module.__file__)).read_text().splitlines(), start=1):
            if line.endswith(f"# <- {name}"):
                return str(module.__file__), number
    raise AssertionError(f"{name} does not say which line is guilty")


def shared_out(names: list[str]) -> list[Any]:
    """Run every second program by default, the others with `--real`: each starts interpreters."""
    return [name if place % 2 else pytest.param(name, marks=pytest.mark.real) for place, name in enumerate(names)]


@pytest.mark.parametrize("name", shared_out(programs(planted)))
def test_a_planted_cause_is_localised(name: str, checked: Checked) -> None:
    report = checked(planted, name)

    assert not report.ok
    assert report.cause is not None
    assert (report.cause.file, report.cause.line) == guilty_line(name), str(report)
    assert report.cause.kind == KINDS[name]


@pytest.mark.parametrize("name", shared_out(programs(clean)))
def test_a_clean_program_raises_no_alarm(name: str, checked: Checked) -> None:
    report = checked(clean, name)

    assert report.ok, str(report)


def test_twenty_kinds_are_planted_and_held_against_twenty_clean_programs() -> None:
    assert len(programs(planted)) == len(KINDS) >= 20
    assert len(programs(clean)) >= 20


KINDS = {
    "memory_of_the_process": "the surroundings of the process",
    "time_of_a_file": "the wall clock",
    "address_of_an_object": "id()",
    "address_in_a_text": "an address in a text",
    "hash_of_a_text": "hash()",
    "order_of_a_set": "the order of a set",
    "loop_over_a_set": "the order of a set",
    "comprehension_over_a_set": "the order of a set",
    "order_kept_in_an_object": "the order of a set",
    "branch_on_a_popped_element": "the order of a set",
    "environment": "the surroundings of the process",
    "order_of_a_folder": "the order of a folder",
    "order_of_a_glob": "the order of a folder",
    "garbage_collection": "when garbage is collected",
    "finalizer_in_a_cycle": "when garbage is collected",
    "memory_that_nobody_wrote": "memory that was never written",
    "thread_outside": "a thread outside the simulation",
    "queue_that_a_thread_fills": "a thread outside the simulation",
    "state_of_the_module": "state left by an earlier run in this process",
    "file_left_over": "a file left over",
    "generator_made_when_imported": "an unseeded generator",
    "made_when_imported": "random bytes from the system",
}
