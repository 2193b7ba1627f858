"""`simdist patches` lists what a world replaces."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from simdist.cli import _patches
from simdist.cli._main import main
from simdist.process import Patched, patched_now


@pytest.fixture(scope="module")
def found() -> dict[str, list[Patched]]:
    return _patches.replaced()


@pytest.fixture(autouse=True)
def _once(found: dict[str, list[Patched]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the worlds once for all tests: they always replace the same names."""
    monkeypatch.setattr(_patches, "replaced", lambda: found)


def patches(*words: str) -> Result:
    return CliRunner().invoke(main, ["patches", *words])


def test_each_name_is_listed_with_how_by_what_and_why() -> None:
    rows = json.loads(patches("--json").stdout)
    names = {f"{row['owner']}.{row['name']}": row for row in rows}

    assert names["time.monotonic"]["how"] == "function"
    assert names["time.monotonic"]["by"] == "simdist.process.stdlib._clock"
    assert names["time.monotonic"]["why"] == "Virtual time behind `time.*` and `datetime`"
    assert names["datetime.datetime.now"]["how"] == "method"
    assert names["torch.distributed.TCPStore"]["how"] == "name"
    assert names["torch.distributed.device_mesh.DeviceMesh._thread_id"]["how"] == "added"
    assert [row for row in rows if not row["by"].startswith("simdist.") or not row["why"]] == []


def test_names_of_devices_are_those_of_worlds_that_have_some() -> None:
    rows = json.loads(patches("torch.cuda", "--json").stdout)

    assert {row["where"] for row in rows} == {"with devices"}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("os.stat", "every world"),
        ("os.fsync", "with a disk"),
        ("torch.autograd.backward", "with judges"),
        ("os.read", "where used"),
        ("os.waitid", "where used"),
        ("torch.cuda.BoolTensor", "with devices"),
    ],
)
def test_each_name_is_listed_with_the_worlds_that_replace_it(name: str, where: str) -> None:
    rows = json.loads(patches(name, "--json").stdout)

    assert {row["where"] for row in rows if f"{row['owner']}.{row['name']}" == name} == {where}


def test_a_part_of_a_name_finds_all_that_contain_it() -> None:
    found = patches("time.monotonic")

    assert found.exit_code == 0
    assert [line.split()[0] for line in found.stdout.splitlines() if line.startswith("time.")] == [
        "time.monotonic",
        "time.monotonic_ns",
    ]
    assert "simdist.process.stdlib._clock: Virtual time" in found.stdout


def test_a_name_that_nothing_replaces_is_an_exit_code() -> None:
    found = patches("json.dumps")

    assert found.exit_code == 1
    assert found.stderr == (
        "no world replaces a name that contains 'json.dumps'; a function may call one that is replaced, try 'json'\n"
    )


def test_names_stay_whole_for_grep() -> None:
    longest = max((f"{row['owner']}.{row['name']}" for row in json.loads(patches("--json").stdout)), key=len)

    assert any(line.startswith(longest) for line in patches(longest).stdout.splitlines())


def test_nothing_is_replaced_outside_worlds() -> None:
    assert patched_now() == []
