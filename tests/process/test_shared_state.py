"""A rank's changes of shared state are kept apart, undone, or named; none is unnoticed."""

from __future__ import annotations

import functools
import gc
import string
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch._C import _distributed_c10d as _c

import simdist
from simdist.process.modules import _attributes
from simdist.process.stdlib._collector import host_froze
from tests.c10d.worlds import values
from tests.process import ways_to_leave_state
from tests.process.ways_to_leave_state import NAMED, WAYS, leave

# State that every world keeps apart or restores, even if ranks share modules.
OF_THE_PROCESS = [
    name
    for name in WAYS
    if name
    in {
        "environment",
        "working folder",
        "file mask",
        "recursion limit",
        "switch interval",
        "digits of an integer",
        "excepthook",
        "collector",
        "thresholds of the collector",
        "flags of the collector",
        "flags of dlopen",
        "largest field",
        "limit of files",
        "time zone",
        "timeout of sockets",
        "locale",
        "disabled logging",
        "class of loggers",
        "class of loggers of the manager",
        "records of logs",
        "extension of pickles",
        "dialect of CSV",
        "dialect of CSV that is gone",
        "type of files",
        "modules for a fork server",
        "interpreter of children",
        "name of a level",
        "filter of warnings",
        "random numbers",
        "pickling by type",
        "signal handler",
        "faulthandler",
    }
]


@pytest.mark.parametrize(
    ("name", "isolate"), [*((name, True) for name in WAYS), *((name, False) for name in OF_THE_PROCESS)]
)
def test_what_a_rank_leaves_is_its_own_and_gone_with_the_world(name: str, isolate: bool) -> None:
    _, look = WAYS[name]
    before = look()

    result = simdist.run(leave, world_size=2, args=(name,), isolate=isolate)

    result.raise_for_failure()
    mine, other = result.values
    assert mine[0] != mine[1]
    assert other[0] == other[1]
    assert look() == before
    assert not isolate or result.shared_state == ()


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_what_is_not_kept_apart_is_named(name: str, isolate: bool) -> None:
    _, said = NAMED[name]

    result = simdist.run(leave, world_size=2, args=(name,), isolate=isolate)

    result.raise_for_failure()
    (text,) = result.shared_state
    assert text.startswith(said)
    assert result.summary()["shared_state"] == [text]
    assert not any(getattr(each, "__name__", "") == "left" for each in gc.callbacks)
    assert not host_froze()
    assert not tracemalloc.is_tracing()


def test_lists_of_the_import_system_get_back_what_they_held() -> None:
    path = list(sys.path)

    result = simdist.run(lambda: sys.path.append("/left"), world_size=2)

    assert result.shared_state == ("sys.path, put back when the world ended",)
    assert sys.path == path


@pytest.mark.parametrize("name", ["deterministic algorithms", "print options of torch", "hook of all modules"])
def test_settings_of_torch_end_with_the_world_where_modules_are_shared(name: str) -> None:
    _, look = WAYS[name]
    before = look()

    simdist.run(leave, world_size=2, args=(name,)).raise_for_failure()

    assert look() == before


def test_what_a_rank_sets_stays_its_own_while_others_run() -> None:
    assert values(ways_to_leave_state.turns, 3, isolate=True) == [["set by 0"] * 3, ["set by 1"] * 3, ["abc"] * 3]
    assert not hasattr(string, "left")


def test_what_a_helper_of_torchs_tests_sets_is_its_callers_own() -> None:
    assert values(ways_to_leave_state.patched_by_a_helper_of_torch, 3, isolate=True) == [True] * 3


def test_a_hand_over_sets_nothing_that_both_have_and_no_mocks(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []
    original = _attributes._Kind.put

    def counted(kind: Any, owner: Any, name: str, value: object) -> None:
        put.append(name)
        original(kind, owner, name, value)

    monkeypatch.setattr(_attributes._Kind, "put", counted)
    turns = functools.partial(ways_to_leave_state.turns_of_a_child, put.clear)

    assert values(turns, 1, isolate=True) == [["set by the rank, 1 mock"] * 3]
    assert put == ["left"]  # when the world ends
    assert not hasattr(string, "left")


def test_errors_of_setting_an_attribute_are_pythons_own() -> None:
    result = simdist.run(ways_to_leave_state.refused, world_size=1, isolate=True)

    assert result.values == [
        [
            "cannot set 'left' attribute of immutable type 'int'",
            "readonly attribute",
            "type object 'Left' has no attribute 'missing'",
        ]
    ]


def test_the_functions_that_set_attributes_are_those_of_before() -> None:
    simdist.run(leave, world_size=2, args=("mock",), isolate=True).raise_for_failure()

    assert type(ModuleType.__setattr__).__name__ == "wrapper_descriptor"
    assert type(vars(type)["__setattr__"]).__name__ == "wrapper_descriptor"
    assert type(vars(type(_c.Store))["__setattr__"]).__name__ == "wrapper_descriptor"
    with pytest.raises(TypeError):
        int.left = 1  # type: ignore[attr-defined]


def test_a_child_process_starts_in_the_working_folder_of_its_rank() -> None:
    here = str(Path.cwd())

    result = simdist.run(ways_to_leave_state.folder_of_a_child, world_size=2)

    assert result.values == ["/usr", here]
