"""What a library that all ranks share sets on its loggers while it is imported, it sets for all of them."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.result import RunResult

NAME = "library_with_a_logger"
LIBRARY = f"""
import logging, sys
log = logging.getLogger("{NAME}")
log.setLevel("INFO")
log.propagate = False
for handler in list(log.handlers):
    log.removeHandler(handler)
log.addHandler(logging.StreamHandler(sys.stdout))
"""


@pytest.fixture
def logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The logger of a library that nobody has imported."""
    (tmp_path / f"{NAME}.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    logger = logging.getLogger(NAME)
    yield logger
    sys.modules.pop(NAME, None)
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def say(who: str) -> None:
    importlib.import_module(NAME).log.info("%s", who)


def run(body: Callable[[], Any]) -> RunResult:
    result = simdist.run(body, world_size=2, isolate=True, share=[NAME])
    result.raise_for_failure()
    return result


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_rank_and_child_has_what_the_library_has_set(logger: logging.Logger, method: str) -> None:
    def body() -> None:
        say("rank")
        context: Any = multiprocessing.get_context(method)
        child = context.Process(target=say, args=("child",))
        child.start()
        child.join()

    for _ in range(2):  # the library is imported by one rank of the first world
        assert [each.stdout for each in run(body).ranks] == ["rank\nchild\n"] * 2


def test_what_a_rank_has_set_itself_stays_its_own(logger: logging.Logger) -> None:
    def body() -> tuple[int, int]:
        if os.environ["RANK"] == "1":
            logger.addFilter(lambda record: False)
        say("rank")
        if os.environ["RANK"] == "0":
            logger.setLevel("ERROR")
        say("again")
        return logger.level, len(logger.handlers)

    result = run(body)
    assert [each.stdout for each in result.ranks] == ["rank\n", ""]
    assert result.values == [(logging.ERROR, 1), (logging.INFO, 1)]
    assert (logger.level, len(logger.handlers), logger.filters) == (logging.INFO, 1, [])
