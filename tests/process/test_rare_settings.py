"""Settings in modules that few programs import: each rank has its own, or the result names them."""

from __future__ import annotations

import asyncio
import gettext
import mimetypes
import multiprocessing
import os
import resource
import sys
import tracemalloc
import urllib.request
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values


def limits() -> list[object]:
    """Return a rank's view of its limits, and that of a child that it forks."""
    any_sequence: Any = iter((100, 200))
    resource.setrlimit(resource.RLIMIT_NOFILE, any_sequence)
    found: list[object] = [resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
    bad: Any = ((300, 200), (100, 300), (100,))
    for limit in bad:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        except ValueError as error:
            found.append(str(error))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    child.start()
    found.append(answers.get())
    child.join()
    return found


def test_limits_are_on_paper_and_judged_as_the_system_does() -> None:
    assert values(limits, 1)[0] == [
        100,
        "current limit exceeds maximum limit",
        "not allowed to raise maximum limit",
        "expected a tuple of 2 integers",
        100,
    ]


def test_ranks_have_more_files_open_together_than_one_process_may() -> None:
    def body() -> tuple[int, int]:
        dist.init_process_group("gloo")
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(150)]
        dist.barrier()
        for file in files:
            os.close(file)
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 500, before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, few)
    try:
        assert values(body, 4) == [few] * 4
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_ranks_know_of_types_of_files_is_there_for_their_children_too() -> None:
    def types() -> list[str | None]:
        dist.init_process_group("gloo")
        mimetypes.add_type(f"left/rank{dist.get_rank()}", ".left")
        dist.barrier()
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def look() -> None:
            found = mimetypes.guess_type("file.left")[0]
            mimetypes.add_type("left/child", ".left")
            answers.put(found)

        child = context.Process(target=look)
        child.start()
        child.join()
        return [answers.get(), mimetypes.guess_type("file.left")[0], mimetypes.types_map[".left"]]

    assert values(types, 2) == [["left/rank0"] * 3, ["left/rank1"] * 3]
    assert mimetypes.guess_type("file.left") == (None, None)


def test_a_world_leaves_the_first_look_at_types_of_files_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Any = mimetypes
    monkeypatch.setattr(known, "_db", None)
    monkeypatch.setattr(known, "inited", False)

    simdist.run(lambda: mimetypes.add_type("left/left", ".left"), world_size=2).raise_for_failure()

    assert (known._db, known.inited) == (None, False)


@pytest.mark.filterwarnings("ignore:.*olicy.* is deprecated:DeprecationWarning")  # from Python 3.14 on
def test_a_rank_has_the_policy_for_loops_that_it_has_set() -> None:
    class Policy(asyncio.DefaultEventLoopPolicy):
        """A program's own policy."""

    def loops() -> str:
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            asyncio.set_event_loop_policy(Policy())
        dist.barrier()
        asyncio.run(asyncio.sleep(1))
        return type(asyncio.get_event_loop_policy()).__name__

    before = vars(asyncio.events)["_event_loop_policy"]
    with simdist.shared_writes() as written:
        result = simdist.run(loops, world_size=2)

    result.raise_for_failure()
    assert result.values[1] == "Policy" != result.values[0]
    assert vars(asyncio.events)["_event_loop_policy"] is before
    assert written.lines() == []


def test_tracing_of_memory_ends_with_the_world_unless_the_host_began_it() -> None:
    result = simdist.run(tracemalloc.start, world_size=1)

    assert not tracemalloc.is_tracing()
    (text,) = result.shared_state
    assert text.endswith("put back when the world ended")
    tracemalloc.start(3)
    try:
        simdist.run(tracemalloc.stop, world_size=1).raise_for_failure()
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traceback_limit() == 3
    finally:
        tracemalloc.stop()


def test_what_a_module_does_with_readline_when_imported_is_not_reported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    readline: Any = pytest.importorskip("readline")
    (tmp_path / "completes.py").write_text("import readline\nreadline.set_completer(None)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> ModuleType:
        import completes  # type: ignore[import-not-found]

        module: ModuleType = completes
        return module

    imported = simdist.run(program, world_size=1)
    called = simdist.run(lambda: readline.set_completer(None), world_size=1)
    del sys.modules["completes"]

    imported.raise_for_failure()
    assert imported.shared_state == ()
    assert called.shared_state[0].startswith("readline's history or settings, set by rank 0 at test_rare_settings.py")


def test_a_variable_of_a_library_that_a_function_sets_is_the_rank_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "_opener", None)  # another test may have opened an address

    def settings() -> list[object]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank == 0:
            gettext.textdomain("mine")
            torch.hub.set_dir("/mine")
            urllib.request.install_opener(urllib.request.build_opener())
        dist.barrier()
        return [gettext.textdomain(), torch.hub.get_dir() == "/mine", vars(urllib.request)["_opener"] is None]

    before = gettext.textdomain(), torch.hub.get_dir(), vars(urllib.request)["_opener"]

    assert values(settings, 2) == [["mine", True, False], ["messages", False, True]]
    assert (gettext.textdomain(), torch.hub.get_dir(), vars(urllib.request)["_opener"]) == before


def test_a_setting_that_a_program_writes_itself_stays_its_own() -> None:
    """Under isolation a program owns all attributes of modules that it sets; this one must not be kept twice."""

    def program() -> bool:
        dist.init_process_group("gloo")
        own = f"/of/{dist.get_rank()}"
        torch.hub.set_dir("/by/its/function")
        dist.barrier()
        torch.hub._hub_dir = own
        dist.barrier()
        return torch.hub.get_dir() == own

    before = torch.hub.get_dir()
    assert simdist.run(program, world_size=2, isolate=True).values == [True, True]
    assert torch.hub.get_dir() == before
