from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from simdist.scenario import load, run_scenario
from simdist.scenario._run_folders import run_folder


def test_a_folder_is_at_the_same_path_in_every_run_and_gone_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with run_folder("save: all", 3, str(tmp_path)) as folder:
            assert folder == str(tmp_path / "simdist-save_all-3")
            assert list(Path(folder).iterdir()) == []
            (Path(folder) / "shard").write_text("")
    assert list(tmp_path.iterdir()) == []


def test_runs_at_one_time_have_folders_of_their_own(tmp_path: Path) -> None:
    with run_folder("save", 0, str(tmp_path)) as first, run_folder("save", 0, str(tmp_path)) as second:
        assert (Path(first).name, Path(second).name) == ("simdist-save-0", "simdist-save-0-2")
        with run_folder("save", 1, str(tmp_path)) as other:
            assert Path(other).name == "simdist-save-1"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_has_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "simdist-save-0"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "shard").write_text("old")

    with run_folder("save", 0, str(tmp_path)) as folder:
        assert folder == str(left)
        assert list(left.iterdir()) == []


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_what_is_no_folder_is_left_alone(what: str, tmp_path: Path) -> None:
    there, elsewhere = tmp_path / "simdist-save-0", tmp_path / "elsewhere"
    elsewhere.mkdir()
    there.write_text("mine") if what == "a file" else there.symlink_to(elsewhere)

    with run_folder("save", 0, str(tmp_path)) as folder:
        assert Path(folder).name == "simdist-save-0-2"
    assert there.is_symlink() or there.read_text() == "mine"


@pytest.mark.parametrize("again", [False, True])
def test_a_program_may_remove_its_folder_and_make_it_again(again: bool, tmp_path: Path) -> None:
    with run_folder("save", 0, str(tmp_path)) as folder:
        Path(folder).rmdir()
        if again:
            Path(folder).mkdir()
        with run_folder("save", 0, str(tmp_path)) as other:
            assert Path(other).name == "simdist-save-0-2"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_a_folder_of_another_process_is_left_alone_until_it_ends(tmp_path: Path) -> None:
    holds = """
        import sys
        from simdist.scenario._run_folders import run_folder
        with run_folder("save", 0, sys.argv[1]):
            print(flush=True)
            input()
    """
    words = [sys.executable, "-c", textwrap.dedent(holds), str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with run_folder("save", 0, str(tmp_path)) as folder:
            assert Path(folder).name == "simdist-save-0-2"
        other.kill()
    with run_folder("save", 0, str(tmp_path)) as folder:
        assert Path(folder).name == "simdist-save-0"


def test_a_program_that_reports_where_it_saves_has_one_digest(tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(
        textwrap.dedent("""
            import torch.distributed as dist

            def main(folder):
                dist.init_process_group("gloo")
                place = [folder if dist.get_rank() == 0 else None]
                dist.broadcast_object_list(place)
                return place[0]
        """)
    )
    (tmp_path / "saves.toml").write_text('world_size = 2\n[workload]\ntarget = "saves:main"\nargs = ["{tmp}"]\n')

    first, second = (run_scenario(load(str(tmp_path / "saves.toml"))).result for _ in range(2))

    assert first.values == second.values
    assert first.digest == second.digest
