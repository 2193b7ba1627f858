"""Installed libraries that keep a rank's number or groups: each rank imports them for itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from simdist.process.modules._rank_readers import kept_for_all, reads_rank, stores_rank
from tests.warm import Interpreters

CONSTANT = """
import os
RANK = int(os.getenv("RANK", -1))
"""
CACHE = """
import functools
import torch.distributed as dist

@functools.cache
def rank():
    return dist.get_rank()
"""
PROGRAM = """
import simdist

def body():
    import torch.distributed as dist
    import above, aside, cached, compiled, keeps
    dist.init_process_group("gloo")
    return keeps.RANK, above.RANK, cached.rank(), aside.RANK, compiled.RANK

if __name__ == "__main__":
    print(simdist.run(body, world_size=2, isolate=True).values)
"""


def distribute(folder: Path, top: str, source: str, *requires: str, also: str = "") -> None:
    """Install a library of one module."""
    about = folder / f"{top}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("".join([f"Name: {top}\n", *(f"Requires-Dist: {each}\n" for each in requires)]))
    (about / "RECORD").write_text(f"{top}/__init__.py,,\n{also}")
    (folder / top).mkdir()
    (folder / top / "__init__.py").write_text(source)


def test_each_rank_has_its_number_in_a_library_that_keeps_it(interpreters: Interpreters, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    distribute(installed, "keeps", CONSTANT, "torch (>=2.0)")
    distribute(installed, "above", "from keeps import RANK", "keeps")
    distribute(installed, "cached", CACHE, "torch")
    distribute(installed, "aside", CONSTANT, 'torch ; extra == "gpu"')
    distribute(installed, "compiled", CONSTANT, "torch", also="compiled/_C.abi3.so,,\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = interpreters.run([sys.executable, str(program)], env=environment, anew=["simdist"])

    assert (done.stdout, done.stderr) == ("[(0, 0, 0, 0, 0), (1, 1, 1, 0, 1)]\n", "")


@pytest.mark.parametrize(
    "source",
    [
        'RANK = int(os.environ["RANK"])',
        "rank = environ.get('LOCAL_RANK')",
        'if "SLURM_PROCID" in os.environ:\n    rank = 1',
        'class Logger:\n    rank = os.getenv("RANK")',
        'def log(rank=os.getenv("RANK")):\n    pass',
        'def find():\n    return os.environ["RANK"]\ntry:\n    RANK = find()\nexcept KeyError:\n    RANK = 0',
        'for name in ("LOCAL_RANK", "RANK"):\n    print(os.environ.get(name))',
    ],
)
def test_a_module_that_reads_the_rank_when_it_is_imported(source: str) -> None:
    assert reads_rank(source.encode())


@pytest.mark.parametrize(
    "source",
    [
        "SIZE = int(os.environ['WORLD_SIZE'])",
        'def find():\n    return os.environ["RANK"]',
        'class Logger:\n    def rank(self):\n        return os.getenv("RANK")',
        'find = lambda: os.environ["RANK"]',
        'def find():\n    return os.environ["RANK"]\nif __name__ == "__main__":\n    print(find())',
        'NAMES = ["RANK"]',
        'RANK = os.environ["RANK"',
    ],
)
def test_a_module_that_does_not(source: str) -> None:
    assert not reads_rank(source.encode())


@pytest.mark.parametrize(
    "source",
    [
        "@functools.cache\ndef rank():\n    return dist.get_rank()",
        "@lru_cache(maxsize=None)\ndef alone():\n    return dist.get_world_size() == 1",
        "@functools.lru_cache\ndef rank():\n    return int(os.environ['RANK'])",
        "class Mesh:\n    @cache()\n    def rank(self):\n        return dist.get_rank()",
        "GROUP = None\ndef begin():\n    global GROUP\n    GROUP = dist.new_group([0, 1])",
        "GROUPS = {}\ndef begin():\n    GROUPS['data'] = torch.distributed.new_group([0, 1])",
        "state = State()\ndef begin():\n    state.mesh = init_device_mesh('cpu', (2,))",
        "class State:\n    group = None\ndef begin():\n    State.group = dist.new_group([0, 1])",
        "class State:\n    @classmethod\n    def begin(cls):\n        cls.rank = dist.get_rank()",
    ],
)
def test_a_module_that_stores_the_rank_or_a_group(source: str) -> None:
    assert stores_rank(source.encode())


@pytest.mark.parametrize(
    "source",
    [
        "def rank():\n    return dist.get_rank()",
        "@functools.cache\ndef names():\n    return []\ndef rank():\n    return dist.get_rank()",
        "class Mesh:\n    @cached_property\n    def rank(self):\n        return dist.get_rank()",
        "state = 1\ndef begin(state):\n    state.rank = dist.get_rank()",
        "state = 1\ndef begin():\n    state = State()\n    state.rank = dist.get_rank()",
        "class Mesh:\n    def begin(self):\n        self.rank = dist.get_rank()",
        "COUNT = 0\ndef count():\n    global COUNT\n    COUNT += 1",
        "@functools.cache\ndef rank():\n    return dist.get_rank(",
    ],
)
def test_a_module_that_stores_none(source: str) -> None:
    assert not stores_rank(source.encode())


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("@functools.cache\ndef rank():\n    return dist.get_rank()", ["the cache of rank()"]),
        ("GROUPS = {}\ndef begin():\n    GROUPS['data'] = GROUPS[1] = new_group([0])", ["GROUPS['data']", "GROUPS[1]"]),
        ("state = State()\ndef begin():\n    state.mesh = init_device_mesh('cpu', (2,))", ["state.mesh"]),
        ("GROUP = None\ndef begin():\n    global GROUP\n    GROUP = dist.new_group([0, 1])", []),
        ("class State:\n    @classmethod\n    def begin(cls):\n        cls.rank = dist.get_rank()", []),
        ("class State:\n    group = None\ndef begin():\n    State.group = dist.new_group([0, 1])", []),
        ("state = 1\ndef begin(state):\n    state.rank = dist.get_rank()", []),
        ("def rank():\n    return dist.get_rank()", []),
        ("def rank(:", []),
    ],
)
def test_what_ranks_that_share_a_module_find_of_each_other(source: str, kept: list[str]) -> None:
    assert kept_for_all(source.encode()) == kept
