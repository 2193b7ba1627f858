"""A fixed share of the fuzz: random programs under random plans, each run twice. The rest is `python tools/fuzz.py`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.warm import Interpreters
from tools import _fuzz_shipped
from tools._fuzz_judge import Case, Finding, Tally, judge, shrink
from tools._fuzz_plans import Plan, draw_plan
from tools._fuzz_programs import KINDS, Program, Statement, draw_program
from tools._fuzz_shipped import ROOT, Shipped, run_shipped
from tools.fuzz import case_of

SHARE = 8  # number of cases


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide DTensor's advice, which it logs once for each mesh."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def test_nothing_breaks_hangs_differs_or_is_left_behind() -> None:
    tally = Tally()
    for number in range(SHARE):
        case = case_of(number)
        finding = judge(case, tally)

        assert finding is None, f"case {number}: {finding}\n{case.text()}"
    assert tally.statuses["returned"] > tally.statuses["raised"]


def test_the_same_number_draws_the_same_case() -> None:
    assert [case_of(number) for number in range(50)] == [case_of(number) for number in range(50)]
    assert len({case_of(number).text() for number in range(50)}) == 50


def test_every_kind_of_statement_and_fault_is_drawn() -> None:
    drawn = {inner.kind for number in range(300) for s in draw_program(number).statements for inner in (s, *s.body)}
    faults = {type(fault).__name__ for number in range(300) for fault in draw_plan(number).faults}

    assert drawn == set(KINDS)
    assert faults == {
        "BitFlip",
        "Crash",
        "Hang",
        "Hold",
        "LinkDelay",
        "Partition",
        "Raise",
        "SlowRank",
        "StoreDelay",
        "StoreLost",
    }


def test_a_bug_is_found_and_its_case_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools import _fuzz_statements

    def broken(statement: Statement, state: object) -> None:
        from simdist.c10d.surface import _memory

        _memory.flat(None)  # type: ignore[arg-type]  # an AttributeError from simdist's code

    monkeypatch.setitem(_fuzz_statements.ACTIONS, "sleep", broken)
    statements = tuple(
        Statement(kind, number) for number, kind in enumerate(("barrier", "all_reduce", "sleep", "step"))
    )
    case = Case(Program(statements), Plan(3, seed=7, policy="random"))

    finding = judge(case)

    assert isinstance(finding, Finding)
    assert finding.kind.startswith("AttributeError at _memory.py:")
    small = shrink(case, finding, deadline_s=60)
    assert [statement.kind for statement in small.program.statements] == ["sleep"]
    assert small.plan == Plan(1)


def test_a_run_that_is_no_function_of_the_seed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools import _fuzz_statements

    turns = iter(range(100))

    def varies(statement: Statement, state: object) -> None:
        print(next(turns))

    monkeypatch.setitem(_fuzz_statements.ACTIONS, "print", varies)

    finding = judge(Case(Program((Statement("print", 1),)), Plan(2)))

    assert finding is not None
    assert finding.kind == "differs"


def test_plans_over_shipped_scenarios_end_in_a_verdict_with_equal_digests(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [ROOT / "scenarios" / f"{name}.toml" for name in ("ring", "straggler")]
    monkeypatch.setattr(Shipped, "files", staticmethod(lambda: chosen))
    again: list[int] = []

    def elsewhere(numbers: Sequence[int], *, hash_seed: int) -> dict[int, str]:
        again.extend(numbers)
        return {number: digest for number, _, digest, _ in Shipped().run(numbers)}

    monkeypatch.setattr(_fuzz_shipped, "_elsewhere", elsewhere)

    assert run_shipped(4, 2, 0) == 0
    assert len(again) == 2
    assert "4 plans over 2 scenarios" in capsys.readouterr().out


def test_a_plan_that_differs_elsewhere_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shipped, "files", staticmethod(lambda: [ROOT / "scenarios" / "ring.toml"]))
    monkeypatch.setattr(_fuzz_shipped, "_elsewhere", lambda numbers, hash_seed: dict.fromkeys(numbers, "other"))

    assert run_shipped(1, 1, 0) == 1
    assert "again: other" in capsys.readouterr().out


def test_a_rank_that_asks_for_more_than_the_tool_may_have_fails(interpreters: Interpreters) -> None:
    program = "import torch, tools._fuzz_shipped as tool; tool.limit_memory(); torch.empty(16 << 30, dtype=torch.uint8)"

    child = interpreters.run([sys.executable, "-c", program], cwd=ROOT)

    assert child.returncode == 1
    assert "can't allocate memory: you tried to allocate 17179869184 bytes" in child.stderr
