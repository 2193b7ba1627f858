"""How judges are turned on, and where their findings appear."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn

import simdist
from simdist.cli import main
from simdist.errors import ArgumentError, RunFailedError, ScenarioError
from simdist.judges import Hearing, Judge, OptimizerStepped, Replicas
from simdist.launch import LaunchError
from simdist.launch._options import parsed
from simdist.scenario import load, run_scenario
from tests.judges.programs import grouped, line_of

PROGRAM = """
import torch
import torch.distributed as dist


def train(spoilt: int) -> None:
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.arange(4.0) + (dist.get_rank() == spoilt)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
"""
SCENARIO = """
world_size = 3
{judges}
[workload]
target = "program:train"
args = [{spoilt}]
{expect}
"""


def spoilt(rank: int) -> None:
    weight = nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.arange(4.0) + (rank == 1)
        optimizer.step()
    dist.barrier()


class TooMany(Judge):
    """Allows at most one step."""

    name = "too-many"

    def begin(self, hearing: Hearing) -> None:
        def look(event: OptimizerStepped) -> None:
            if event.number == 1 and event.process.rank == 0:
                hearing.find("a second step", hearing.moment(event.process, event.where), step=event.number)

        hearing.listen(OptimizerStepped, look)


def test_nothing_is_judged_unless_asked_for() -> None:
    result = simdist.run(grouped(spoilt), world_size=3)

    assert (result.ok, result.judges, result.findings) == (True, (), ())


def test_a_finding_fails_the_run_and_stands_in_its_report() -> None:
    result = simdist.run(grouped(spoilt), world_size=3, judges=["replicas"])

    with pytest.raises(RunFailedError) as caught:
        result.raise_for_failure()

    where = line_of(spoilt, "optimizer.step()")
    assert str(caught.value).splitlines()[:5] == [
        "every rank came to its end, but judge replicas found, rank 1: parameter weight differs from ranks 0, 2 after "
        "optimizer step 0",
        "3 ranks, backend gloo, seed 0 (fifo order), 400 us of virtual time",
        f"judge replicas: rank 1, step 0, {where}",
        "    parameter weight differs from ranks 0, 2 after optimizer step 0",
        f"    against: {where}",
    ]


def test_a_finding_is_data_in_the_summary() -> None:
    result = simdist.run(grouped(spoilt), world_size=3, judges=[Replicas()])

    (found,) = json.loads(json.dumps(result.summary()))["findings"]
    assert (found["judge"], found["rank"], found["step"], found["subject"]) == ("replicas", 1, 0, "weight")


def test_users_write_their_own_judges() -> None:
    result = simdist.run(grouped(spoilt), world_size=3, judges=[TooMany()])

    (found,) = result.findings
    assert (found.judge, found.problem, found.rank, found.step) == ("too-many", "a second step", 0, 1)


def test_one_judge_judges_many_worlds() -> None:
    judge = Replicas()

    found = [simdist.run(grouped(spoilt), world_size=3, judges=[judge]).findings for _ in range(2)]

    assert found[0] == found[1] != ()


@pytest.mark.parametrize(
    ("judges", "problem"),
    [
        ("replicas", "judges: expected True or False, or a sequence of judges, found the text 'replicas'"),
        (["replica"], "judges: unknown judge 'replica'; did you mean 'replicas'?"),
        (["finite", "finite"], "judges: judge 'finite' stands there twice"),
        ([3], "judges: 3 is no judge; expected a name, or an instance of a subclass of simdist.judges.Judge"),
    ],
)
def test_what_is_no_judge_is_refused(judges: Any, problem: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        simdist.run(print, world_size=1, judges=judges)

    assert problem in str(caught.value)


def test_the_replay_names_the_judges() -> None:
    result = simdist.run(print, world_size=1, judges=["finite", Replicas()])

    assert result.replay == "simdist.run(print, world_size=1, seed=0, judges=('finite', Replicas()))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def written(folder: Path, judges: str = "", *, rank: int = 1, expect: str = "") -> str:
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(judges=judges, spoilt=rank, expect=expect))
    return str(path)


def test_a_scenario_has_a_verdict_on_what_judges_found(folder: Path) -> None:
    report = run_scenario(load(written(folder, 'judges = ["replicas"]')))

    (verdict,) = (each for each in report.verdicts if each.name == "judges")
    assert not report.ok
    assert verdict.evidence == "replicas: parameter weight differs from ranks 0, 2 after optimizer step 0"


def test_a_scenario_can_expect_a_finding(folder: Path) -> None:
    expect = '[expect]\nfindings = "replicas"'

    assert run_scenario(load(written(folder, "judges = true", expect=expect))).ok
    assert not run_scenario(load(written(folder, "judges = true", rank=7, expect=expect))).ok


def test_a_scenario_without_judges_has_no_verdict_on_them(folder: Path) -> None:
    report = run_scenario(load(written(folder)))

    assert "judges" not in [verdict.name for verdict in report.verdicts]


def test_a_scenario_names_what_is_wrong_with_its_judges(folder: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(written(folder, 'judges = ["finite"]', expect='[expect]\nfindings = ["replicas"]'))

    assert "expect.findings[0]: 'replicas' is no judge of this scenario; known: finite" in str(caught.value)


@pytest.mark.usefixtures("no_looks")
@pytest.mark.parametrize(
    "words", [["--judge"], ["--judge", "replicas"], ["--judge=all"], ["--judge", "finite,replicas"]]
)
def test_the_command_line_turns_judges_on(folder: Path, words: list[str]) -> None:
    found = CliRunner().invoke(main, ["run", *words, written(folder)])

    assert found.exit_code == 1
    assert "  judge replicas: rank 1, step 0, program.py:12 in train" in found.output.splitlines()


@pytest.mark.parametrize("words", [["--judge=replica"], ["--judge", "replica"]])
def test_the_command_line_refuses_an_unknown_judge(folder: Path, words: list[str]) -> None:
    found = CliRunner().invoke(main, ["run", *words, written(folder)])

    assert found.exit_code == 2
    assert "--judge: unknown judge 'replica'; did you mean 'replicas'?" in found.output


def test_a_launch_has_judges_and_leaves_the_scripts_own_options_alone(folder: Path) -> None:
    script = str(folder / "program.py")

    bare, _ = parsed(["--judge", script, "--judge"])
    named, _ = parsed(["--judge", "finite", "--judge=samples", script, "--judge", "x"])
    listed, _ = parsed(["--judge", "finite,samples", script])

    assert (bare.judges, bare.script_args) == (True, ("--judge",))
    assert (named.judges, named.script_args) == (("finite", "samples"), ("--judge", "x"))
    assert (listed.judges, listed.script_args) == (("finite", "samples"), ())


def test_a_launch_refuses_an_unknown_judge(folder: Path) -> None:
    for words in (["--judge=finit"], ["--judge", "finit"], ["--judge=samples,finit"]):
        with pytest.raises(LaunchError, match=r"--judge: unknown judge 'finit'; did you mean 'finite'"):
            parsed([*words, str(folder / "program.py")])


def test_a_script_with_nearly_the_name_of_a_judge_is_a_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "finit").write_text("")

    launch, _ = parsed(["--judge", "finit"])

    assert (launch.judges, launch.script) == (True, "finit")


MARKED = """
import pytest
import torch
import torch.distributed as dist

