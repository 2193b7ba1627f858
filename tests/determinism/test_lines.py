from __future__ import annotations

from collections.abc import Callable, Iterator

from simdist.determinism._lines import RETURNED, Budget, LineTrace, trace_lines

LIMIT = 3


def traced(function: Callable[[], object], budget: Budget | None = None) -> LineTrace:
    trace = LineTrace()
    end = trace_lines(trace, budget or Budget())
    try:
        function()
    finally:
        end()
    return trace


def double(number: int) -> int:
    result = number * 2
    return result  # noqa: RET504 - two steps


def numbers() -> Iterator[int]:
    yield 0
    yield 1


def reported(trace: LineTrace, *names: str) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    return [
        (
            step.function,
            {name: step.before[name] for name in names if name in step.before},
            {name: step.after[name] for name in names if name in step.after},
        )
        for step in trace.steps
    ]


def test_a_step_has_the_values_before_and_after_its_line() -> None:
    def program() -> None:
        total = 1
        total += LIMIT

    steps = reported(traced(program), "total", f"{__name__}:LIMIT")

    assert steps == [
        ("program", {}, {"total": "1"}),
        ("program", {"total": "1", f"{__name__}:LIMIT": "3"}, {"total": "4", f"{__name__}:LIMIT": "3"}),
    ]


def test_a_call_knows_the_step_that_made_it_and_what_it_returned() -> None:
    trace = traced(lambda: double(4))

    assert [(step.function, step.frame, step.caller) for step in trace.steps] == [
        ("<lambda>", 0, -1),
        ("double", 1, 0),
        ("double", 1, 0),
    ]
    assert [step.after.get(RETURNED) for step in trace.steps] == ["8", None, "8"]


def test_a_generator_that_comes_back_counts_as_another_call() -> None:
    trace = traced(lambda: list(numbers()))

    frames = [step.frame for step in trace.steps if step.function == "numbers"]
    assert sorted(set(frames)) == [1, 2]


def test_a_generator_that_is_given_up_ends_quietly() -> None:
    def program() -> None:
        for number in numbers():
            if number == 0:
                break

    assert traced(program).complete


def test_installed_code_is_not_traced() -> None:
    import json

    trace = traced(lambda: json.dumps([1, {"a": 2}]))

    assert [step.function for step in trace.steps] == ["<lambda>"]


def test_a_trace_ends_when_its_budget_does() -> None:
    def program() -> int:
        total = 0
        for number in range(100):
            total += number
        return total

    trace = traced(program, Budget(10))

    assert len(trace.steps) == 10
    assert not trace.complete


def test_names_that_inner_functions_share_are_marked() -> None:
    def program() -> None:
        count = 0

        def add() -> None:
            nonlocal count
            count += 1

        add()

    last = [step for step in traced(program).steps if step.function == "add"][-1]
    assert (last.before["^count"], last.after["^count"]) == ("0", "1")
