"""A share of `python tools/leaks.py`, which runs hundreds of worlds of every kind."""

from __future__ import annotations

import json
import logging

import pytest

from tools._leaks_programs import KINDS
from tools.leaks import leaks_of

SHARE = ["threads", "programs", "children", "devices", "disk, power lost"]


@pytest.mark.filterwarnings("ignore")
def test_worlds_leave_nothing_behind_but_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def leaving(index: int) -> set[str]:
        calls.append(index)
        if len(calls) > 1:  # after the first look
            monkeypatch.setattr(json, "dumps", lambda *_: "")
        return {"planted"}

    monkeypatch.setitem(KINDS, "leaving", leaving)
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's keep records, and with them what was raised

    left, ended = leaks_of([*SHARE, "leaving"], len(SHARE) + 1, before=1, room_mib=200)

    assert [line.partition(":")[0] for line in left] == ["json.dumps()", "json.dumps"]
    assert {how for counts in ended.values() for how in counts} == {
        "returned",
        "exited",
        "exited and returned",
        "planted",
    }
