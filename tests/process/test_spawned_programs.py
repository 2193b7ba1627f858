"""A rank's program as `__main__`, and what spawned processes see of it."""

from __future__ import annotations

import enum
import functools
import os
import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import simdist
from tests.warm import Interpreters


class Settings:
    """An object that a script passes to the processes that it spawns."""

    def __init__(self) -> None:
        self.kind = Kind.SMALL
        self.itself = self


class Kind(enum.Enum):
    SMALL = 1


class Point(NamedTuple):
    x: int


class Bag(dict[str, Any]):
    pass


class Stubborn:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("never")


def same(thing: Any) -> Any:
    return thing


def what_is_handed(rank: int, given: Settings, things: dict[str, Any], call: Any, results: list[Any]) -> None:
    of_rank = {
        "object": type(given) is Settings and given.kind is Kind.SMALL and given.itself is given,
        "tuple": type(things["tuple"]) is Point,
        "dictionary": type(things["bag"]) is Bag and things["bag"]["settings"] is given,
        "class and function": things["called"] == (Settings, what_is_handed),
        "in a partial": type(call()) is Settings,
        "what pickle can't make": type(things["stubborn"]) is Stubborn,
        "pickles": len(pickle.dumps((given, things["tuple"], things["bag"], call))) > 0,
    }
    results.append((rank, of_rank, things["tensor"]))


def test_spawned_processes_are_handed_objects_of_their_own_classes() -> None:
    results: list[Any] = []
    given, tensor = Settings(), torch.ones(1)
    things: dict[str, Any] = {
        "tuple": Point(1),
        "bag": Bag(settings=given),
        "called": (Settings, what_is_handed),
        "tensor": tensor,
    }
    things["stubborn"] = Stubborn()

    simdist.spawn(what_is_handed, (given, things, functools.partial(same, given), results), nprocs=2)

    assert [rank for rank, _, _ in results] == [0, 1]
    for _, of_rank, handed in results:
        assert [name for name, held in of_rank.items() if not held] == ["what pickle can't make"]
        assert handed is not tensor
        assert handed.data_ptr() == tensor.data_ptr()
    assert type(given) is Settings


SPAWNING = """
    import multiprocessing
    import os
    import sys

    GUARDED = __name__ == "__main__"

    def child(queue):
        main = sys.modules["__main__"]
        queue.put((os.getcwd(), sys.path[-1], main.__name__, main is sys.modules["__mp_main__"], main.WORD))

    def spawns(*_):
        os.chdir("/usr")
        sys.path.append("/nowhere")
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        process.join()
        print(process.exitcode, *queue.get())
"""
STARTS = {
    "run": "print(simdist.run(spawning.spawns, world_size=1, isolate=True).ranks[0].stdout)",
    "spawn": "simdist.spawn(spawning.spawns)",
    "command": "sys.exit(entry())",
}


def printed_by(interpreters: Interpreters, folder: Path, program: str, *arguments: str) -> str:
    """Return the output of a program in a folder with the modules that it imports."""
    file = folder / "program.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(folder)!r})\n{program}")
    done = interpreters.run([sys.executable, str(file), *arguments], cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("start", STARTS)
def test_a_rank_whose_program_is_another_file_spawns_as_a_process_does(
    start: str, interpreters: Interpreters, tmp_path: Path
) -> None:
    (tmp_path / "spawning.py").write_text(textwrap.dedent(SPAWNING))
    (tmp_path / "world.toml").write_text('title = "t"\nworld_size = 1\n[workload]\ntarget = "spawning:spawns"\n')
    imports = "import simdist, spawning\nfrom simdist.__main__ import entry\nWORD = 'w'\n"

    printed = printed_by(
        interpreters,
        tmp_path,
        f"{imports}if __name__ == '__main__':\n    {STARTS[start]}\n",
        *("run", "world.toml", "--show-output"),
    )

    assert "0 /usr /nowhere __mp_main__ True w\n" in printed


LOOKING = """
    import sys

    def looks():
        main = sys.modules["__main__"]
        before = main.__name__, main.__file__[-10:], hasattr(main, "__no__"), "COUNT" in vars(main)
        return before, main.COUNT, "COUNT" in vars(main), type(main).__name__, hasattr(main, "nothing")
"""


def test_the_program_is_main_and_imported_when_its_names_are_asked_for(
    interpreters: Interpreters, tmp_path: Path
) -> None:
    (tmp_path / "looking.py").write_text(textwrap.dedent(LOOKING))

    printed = printed_by(
        interpreters,
        tmp_path,
        "import simdist, looking\nCOUNT = 5\nif __name__ == '__main__':\n"
        "    print(simdist.run(looking.looks, world_size=1, isolate=True).values)\n",
    )

    assert printed == "[(('__mp_main__', 'program.py', False, False), 5, True, 'module', False)]\n"


def test_a_program_that_cannot_be_imported_is_reported_as_an_attribute(
    interpreters: Interpreters, tmp_path: Path
) -> None:
    (tmp_path / "looking.py").write_text(textwrap.dedent(LOOKING))

    printed = printed_by(
        interpreters,
        tmp_path,
        "import looking, simdist\n"
        "print(simdist.run(looking.looks, world_size=1, isolate=True).ranks[0].exception)\nCOUNT = 5\n",
    )

    assert printed.startswith("the program, which holds 'COUNT', can't be imported: SimdistError('another simulated")


def test_children_of_a_module_that_is_the_program_import_it_in_its_package(
    interpreters: Interpreters, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "values.py").write_text("VALUE = 3\n")
    (package / "train.py").write_text(
        textwrap.dedent("""
        import multiprocessing
        from .values import VALUE

        def child():
            print(__name__, VALUE, __package__)

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
            print(process.exitcode)
        """)
    )

    words = [sys.executable, "-m", "simdist", "launch", "--nproc-per-node", "1", "-m", "package.train"]
    done = interpreters.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["__mp_main__ 3 package", "0"]
