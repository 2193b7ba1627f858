"""Each rank imports the user's modules for itself: its changes of them are its own, and gone after the world."""

from __future__ import annotations

import builtins
import importlib
import importlib._bootstrap
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from simdist.errors import ArgumentError
from simdist.process import Sharing
from simdist.result import RunResult
from tests.warm import Interpreters

PROGRAM = """
    import builtins, importlib, inspect, io, logging, os, sys, typing
    import torch
    import torch.distributed as dist
    from . import helper
    from .helper import REGISTRY, Color, Failure, Point

    COUNT = 0
    GROUP = None

    def rank():
        return int(os.environ["RANK"])

    def meet():
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        dist.barrier()

    def count():
        global COUNT
        COUNT += 1
        meet()
        COUNT += 1
        return COUNT

    def group_in_a_global():
        global GROUP
        meet()
        GROUP = dist.new_group([0, 1])
        meet()
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=GROUP)
        return tensor.item()

    def class_attribute():
        Point.made += 1 + rank()
        meet()
        return Point.made

    def registry():
        REGISTRY.append(rank())
        meet()
        return list(REGISTRY)

    def cache():
        helper.cached.cache_clear()
        value = helper.cached()
        meet()
        return value, helper.cached()

    def patched_builtin():
        said = []
        builtins.print = lambda *words: said.append(words)
        meet()
        print("one", rank())
        return said

    def lock_over_a_barrier():
        with helper.LOCK:
            meet()
        return helper.LOCK.locked()

    def level():
        logging.getLogger("of.program").setLevel(logging.DEBUG if rank() == 0 else logging.ERROR)
        meet()
        return logging.getLogger("of.program").getEffectiveLevel(), logging.getLogger("of.program").isEnabledFor(20)

    def handlers():
        stream = io.StringIO()
        logging.basicConfig(stream=stream, format=f"{rank()}: %(message)s", level="INFO", force=True)
        meet()
        logging.info("hello")
        return stream.getvalue()

    def objects_through_pickle():
        meet()
        found = [None, None]
        dist.all_gather_object(found, Point(rank(), Color.RED))
        return [type(each) is Point and each.color is Color.RED for each in found]

    def saved_and_loaded():
        meet()
        buffer = io.BytesIO()
        torch.save(Point(rank(), Color.BLUE), buffer)
        buffer.seek(0)
        return type(torch.load(buffer, weights_only=False)) is Point

    def introspection():
        meet()
        hints = typing.get_type_hints(Point)
        mine = inspect.getmodule(count) is sys.modules[__name__]
        return hints["color"] is Color, mine, "COUNT += 1" in inspect.getsource(count)

    def reloaded():
        global COUNT
        COUNT = 5
        importlib.reload(sys.modules[__name__])
        meet()
        return COUNT, importlib.import_module(__name__) is sys.modules[__name__]

    def late_import():
        meet()
        from . import late
        meet()
        return late.RANK, late is sys.modules[f"{__package__}.late"]

    def returns_objects():
        return Point(rank(), Color.RED), [Color.BLUE], {"key": (Point, count)}

    def raises():
        try:
            raise Failure("first")
        except Failure as error:
            raise Failure("second") from error

    def attribute_of_a_module():
        helper.NEW = rank()
        meet()
        return helper.NEW
"""
HELPER = """
    import dataclasses, enum, functools, os, threading

    REGISTRY = []
    LOCK = threading.Lock()

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    class Failure(Exception):
        pass

    @dataclasses.dataclass
    class Point:
        x: int
        color: "Color"

    Point.made = 0

    @functools.cache
    def cached():
        return os.environ["RANK"]
"""
# An import that parks: all ranks must be inside it at the same time.
LATE = """
    import os
    import torch.distributed as dist
    dist.barrier()
    RANK = int(os.environ["RANK"])
"""
NAME = "isolated_program"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[ModuleType]:
    """A user's package, imported by the host."""
    folder = tmp_path / NAME
    folder.mkdir()
    files = {"__init__": "", "main": PROGRAM, "helper": HELPER, "late": LATE}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module(f"{NAME}.main")
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


