"""The types of `**settings` name the keywords of each relative of `simdist.run`, with the types in `simdist.run`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import simdist
from simdist import settings
from simdist.errors import ArgumentError
from simdist.testing._plugin._settings import MARKER, StartWords, WorldWords

RELATIVES: dict[Callable[..., Any], Any] = {
    simdist.agree: settings.AgreeSettings,
    simdist.check_determinism: settings.SettingsOfRun,
    simdist.explore: settings.ExploreSettings,
    simdist.fuzz: settings.FuzzSettings,
    simdist.resume: settings.ResumeSettings,
    simdist.run_many: settings.RunManySettings,
    simdist.sweep: settings.SweepSettings,
}
NAMES = [function.__name__ for function in RELATIVES]


def types_of(typed: Any) -> dict[str, str]:
    """Return the types of all bases, as they are written."""
    return {name: each.__forward_arg__ for name, each in typed.__annotations__.items()}


@pytest.mark.parametrize("typed", RELATIVES.values(), ids=NAMES)
def test_keywords_have_the_types_of_run(typed: Any) -> None:
    written = inspect.signature(simdist.run).parameters

    assert types_of(typed) == {name: written[name].annotation for name in types_of(typed)}


@pytest.mark.parametrize("function", RELATIVES, ids=NAMES)
def test_a_function_takes_the_keywords_of_its_type_and_no_others(function: Callable[..., Any]) -> None:
    own = inspect.signature(function).parameters
    keywords = set(types_of(RELATIVES[function]))
    others = {name for name in inspect.signature(simdist.run).parameters if name not in own and name != "fn"}

    assert own["settings" if "settings" in own else "arguments"].annotation == f"Unpack[{RELATIVES[function].__name__}]"
    assert {name for name in others if problem_of(function, name) == problem_of(simdist.run, name)} == keywords


def problem_of(function: Callable[..., Any], name: str) -> str:
    """Return the error for a keyword with a value that `simdist.run` refuses; it differs if the keyword is unknown."""
    needed: dict[str, Any] = {"layouts": [1]} if function is simdist.agree else {"world_size": 2}
    with pytest.raises(ArgumentError) as caught:
        function(nothing, **{**needed, name: object()})
    lines = [re.sub("^(simdist.[a-z_]+: )?", "", line.strip()) for line in str(caught.value).splitlines()]
    return next(line for line in lines if line.startswith(f"{name}: "))


def nothing(*_: object) -> None:
    """The program of a rank."""


def test_the_fixture_takes_the_keywords_of_the_marker() -> None:
    assert set(types_of(StartWords)) == set(MARKER) - {"seeds"}
    assert set(types_of(WorldWords)) == {*types_of(StartWords), "seed", "argv"}
