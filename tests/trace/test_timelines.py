from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simdist.errors import SimdistError
from simdist.result import Event
from simdist.trace import Trace, notes_of, save, short_message, timeline, trace_of
from simdist.trace._axis import TimeAxis
from simdist.trace._notes import placed
from simdist.values import rank_text
from tests.trace import runs
from tools import timelines

GLOO = "RuntimeError: [/__w/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:40002: "


@pytest.mark.parametrize("scenario", timelines.DRAWN)
def test_the_pictures_of_the_pages_are_what_is_drawn_now(scenario: str, tmp_path: Path) -> None:
    timelines.DRAWN[scenario](scenario, tmp_path / "drawn.svg")

    shown = (timelines.FOLDER / f"{scenario}.svg").read_bytes()
    assert (tmp_path / "drawn.svg").read_bytes() == shown, "run tools/timelines.py, and look at the pictures"


def test_a_picture_is_a_png_of_twice_1200_pixels(tmp_path: Path) -> None:
    save(timeline(trace_of(runs.crashed())), tmp_path / "run.png")

    data = (tmp_path / "run.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 2400


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimdistError, match=r"run.pdf: a timeline is written as .svg or .png"):
        save(timeline(trace_of(runs.stuck())), tmp_path / "run.pdf")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(SimdistError, match=r"pip install 'simdist\[plot\]'"):
        timeline(trace_of(runs.stuck()))


def test_drawing_changes_no_setting_of_the_host() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)

    timeline(trace_of(runs.crashed()))

    assert dict(matplotlib.rcParams) == before


def test_an_empty_trace_is_a_picture(tmp_path: Path) -> None:
    save(timeline(Trace((), (), 0, 0)), tmp_path / "run.svg")

    assert (tmp_path / "run.svg").stat().st_size > 0


def test_the_notes_report_the_fault_and_what_it_did_to_the_others() -> None:
    notes = [(note.text, note.ranks, note.tone) for note in notes_of(trace_of(runs.crashed()))]

    assert notes[0] == ("rank 1 dies of SIGKILL", (1,), "fault")
    assert [(ranks, tone) for _, ranks, tone in notes[1:]] == [((0, 2), "failure")]
    assert notes[1][0].startswith("ranks 0, 2: RuntimeError: ")


def test_the_notes_report_a_deadlock_as_a_cycle() -> None:
    notes = notes_of(trace_of(runs.stuck()))

    assert [note.tone for note in notes] == ["deadlock", "failure"]
    assert notes[0].text == "deadlock: rank 0 \u2192 rank 1 \u2192 rank 0"
    assert notes[1].text == "ranks 0, 1: RuntimeError: Timed out waiting 30 min for recv operation to complete"


def test_no_two_notes_touch() -> None:
    faults = tuple(
        Event(time, "fault", 0, {"text": "rank 0 does something that takes many words"}) for time in range(5)
    )
    notes = notes_of(Trace((), faults, 0, 40))
    axis = TimeAxis([0, 40], left=0, right=1000)

    found, lost = placed(notes, axis, 0, 1000, rows=7)

    assert lost == 0
    assert sorted(note.row for note in found) == [0, 1, 2, 3, 4]
    assert placed(notes, axis, 0, 1000, rows=2)[1] == 3


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            GLOO + "Connection reset by peer. This is typically caused by",
            "RuntimeError: Read error: Connection reset by peer",
        ),
        ("ValueError: bad\nmore", "ValueError: bad"),
        ("", "failed"),
        ("E: " + "x" * 99, "E: " + "x" * 72 + "\u2026"),
    ],
)
def test_a_message_without_what_only_maintainers_want(message: str, text: str) -> None:
    assert short_message(message) == text


@pytest.mark.parametrize(("ranks", "text"), [([2], "rank 2"), ([0, 1, 3], "ranks 0, 1, 3"), (range(6), "ranks 0-5")])
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert rank_text(ranks) == text
