"""`tools/hunt.py` finds operators of torch that give wrong numbers on DTensors, and reports no others."""

from __future__ import annotations

import pytest

from tools._hunt_operators import layouts, operators
from tools.hunt import Finding, hunt, main, on_real_processes

FEW = ("first on dimension 1", "all on the first dimension", "first a partial avg", "first on dimensions 1 and 0")


@pytest.fixture(autouse=True)
def few_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hunts try one layout of each kind."""
    monkeypatch.setattr("tools.hunt.layouts", lambda: [layout for layout in layouts() if layout.name in FEW])


def found(name: str, ranks: int = 2, samples: int = 2) -> dict[str, Finding]:
    return {finding.layout.name: finding for finding in hunt([name], ranks, samples)}


def test_a_mean_over_uneven_shards_is_found() -> None:
    finding = found("nn.functional.mse_loss")["all on the first dimension"]
    (difference,) = finding.differences
    assert (difference.shapes, difference.arguments, difference.what) == ("(5,) (5,)", "mean", "output 0")
    assert difference.how.startswith("off by ")
    assert not finding.part_ways


def test_wrong_gradients_and_ranks_that_part_ways_are_found() -> None:
    findings = found("nn.functional.adaptive_avg_pool2d", ranks=4, samples=3)
    assert {difference.what for difference in findings["first on dimensions 1 and 0"].differences} == {"gradient 0"}
    finding = findings["first on dimension 1"]
    assert "ranks do not agree on collective" in finding.part_ways
    assert "ranks part ways: " in finding.line()


@pytest.mark.parametrize("name", ["add", "nn.functional.dropout", "nn.functional.l1_loss", "rand_like"])
def test_operators_that_are_right_or_draw_numbers_are_left_alone(name: str) -> None:
    assert list(hunt([name], 2, 2)) == []


def test_operators_without_set_results_are_not_tried() -> None:
    names = operators()
    assert "add" in names
    assert not {"empty_like", "new_empty"} & set(names)
    assert len(names) == len(set(names))
    assert len({layout.name for layout in layouts()}) == len(layouts())


def test_the_command_counts_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cosine_embedding_loss", "--ranks", "2", "--samples", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "nn.functional.cosine_embedding_loss, first on dimension 1: 1 x, output 0 of (5, 5) (5, 5)"
    )
    assert lines[-1] == f"1 operators in {len(FEW)} layouts: {len(lines) - 1} findings"
    assert main(["acosh", "--ranks", "2", "--samples", "1"]) == 0


@pytest.mark.parametrize("arguments", [["--ranks", "3"], ["--samples", "0"], ["no_such_operator"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.real
def test_real_processes_show_the_same() -> None:
    finding = found("nn.functional.mse_loss")["all on the first dimension"]
    assert on_real_processes(finding, 2, 2) == "the same on real processes"
