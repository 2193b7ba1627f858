"""A share of `python tools/leaks.py`, which runs hundreds of worlds of every kind."""

from __future__ import annotations

import json
import warnings
from collections import Counter

from tests.warm import Interpreters
from tools._leaks_programs import KINDS
from tools.leaks import leaks_of

SHARE = ["threads", "programs", "children", "devices", "disk, power lost", "shards", "operators"]
SHARE += ["futures_and_works", "devices_without_a_store"]


def share_of_leaks() -> tuple[list[str], dict[str, Counter[str]]]:
    """Return what `leaks_of` finds with an additional kind, which plants a leak; for a process that ends then."""
    calls: list[int] = []

    def leaving(index: int) -> set[str]:
        calls.append(index)
        if len(calls) > 1:  # after the first look
            vars(json)["dumps"] = lambda *_: ""
        return {"planted"}

    KINDS["leaving"] = leaving
    warnings.simplefilter("ignore")
    return leaks_of([*SHARE, "leaving"], len(SHARE) + 1, before=1, room_mib=200)


def test_worlds_leave_nothing_behind_but_what_is_planted(interpreters: Interpreters) -> None:
    # In its own process: a look visits everything in it, and pytest has many objects.
    left, ended = interpreters.call("1", share_of_leaks)

    assert [line.partition(":")[0] for line in left] == ["json.dumps()", "json.dumps"]
    assert {how for counts in ended.values() for how in counts} == {
        "returned",
        "exited",
        "exited and returned",
        "planted",
    }