def run(function: Callable[..., Any], **settings: Any) -> RunResult:
    return simdist.run(function, world_size=2, **({"isolate": True} | settings))


# The results of two processes that import for themselves. The second value is True if the ranks of a world that shares
# modules return something else.
CASES: dict[str, tuple[list[Any], bool]] = {
    "count": ([2, 2], True),
    "group_in_a_global": ([2.0, 2.0], True),
    "class_attribute": ([1, 2], True),
    "registry": ([[0], [1]], True),
    "cache": ([("0", "0"), ("1", "1")], True),
    "patched_builtin": ([[("one", 0)], [("one", 1)]], True),
    "lock_over_a_barrier": ([False, False], False),
    "level": ([(10, True), (40, False)], True),
    "handlers": (["0: hello\n", "1: hello\n"], True),
    "objects_through_pickle": ([[True, True], [True, True]], False),
    "saved_and_loaded": ([True, True], False),
    "introspection": ([(True, True, True), (True, True, True)], False),
    "reloaded": ([(0, True), (0, True)], False),
    "late_import": ([(0, True), (1, True)], False),
    "attribute_of_a_module": ([0, 1], True),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_leave_in_modules_what_is_theirs(name: str, program: ModuleType) -> None:
    result = run(getattr(program, name))

    result.raise_for_failure()
    assert result.values == CASES[name][0]


@pytest.mark.parametrize("name", [name for name, (_, shared) in CASES.items() if shared])
def test_without_isolation_it_is_one_for_all(name: str, program: ModuleType) -> None:
    before = builtins.print, vars(logging.getLogger("of.program")) | {}, list(logging.root.handlers), logging.root.level
    try:
        assert run(getattr(program, name), isolate=False).values != CASES[name][0]
    finally:
        builtins.print = before[0]
        vars(logging.getLogger("of.program")).update(before[1])
        logging.root.handlers[:] = before[2]
        logging.root.setLevel(before[3])


def test_the_host_keeps_what_it_had(program: ModuleType) -> None:
    helper = sys.modules[f"{NAME}.helper"]
    before = (
        dict(sys.modules),
        list(sys.meta_path),
        builtins.print,
        importlib._bootstrap._get_module_lock,  # type: ignore[attr-defined]
        vars(logging.Logger).copy(),
        {name: vars(logging.getLogger(name)).copy() for name in ("", "of.program")},
    )

    for name in CASES:
        run(getattr(program, name))

    after = (
        {name: module for name, module in sys.modules.items() if name in before[0]},
        list(sys.meta_path),
        builtins.print,
        importlib._bootstrap._get_module_lock,  # type: ignore[attr-defined]
        vars(logging.Logger).copy(),
        {name: vars(logging.getLogger(name)).copy() for name in ("", "of.program")},
    )
    for states in (before[-1], after[-1]):
        for state in states.values():
            state.pop("_cache")
    assert after == before
    assert f"{NAME}.late" not in sys.modules
    assert (program.COUNT, program.GROUP, helper.REGISTRY, helper.Point.made) == (0, None, [], 0)
    assert not hasattr(helper, "NEW")


def test_each_life_imports_anew(program: ModuleType) -> None:
    def body() -> int:
        count = int(program.count())
        if program.os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("the first time")
        return count

    assert run(body, max_restarts=1).values == [2, 2]


def test_what_comes_back_is_of_the_hosts_classes(program: ModuleType) -> None:
    point, colors, held = run(program.returns_objects).values[1]

    assert type(point) is program.Point
    assert point == program.Point(1, program.Color.RED)
    assert colors == [program.Color.BLUE]
    assert held == {"key": (program.Point, program.count)}


def test_what_is_raised_is_of_the_hosts_classes(program: ModuleType) -> None:
    error = run(program.raises).ranks[0].exception

    assert error is not None
    assert type(error) is program.Failure
    assert type(error.__cause__) is program.Failure
    assert error.args == ("second",)


def test_a_nested_function_keeps_its_closure_and_has_modules_of_the_rank(program: ModuleType) -> None:
    log: list[int] = []

    def body() -> bool:
        log.append(program.count())
        return sys.modules[NAME + ".main"] is program

    assert run(body).values == [True, True]
    assert log == [2, 2]
    assert program.COUNT == 0


@pytest.mark.parametrize("what", ["share", "isolate"])
def test_the_user_may_choose_otherwise(what: str, program: ModuleType) -> None:
    if what == "share":
        assert run(program.registry, share=[NAME]).values[0] == [0, 1]
        program.REGISTRY.clear()
    else:
        sharing = Sharing(isolate=["json"])
        assert sharing.isolates("json.decoder")
        assert not Sharing().isolates("json.decoder")


def test_spawned_processes_import_for_themselves(program: ModuleType) -> None:
    context = simdist.spawn(program_of_spawn, args=(NAME,), nprocs=2, join=False)

    assert context is not None
    assert context.join()
    assert context.result is not None
    assert context.result.values == [[0], [1]]
    assert sys.modules[f"{NAME}.helper"].REGISTRY == []


def program_of_spawn(rank: int, name: str) -> list[int]:
    registry: list[int] = importlib.import_module(f"{name}.helper").REGISTRY
    registry.append(rank)
    return registry


def test_the_program_itself_is_imported_as_spawn_does(tmp_path: Path, interpreters: Interpreters) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        textwrap.dedent("""
        import os, sys
        import simdist

        SEEN = []

        def main():
            SEEN.append(os.environ["RANK"])
            assert sys.modules["__main__"] is sys.modules["__mp_main__"]
            return SEEN, __name__

        if __name__ == "__main__":
            print(simdist.run(main, world_size=2, isolate=True).values, SEEN, sys.modules["__mp_main__"].main is main)
        """)
    )

    done = interpreters.run([sys.executable, str(file)])

    assert (done.stdout, done.stderr) == ("[(['0'], '__mp_main__'), (['1'], '__mp_main__')] [] True\n", "")


