from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import Result

Job = Callable[..., str]
Simdist = Callable[..., Result]
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def test_the_list_shows_each_scenario_of_the_folder(simdist: Simdist) -> None:
    result = simdist("list", SCENARIOS)

    assert result.exit_code == 0
    rows = [line.split()[:4] for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert rows[0] == ["name", "ranks", "backend", "faults"]
    assert [row[0] for row in rows[1:]] == sorted(path.stem for path in SCENARIOS.glob("*.toml"))
    assert ["ddp_crash_resume", "4", "gloo", "1"] in rows
    assert ["deadlock", "2", "gloo", "0"] in rows
    assert "Two ranks receive from each other before either sends" in " ".join(result.stdout.split())


def test_a_broken_file_is_listed_with_its_problem(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    job("total", name="good.toml")
    (tmp_path / "worse.toml").write_text("world_size = \n")

    result = simdist("list", tmp_path)

    assert result.exit_code == 2
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["name", "ranks", "backend", "faults", "title"],
        ["good", "2", "gloo", "0", "a", "test"],
        ["worse", "-", "-", "-", "broken:"],
        ["line", "1,", "column", "14:", "not", "TOML:", "invalid", "value"],
    ]


def test_an_empty_folder_is_no_error(simdist: Simdist, tmp_path: Path) -> None:
    result = simdist("list", tmp_path)

    assert (result.exit_code, result.stdout) == (0, f"no scenario files (*.toml) in {tmp_path}\n")


def test_validate_checks_every_file(job: Job, simdist: Simdist) -> None:
    good, bad, worse = job("total", name="a.toml"), job("totl", name="b.toml"), job("total", "x = 1", name="c.toml")

    result = simdist("validate", bad, good, worse)

    assert result.exit_code == 2
    assert result.stdout == f"{good}: ok\n"
    assert result.stderr.splitlines() == [
        f"{bad}: 1 problem",
        "  workload.target: module 'job' has no function 'totl'; did you mean 'total'?",
        f"{worse}: 1 problem",
        "  workload.x: unknown key; known: target, folder, args, kwargs",
    ]
