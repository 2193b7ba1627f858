"""A share of `tools/shared_state.py`: all changes of ranks to torch's modules are known, and it finds new ones."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tools import shared_state
from tools._shared_state_programs import PROGRAMS
from tools.shared_state import main, reason_for, seen_by_all, written_by

_SHARE = [
    *("collectives", "messages", "ddp", "comm_debug_mode", "autograd", "saving", "flags", "meshes", "elastic"),
    *("functional_optimizers", "sharding_rules", "planned_checkpoints", "compiled_shapes"),
]


def _seen() -> None:
    for name in ("planned_checkpoints", "compiled_shapes"):
        PROGRAMS[name]()
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # torch's warnings about itself
@pytest.mark.usefixtures("small_heap")
def test_what_ranks_leave_and_see_in_torch_is_known_to_be_harmless() -> None:
    """All programs at once: a look at all of torch takes longer than most programs. The tool names the program."""
    left = written_by(*(PROGRAMS[name] for name in _SHARE))
    seen = seen_by_all(_seen)

    assert {place: change for place, change in (left | seen).items() if reason_for(place) is None} == {}


@pytest.fixture
def few_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the looks skip what the test does not change: a look at all of torch takes longer than the rest."""
    monkeypatch.setattr(shared_state, "_WHOLE", ("torch.distributed.", "torch.serialization.", "torch.utils."))


def _leaves() -> None:
    torch.distributed.left = getattr(torch.distributed, "left", 0) + 1  # type: ignore[attr-defined]
    torch.serialization._package_registry.append((0, None, None))  # type: ignore[arg-type]


@pytest.mark.usefixtures("few_modules", "small_heap")
def test_what_ranks_leave_in_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "left", 0, raising=False)
    monkeypatch.setattr(torch.serialization, "_package_registry", list(torch.serialization._package_registry))

    found = written_by(_leaves)

    assert found["torch.distributed.left"].startswith("3 is 5")
    assert found["torch.serialization._package_registry"].startswith("4 entries new")
    assert [reason_for(place) for place in found] == [None, None]


def _entry_for_a_while() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        torch.utils.left.append(object())  # type: ignore[attr-defined]


@pytest.mark.usefixtures("few_modules")
def test_what_one_rank_writes_for_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils, "left", [], raising=False)

    found = seen_by_all(_entry_for_a_while)

    assert found["torch.utils.left"] == "for all ranks: 1 entries new, 0 gone, of 1"


@pytest.mark.usefixtures("few_modules", "small_heap")
def test_the_tool_ends_with_0_where_all_is_known_and_refuses_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages"]) == 0
    assert "places written by ranks" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        main(["massages"])
    assert refused.value.code == 2
    assert "no program is called massages" in capsys.readouterr().err