def body():
    weight = torch.nn.Parameter(torch.arange(4.0))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.arange(4.0) + (dist.get_rank() == 1)
    optimizer.step()
    dist.barrier()

@pytest.mark.simdist(3, judges=True)
def test_judged():
    body()

@pytest.mark.simdist(3)
def test_plain():
    body()

@pytest.mark.simdist(3, judges=False)
def test_excused():
    body()
"""


def test_a_finding_fails_a_marked_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKED)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-n", "0")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["judge replicas found, on rank 1 at *:9 in body: parameter weight differs from ranks 0, 2*"]
    )


def test_an_option_lets_judges_look_on_in_all_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKED)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-n", "0", "--simdist-judges")

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["simdist: all judges"])


OWN = """
from simdist.judges import Hearing, Judge, OptimizerStepped

class TooMany(Judge):
    name = "too-many"

    def begin(self, hearing: Hearing) -> None:
        def look(event: OptimizerStepped) -> None:
            if event.number == 1 and event.process.rank == 0:
                hearing.find("a second step", hearing.moment(event.process, event.where), step=event.number)

        hearing.listen(OptimizerStepped, look)

class Greedy(TooMany):
    def __init__(self, limit: int) -> None: ...

class NoJudge: ...
"""
BROKEN = "raise RuntimeError('not today')"


@pytest.fixture
def with_own(folder: Path) -> Path:
    (folder / "own_judges.py").write_text(OWN)
    (folder / "broken_judges.py").write_text(BROKEN)
    return folder


def test_a_scenario_names_a_judge_of_the_users_beside_it(with_own: Path) -> None:
    judges, expect = 'judges = ["own_judges:TooMany", "finite"]', '[expect]\nfindings = "too-many"'
    path = written(with_own, judges, rank=7, expect=expect)

    report = run_scenario(load(path))

    assert report.ok
    assert report.result is not None
    assert report.result.judges == ("too-many", "finite")
    assert "own_judges" not in __import__("sys").modules


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("nowhere:TooMany", "judge 'nowhere:TooMany': no module 'nowhere' on Python's path"),
        (
            "own_judges:TooMeny",
            "judge 'own_judges:TooMeny': module 'own_judges' has no 'TooMeny'; did you mean 'TooMany'?",
        ),
        ("own_judges:NoJudge", "judge 'own_judges:NoJudge' is a class, and no subclass of simdist.judges.Judge"),
        ("own_judges:OWN", "judge 'own_judges:OWN': module 'own_judges' has no 'OWN'"),
        ("own_judges:Greedy", "judge 'own_judges:Greedy' can't be made without arguments: TypeError: "),
        (
            "broken_judges:A",
            "judge 'broken_judges:A': module 'broken_judges' can't be imported: RuntimeError: not today",
        ),
    ],
)
def test_what_is_no_judge_of_the_users_is_refused_with_exit_code_2(with_own: Path, said: str, problem: str) -> None:
    by_option = CliRunner().invoke(main, ["run", f"--judge={said}", written(with_own)])
    by_file = CliRunner().invoke(main, ["validate", written(with_own, f'judges = ["{said}"]')])

    assert (by_option.exit_code, by_file.exit_code) == (2, 2)
    assert problem in by_option.output
    assert problem in by_file.output


def test_the_command_line_takes_a_judge_of_the_users(with_own: Path) -> None:
    found = CliRunner().invoke(main, ["run", "--judge", "own_judges:TooMany", written(with_own, rank=7)])

    assert found.exit_code == 1
    assert "  judge too-many: rank 0, step 1, program.py:12 in train" in found.output.splitlines()


def test_a_launch_takes_a_judge_from_beside_its_script(with_own: Path) -> None:
    plan, _ = parsed(["--judge", "own_judges:TooMany", str(with_own / "program.py"), "--judge"])

    assert not isinstance(plan.judges, bool)
    assert [getattr(each, "name", each) for each in plan.judges] == ["too-many"]
    with pytest.raises(LaunchError, match="no module 'nowhere'"):
        parsed(["--judge=nowhere:A", str(with_own / "program.py")])


def test_python_takes_a_judge_by_its_name(with_own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(with_own)

    result = simdist.run(grouped(spoilt), world_size=3, judges=["own_judges:TooMany"])

    assert [found.judge for found in result.findings] == ["too-many"]


def test_judges_keep_no_value_of_a_variable_alive() -> None:
    def train() -> list[str]:
        dist.init_process_group("gloo")
        weight = nn.Parameter(torch.ones(2))
        bar: object = torch.ones(2)
        died: list[str] = []
        weakref.finalize(bar, died.append, "the first bar")
        weight.sum().backward()  # type: ignore[no-untyped-call]
        dist.all_reduce(weight.grad)
        torch.optim.SGD([weight]).step()
        bar = None
        return list(died)

    result = simdist.run(train, world_size=2, judges=True)

    assert result.values == [["the first bar"]] * 2