def test_libraries_that_keep_a_rank_are_imported_by_each(interpreters: Interpreters, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    needs = {"reads_flags": "absl-py", "writes_logs": "loguru"}
    tops = {
        "fairscale": "fairscale",
        "mmengine": "mmengine",
        "pytorch-ignite": "ignite",
        "monai": "monai",
        "absl-py": "absl",  # alone: what requires it is shared
        "loguru": "loguru",
        "prometheus-client": "prometheus_client",
        "other": "other",
        **{name: name for name in needs},
    }
    for distribution, top in tops.items():
        about = installed / f"{top}-1.dist-info"
        about.mkdir(parents=True)
        needed = f"Requires-Dist: {needs[top]}\n" if top in needs else ""
        (about / "METADATA").write_text(f"Name: {distribution}\n{needed}\n")
        (about / "RECORD").write_text(f"{top}/__init__.py,,\n")
        (installed / top).mkdir()
        (installed / top / "__init__.py").write_text("")
    program = f"""
        from simdist.process import Sharing
        print([name for name in {tuple(tops.values())} if not Sharing().isolates(name)])
    """

    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = interpreters.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, anew=["simdist"])

    assert (done.stdout, done.stderr) == ("['other', 'reads_flags']\n", "")


@pytest.mark.parametrize("name", ["torch", "numpy", "json", "simdist", "pytest", "builtins", "networkx", "_pytest"])
def test_what_all_share(name: str) -> None:
    assert not Sharing().isolates(name)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"isolate": 3}, "isolate: expected True or False, or a sequence of names of modules, found the number 3"),
        (
            {"isolate": "accelerate"},
            "isolate: expected True or False, or a sequence of names of modules, found the text",
        ),
        ({"isolate": ["a.b"]}, "isolate[0]: 'a.b' is a submodule; only whole packages can be isolated: write 'a'"),
        ({"share": ["no name"]}, "share[0]: 'no name' is not the name of a module"),
    ],
)
def test_bad_names_are_reported(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        simdist.run(print, world_size=1, **settings)

    assert text in str(caught.value)


COMPILED = """
import json
import simdist

def main():
    import json, os
    library = json
    library.before = os.environ["RANK"]
    import matplotlib.ft2font as compiled  # pybind11 makes a metaclass while it is loaded
    library.after = compiled.FT2Font.left = os.environ["RANK"]
    return library.before, library.after, compiled.FT2Font.left

if __name__ == "__main__":
    values = simdist.run(main, world_size=2, isolate=True).values
    print(values, sorted(vars(json).keys() & {"before", "after"}))
"""


def test_a_rank_may_load_compiled_classes_with_a_metaclass_of_their_own(
    interpreters: Interpreters, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "loads.py").write_text(COMPILED)

    done = interpreters.run([sys.executable, str(tmp_path / "loads.py")])

    assert done.returncode == 0, done.stderr
    assert done.stdout == "[('0', '0', '0'), ('1', '1', '1')] []\n"


EXTENSION = """
    import os, sys, time
    from importlib.machinery import ExtensionFileLoader, ModuleSpec
    from types import ModuleType

    import simdist

    def main():
        if os.environ["RANK"] == "0":  # what the first import of an extension module leaves
            loader = ExtensionFileLoader("compiled", "/installed/compiled.so")
            made = sys.modules["compiled"] = ModuleType("compiled")
            vars(made)["__spec__"] = ModuleSpec("compiled", loader, origin="/installed/compiled.so")
            sys.modules["compiled.inner"] = ModuleType("compiled.inner")
            sys.modules["compiled.inner.most"] = ModuleType("compiled.inner.most")
            sys.modules["stand_in.inner"] = ModuleType("stand_in.inner")
        time.sleep(1)
        return [name in sys.modules for name in ("compiled.inner", "compiled.inner.most", "stand_in.inner")]

    if __name__ == "__main__":
        print(simdist.run(main, world_size=2, isolate=True).values)
"""


def test_modules_that_an_extension_makes_are_there_for_all(interpreters: Interpreters, tmp_path: Path) -> None:
    (tmp_path / "extends.py").write_text(textwrap.dedent(EXTENSION))

    done = interpreters.run([sys.executable, str(tmp_path / "extends.py")])

    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[True, True, True], [True, True, False]]\n"


