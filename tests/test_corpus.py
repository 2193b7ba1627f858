"""The corpus of real bugs: each is found blind and named rightly, and nothing is found in the fixed programs."""

from __future__ import annotations

import re

import pytest

from tests.corpus import ENTRIES, Entry
from tests.warm import Interpreters
from tools import _corpus_shrinking
from tools.corpus import main, rows_of

# One entry for each finder, and one that fails without judges; `tools/corpus.py` runs all.
FAST = (
    "one_rank_skips_the_step_on_overflow",
    "sampler_never_hears_of_the_epoch",
    "all_labels_of_a_rank_are_ignored",
    "nobody_waits_for_the_sum",
    "the_buffer_of_a_send_is_used_again",
    "gradients_are_summed_and_not_averaged",
    "the_group_is_forgotten",
    "index_is_built_by_rank_0_and_nobody_waits",
    "address_of_the_earlier_life_is_read",
    "scheduler_is_not_saved",
)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.name in FAST], ids=lambda entry: entry.name)
def test_a_bug_is_found_and_its_fixed_program_left_alone(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.corpus.SCHEDULES", 0)  # which are a column of the table only
    (row,) = rows_of([entry])

    assert row.ok, row.line()


def test_every_entry_has_a_name_of_its_own_and_a_public_source() -> None:
    names = [entry.name for entry in ENTRIES]

    assert len(set(names)) == len(names) >= 60
    assert [
        e.source for e in ENTRIES if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|MPI Bugs Initiative, .+", e.source)
    ] == []


def test_most_entries_are_silent() -> None:
    assert sum(entry.is_silent for entry in ENTRIES) >= 25


def test_the_tool_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["nobody_waits_for", "--seeds", "1"])

    assert code == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "1 programs, 1 of them silent: found with judges off 0, on 1, on other schedules 1; rank and line right for "
        "1 of the 1 that have to name one; false alarms 0"
    )


def test_the_smallest_run_of_a_bug_is_repeated_by_its_token_and_its_test(
    capsys: pytest.CaptureFixture[str], interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_corpus_shrinking, "subprocess", interpreters)

    code = main(["--shrink", "nobody_waits_for"])

    found, total = capsys.readouterr().out.splitlines()
    assert found.endswith("6 ranks -> 2")
    assert total == "1 programs: nothing can be left out, and token and test fail alike, for 1"
    assert code == 0
