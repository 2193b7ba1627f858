"""The settings of a run are defined once, in `simdist.settings.RunSettings`; all ways to start a run have the same."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import simdist
from simdist.errors import ArgumentError
from simdist.scenario import Plan
from simdist.settings import SETTINGS, RunSettings
from simdist.testing._plugin._settings import MARKER, Settings
from simdist.world import WorldSpec

FIELDS = {field.name: field for field in dataclasses.fields(RunSettings)}
DEFAULTS = {name: field.default for name, field in FIELDS.items()}


def _parameters(function: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def test_each_setting_has_a_spec() -> None:
    assert set(FIELDS) <= set(SETTINGS)


def test_run_takes_every_setting_with_its_default() -> None:
    parameters = _parameters(simdist.run)
    own = {"fn", "args", "kwargs", "replay"}

    assert {name: default for name, default in parameters.items() if name not in own} == {
        name: inspect.Parameter.empty if default is dataclasses.MISSING else default
        for name, default in DEFAULTS.items()
    }


def test_a_world_has_the_settings_and_no_defaults_of_its_own() -> None:
    assert issubclass(WorldSpec, RunSettings)
    assert set(FIELDS).isdisjoint(vars(WorldSpec).get("__annotations__", {}))


@pytest.mark.parametrize("name", sorted(set(MARKER) & set(FIELDS)))
def test_the_marker_has_the_defaults_of_a_run(name: str) -> None:
    own = {"world_size": 4, "policy": None}  # None: depends on the seed

    assert getattr(Settings(), name) == own.get(name, DEFAULTS[name])


def test_spawn_takes_the_defaults_of_a_run() -> None:
    parameters = _parameters(simdist.spawn)

    assert {name: default for name, default in parameters.items() if name in FIELDS} == {
        **{name: DEFAULTS[name] for name in ("backend", "seed", "faults", "share")},
        "isolate": True,  # as in torch.multiprocessing's spawn
    }


def test_a_scenarios_plan_has_what_a_file_can_say_under_the_same_names() -> None:
    plan = {field.name for field in dataclasses.fields(Plan)}

    assert set(FIELDS) - plan == {"argv", "record_results", "echo", "progress"}


def test_more_hosts_than_there_are_are_refused() -> None:
    with pytest.raises(ArgumentError, match="min_hosts: 2 is more than the cluster's 1 host"):
        simdist.run(print, world_size=1, min_hosts=2)
