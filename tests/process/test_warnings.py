"""Each rank has its own warning filters."""

from __future__ import annotations

import copyreg
import importlib
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from tests.c10d.worlds import values
from tests.warm import Interpreters


def rank() -> int:
    import os

    return int(os.environ["RANK"])


def test_ranks_that_catch_warnings_at_once_catch_their_own() -> None:
    def catches() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            time.sleep(1 + rank())
            warnings.warn(f"of rank {rank()}", stacklevel=1)
            time.sleep(3)
        return [str(warning.message) for warning in caught]

    assert values(catches, 3) == [["of rank 0"], ["of rank 1"], ["of rank 2"]]


def test_a_filter_that_a_rank_sets_is_neither_for_others_nor_for_the_host() -> None:
    def filters() -> str:
        if rank() == 1:
            warnings.simplefilter("error")
        time.sleep(1)
        try:
            warnings.warn("x", UserWarning, stacklevel=1)
        except UserWarning:
            return "raised"
        return "passed"

    before = list(warnings.filters)
    with pytest.warns(UserWarning, match="x"):
        result = simdist.run(filters, world_size=3)

    assert result.values == ["passed", "raised", "passed"]
    assert list(warnings.filters) == before


def test_ranks_inherit_the_hosts_filters() -> None:
    def warns() -> None:
        warnings.resetwarnings()
        warnings.filterwarnings("ignore")
        warnings.warn("not heard", stacklevel=1)

    def inherits() -> None:
        warnings.warn("heard", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simdist.run(warns, world_size=2).ok
        result = simdist.run(inherits, world_size=2)

    assert [type(each.exception) for each in result.ranks] == [UserWarning, UserWarning]


def test_what_is_left_open_is_gone_with_its_world() -> None:
    def leaves_open() -> None:
        caught: Any = warnings.catch_warnings(record=True)
        caught.__enter__()
        warnings.simplefilter("error")

    before = (warnings.filters, warnings.showwarning, list(warnings.filters))
    simdist.run(leaves_open, world_size=2)

    assert (warnings.filters, warnings.showwarning, list(warnings.filters)) == before


def test_what_a_module_does_to_the_interpreter_at_its_import_stays_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers_at_import.py").write_text(
        "import copyreg, warnings\n"
        "class OwnWarning(UserWarning): ...\n"
        "class Odd: ...\n"
        "warnings.simplefilter('once', OwnWarning)\n"
        "copyreg.pickle(Odd, lambda odd: (str, ('odd',)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    filters, ways = list(warnings.filters), dict(copyreg.dispatch_table)

    def seen() -> tuple[str, int]:
        time.sleep(rank())
        module: Any = importlib.import_module("registers_at_import")
        ours = [each for each in warnings.filters if each[2] is module.OwnWarning]
        return pickle.loads(pickle.dumps(module.Odd())), len(ours)

    try:
        for _ in range(2):  # only the first world imports it
            result = simdist.run(seen, world_size=3)

            result.raise_for_failure()
            assert result.values == [("odd", 1)] * 3
        module = sys.modules["registers_at_import"]
        assert pickle.loads(pickle.dumps(module.Odd())) == "odd"
        assert module.OwnWarning in [each[2] for each in warnings.filters]
    finally:
        sys.modules.pop("registers_at_import", None)
        kept: Any = warnings.filters
        kept[:] = filters
        copyreg.dispatch_table.clear()
        copyreg.dispatch_table.update(ways)


def warns_of_its_place() -> None:
    for _ in range(3):
        warnings.warn("of one place", UserWarning, stacklevel=1)


def shown_by_ranks(body: Callable[[], None], world_size: int = 2) -> list[str]:
    """Return the warnings that ranks show, all in one list, without pytest's own handling of warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        simdist.run(body, world_size=world_size).raise_for_failure()
    return [str(each.message) for each in caught]


def test_each_rank_of_each_world_is_warned_once_for_a_place(interpreters: Interpreters) -> None:
    code = (
        "import simdist; from tests.process.test_warnings import warns_of_its_place\n"
        "for _ in range(2):\n"
        "    result = simdist.run(warns_of_its_place, world_size=2)\n"
        "    print(result.digest, [rank.stderr.count('UserWarning: of one place') for rank in result.ranks])\n"
    )
    done = interpreters.run([sys.executable, "-c", code])

    first, second = done.stdout.splitlines()
    assert first.endswith("[1, 1]")
    assert second == first


def test_warnings_of_the_host_are_no_matter_to_ranks_nor_theirs_to_it() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warns_of_its_place()
        result = simdist.run(warns_of_its_place, world_size=2)
        warns_of_its_place()

    result.raise_for_failure()
    assert [str(each.message) for each in caught] == ["of one place"] * 4  # two of the host, and one of each rank


def test_a_rank_that_changes_its_filters_is_warned_again_others_are_not() -> None:
    def warns() -> None:
        warns_of_its_place()
        if rank() == 1:
            warnings.simplefilter("default")
        time.sleep(1)
        warns_of_its_place()

    assert shown_by_ranks(warns, 3) == ["of one place"] * 4


@pytest.mark.parametrize(
    ("action", "shown"), [("default", 2), ("module", 1), ("once", 1), ("always", 4), ("ignore", 0)]
)
def test_what_is_shown_of_two_places_is_what_a_process_shows(action: str, shown: int) -> None:
    def warns() -> None:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        for _ in range(2):
            warnings.warn("one", UserWarning, stacklevel=1)
            warnings.warn("one", UserWarning, stacklevel=1)

    assert shown_by_ranks(warns) == ["one"] * 2 * shown


def test_a_forked_child_knows_what_its_parent_was_warned_of() -> None:
    import multiprocessing

    def warns() -> None:
        warns_of_its_place()
        child = multiprocessing.get_context("fork").Process(target=warns_of_its_place)
        child.start()
        child.join()

    assert shown_by_ranks(warns) == ["of one place"] * 2


def lines_of(body: Callable[[], None], *, judges: bool = False) -> list[tuple[str, int]]:
    """Return file and line, counted from the body's first line, of one rank's warnings."""

    def catches() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            body()
        return [(Path(each.filename).name, each.lineno - body.__code__.co_firstlineno) for each in caught]

    result = simdist.run(catches, world_size=1, judges=judges)
    result.raise_for_failure()
    return result.values[0]


def test_the_line_of_a_warning_is_the_programs_in_a_signals_handler() -> None:
    def warns() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: warnings.warn("x", stacklevel=2))
        os.kill(os.getpid(), signal.SIGUSR1)

    assert lines_of(warns) == [("test_warnings.py", 2)]


def test_the_line_of_a_warning_is_the_programs_with_judges() -> None:
    class Longer(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(2))

        def __len__(self) -> int:
            return 1

    def warns() -> None:
        loader = torch.utils.data.DataLoader(Longer(), batch_size=None)
        assert len(loader) == 1
        for _ in loader:
            pass

    assert lines_of(warns, judges=True) == lines_of(warns) == [("test_warnings.py", 3)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no such option")
def test_prefixes_that_a_warning_skips_are_skipped() -> None:
    names: dict[str, Callable[[str], None]] = {}
    text = "import warnings\ndef warn(prefix): warnings.warn('x', skip_file_prefixes=(prefix,))"
    exec(compile(text, "of_a_library.py", "exec"), names)

    def warns() -> None:
        names["warn"]("of_a_library.py")
        names["warn"]("of_a_")
        names["warn"]("nowhere")

    assert lines_of(warns) == [("test_warnings.py", line) for line in (1, 2, 3)]


def test_a_rank_may_take_its_time_to_show_a_warning() -> None:
    def program() -> float:
        warnings.showwarning = lambda *_, **__: time.sleep(1)
        warnings.simplefilter("always")
        warnings.warn("slowly", stacklevel=1)
        return time.monotonic()

    assert simdist.run(program, world_size=2, stall_s=10).values == [1.0, 1.0]