def without_its_path() -> tuple[bool, bool]:
    """Delete the lists of places and finders of modules on rank 1; both ranks then wait for each other."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        del sys.path, sys.meta_path, sys.path_hooks
    gone = not hasattr(sys, "path")
    dist.barrier()
    return gone, bool(sys.path)


def test_a_rank_that_deletes_its_path_takes_nothing_from_others() -> None:
    """The host keeps it, too. The rank goes on without, as a process does until it imports something new."""
    before = list(sys.path)
    assert run(without_its_path).values == [(False, True), (True, False)]
    assert sys.path == before


def test_a_users_module_that_loads_itself_on_first_use_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = """
        from importlib import import_module
        from types import ModuleType

        class Lazy(ModuleType):  # as TensorFlow's and PyTorch Geometric's
            def __init__(self, local, name):
                self.local = local
                super().__init__(name)

            def __getattr__(self, item):
                module = import_module(self.__name__)
                self.__dict__.update(module.__dict__)
                return getattr(module, item)

        json = Lazy("json", "json")

        def main():
            return json.dumps([json.local])
    """
    (tmp_path / "lazily.py").write_text(textwrap.dedent(lazy))
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> Any:
        return importlib.import_module("lazily").main()

    assert run(program).values == ['["json"]'] * 2


def frames_of_a_failed_import(name: str) -> list[str]:
    try:
        __import__(name)
    except (ImportError, ValueError) as error:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return []


@pytest.mark.parametrize("fails", ["raise ValueError", "import module_that_is_not_there"])
def test_a_failed_import_has_the_traceback_of_a_real_one(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_outer.py").write_text("import failing_inner\n")
    (tmp_path / "failing_inner.py").write_text(fails + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    real = frames_of_a_failed_import("failing_outer")

    simulated = run(frames_of_a_failed_import, args=("failing_outer",)).values

    assert simulated == [real, real]
    assert real.count("<module>") == 2
