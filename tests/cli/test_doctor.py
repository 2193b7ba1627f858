"""`simdist doctor`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from click.testing import Result

from simdist import native
from simdist.cli import _doctor, _doctor_probes
from simdist.cli._doctor_probes import ask
from tests.warm import Interpreters

Simdist = Callable[..., Result]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The answers of the checks that run in separate processes; all work until a test changes them."""
    said = {"ranks": "", "devices": ""}
    monkeypatch.setattr(_doctor, "ask", said.__getitem__)
    monkeypatch.setattr(_doctor, "_namespaces", lambda: "")  # the real one opens sockets, if only inside a namespace
    return said


def test_two_ranks_run_in_a_process_of_their_own(interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor_probes, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": interpreters.run}))

    assert ask("ranks") == ""


def test_a_crash_is_an_answer() -> None:
    assert ask("crash") == "the process that tried it was ended by SIGABRT"


def test_it_is_one_page(simdist: Simdist, answers: dict[str, str]) -> None:
    result = simdist("doctor")

    assert result.exit_code == 0
    for word in ("Python", "torch", "compiler", "TUN", "cores", "batch scheduling", "namespaces"):
        assert any(line.startswith(word) for line in result.output.splitlines()), word
    assert result.output.splitlines()[-1] == "simulated ranks run here"
    assert len(result.output.splitlines()) < 60


def test_without_the_main_job_it_fails_and_says_why(simdist: Simdist, answers: dict[str, str]) -> None:
    answers["ranks"] = "StallError: nothing moves"

    result = simdist("doctor")

    assert result.exit_code == 1
    assert "off: StallError: nothing moves" in result.output
    assert result.output.splitlines()[-1] == "simulated ranks do not run here"


def test_what_is_off_says_what_turns_it_on(simdist: Simdist, answers: dict[str, str]) -> None:
    answers["devices"] = "torch is built otherwise"

    reported = json.loads(simdist("doctor", "--json").output)

    assert reported["ok"] is True
    assert set(reported) == {"ok", "facts", "features"}
    off = {each["name"]: each for each in reported["features"] if not each["on"]}
    assert off["virtual CUDA devices"]["why_off"] == "torch is built otherwise"
    assert off["kernels of virtual devices in C++"]["why_off"] == "there are no virtual devices"
    assert all(each["turned_on_by"].endswith(".") for each in off.values())


@pytest.mark.parametrize(
    ("why", "missing", "reported"),
    [
        ("", "there is no C++ compiler", ""),
        ("they are not built", "", "they are not built"),
        ("they are not built", "there is no C++ compiler", "they are not built, and there is no C++ compiler"),
    ],
)
def test_native_folds_are_on_or_say_what_they_lack(
    simdist: Simdist, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch, why: str, missing: str, reported: str
) -> None:
    monkeypatch.setattr(native, "why_off", lambda: why)
    monkeypatch.setattr(native, "why_not_buildable", lambda: missing)
    monkeypatch.delenv(native.VARIABLE, raising=False)

    features = json.loads(simdist("doctor", "--json").output)["features"]

    (folds,) = [each for each in features if each["name"] == "native folds of collectives"]
    assert (folds["on"], folds["why_off"]) == (not reported, reported)


def test_an_unknown_version_of_python_is_reported(
    simdist: Simdist, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "PYTHONS", ("1.0",))

    reported = json.loads(simdist("doctor", "--json").output)

    assert reported["facts"]["Python"].endswith("not among the versions that simdist was tried on: 1.0")


def test_an_unknown_version_of_torch_is_reported(
    simdist: Simdist, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "TRIED", {"1.0.0": "nothing"})

    reported = json.loads(simdist("doctor", "--json").output)

    assert "not among the versions that simdist was tried on: 1.0.0" in reported["facts"]["torch"]


def test_a_question_that_raises_is_a_reason() -> None:
    def raises() -> str:
        raise RuntimeError("no torch")

    assert _doctor._answer(raises) == "RuntimeError: no torch"


@pytest.mark.parametrize("words", [["--jsn"], ["file"]])
def test_bad_arguments_are_bad_input(simdist: Simdist, words: list[str]) -> None:
    assert simdist("doctor", *words).exit_code == 2
