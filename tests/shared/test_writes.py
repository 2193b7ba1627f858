"""`shared_writes`: it names, after a run, the changes of ranks that all ranks and the next world see."""

from __future__ import annotations

import base64
import calendar
import collections
import concurrent.futures.process
import contextlib
import copyreg
import csv
import ctypes
import decimal
import functools
import json
import json.encoder
import keyword
import linecache
import logging
import multiprocessing.context
import pickle
import reprlib
import signal
import string
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import SemLock
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist import shared_writes
from simdist.shared import _writes
from simdist.shared._harmless import is_harmless

logger = logging.getLogger("tests.shared_writes")


class Own:
    """Replaces a function."""


# Changes by ranks that share their modules, and how they are reported.
NAMED: dict[str, tuple[Callable[[], Any], str]] = {
    "attribute of a module": (lambda: setattr(json, "left", 1), "json.left: added"),
    "attribute of a module of constants": (lambda: setattr(string, "left", 1), "string.left: added"),
    "attribute of a module with caches": (lambda: setattr(linecache, "left", 1), "linecache.left: added"),
    "attribute of a module that ranks have replaced": (lambda: setattr(threading, "left", 1), "threading.left: added"),
    "function of a module": (lambda: mock.patch("json.dumps", Own).start(), "json.dumps: set"),
    "entry of a module's table": (
        lambda: json.encoder.ESCAPE_DCT.update(x="y"),
        "json.encoder.ESCAPE_DCT: 1 entry added",
    ),
    "order of a module's list": (lambda: vars(keyword)["kwlist"].reverse(), "keyword.kwlist: entries replaced"),
    "attribute of a class": (
        lambda: setattr(json.JSONEncoder, "item_separator", ";"),
        "json.encoder.JSONEncoder.item_separator: set",
    ),
    "attribute of torch": (lambda: setattr(torch.nn.functional, "left", 1), "torch.nn.functional.left: added"),
    "class of torch": (lambda: setattr(torch.nn.Linear, "left", 1), "torch.nn.modules.linear.Linear.left: added"),
    "deleted name": (lambda: delattr(collections, "ChainMap"), "collections.ChainMap: deleted"),
    "context of new threads": (lambda: setattr(decimal.DefaultContext, "prec", 9), "decimal.DefaultContext: set"),
    "level of a logger": (lambda: logger.setLevel(9), "logging: level of 'tests.shared_writes': set"),
}


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Undo what the test leaves on purpose."""
    words = list(keyword.kwlist)
    chain, dumps, separator, level = collections.ChainMap, json.dumps, json.JSONEncoder.item_separator, logger.level
    try:
        yield
    finally:
        collections.ChainMap, json.dumps = chain, dumps  # type: ignore[misc]
        json.JSONEncoder.item_separator = separator
        json.encoder.ESCAPE_DCT.pop("x", None)
        vars(keyword)["kwlist"][:] = words
        mock.patch.stopall()
        for owner in (json, linecache, string, threading, torch.nn.functional, torch.nn.Linear):
            if hasattr(owner, "left"):
                delattr(owner, "left")
        logger.setLevel(level)
        decimal.DefaultContext.prec = 28


@pytest.fixture
def small_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the looks skip the libraries that are imported already: torch's modules take most of the time."""
    libraries = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    monkeypatch.setattr(_writes, "is_harmless", lambda name: name.partition(".")[0] in libraries or is_harmless(name))


@pytest.mark.usefixtures("small_look")
def test_names_that_a_module_looks_up_late_and_keeps_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    late = types.ModuleType("late_names")

    def look_up(name: str) -> int:
        setattr(late, name, 1)
        return 1

    vars(late).update(__all__=["found"], __getattr__=look_up)
    monkeypatch.setitem(sys.modules, "late_names", late)

    def body() -> int:
        return vars(late)["__getattr__"]("found") + late.other  # type: ignore[no-any-return]

    with shared_writes() as written:
        simdist.run(body, world_size=1).raise_for_failure()

    assert written.lines() == ["late_names.other: added"]


@pytest.mark.usefixtures("small_look")
def test_a_module_in_the_place_of_its_stand_in_is_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy: Any = types.ModuleType("lazy_modules")
    vars(lazy).update(csv=object(), backend=object(), chosen=None)
    monkeypatch.setitem(sys.modules, "lazy_modules", lazy)

    def body() -> None:
        lazy.csv = lazy.backend = lazy.chosen = csv

    with shared_writes() as written:
        simdist.run(body, world_size=1).raise_for_failure()

    assert written.lines() == ["lazy_modules.backend: set", "lazy_modules.chosen: set"]


@pytest.mark.usefixtures("small_look")
def test_classes_that_are_equal_to_others_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like `typing._UnionGenericAlias` and `typing.Union`, from Python 3.14 on."""

    class Alike(type):
        def __eq__(cls, other: object) -> bool:
            return isinstance(other, Alike)

        def __hash__(cls) -> int:
            return 1

    module = types.ModuleType("equal_classes")
    for name in ("One", "Other"):
        setattr(module, name, Alike(name, (), {"__module__": module.__name__, name: 1}))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def body() -> None:
        module.Other.added = 1

    with shared_writes() as written:
        simdist.run(body, world_size=1).raise_for_failure()

    assert written.lines() == ["equal_classes.Other.added: added"]


@functools.singledispatch
def json_like(thing: object) -> str:
    """Convert an object: a function that other code may extend."""
    return str(thing)


# Changes by ranks inside the objects that modules hold, how to undo them, and how they are reported.
INSIDE: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "type of a C function's result": (
        lambda: setattr(ctypes.pythonapi.Py_GetVersion, "restype", ctypes.c_char_p),
        lambda: setattr(ctypes.pythonapi.Py_GetVersion, "restype", ctypes.c_int),
        "ctypes.pythonapi.Py_GetVersion: types of results or arguments set",
    ),
    "kind for a generic function": (
        lambda: json_like.register(Own)(len),
        lambda: None,
        "tests.shared.test_writes.json_like.register: called for Own",
    ),
    "table of a class": (
        lambda: vars(pickle)["_Pickler"].dispatch.update({Own: len}),
        lambda: vars(pickle)["_Pickler"].dispatch.pop(Own),
        "pickle._Pickler.dispatch: 1 entry added",
    ),
    "member of an enumeration": (
        lambda: vars(signal.Signals)["_member_map_"].update(LEFT=1),
        lambda: vars(signal.Signals)["_member_map_"].pop("LEFT"),
        "signal.Signals._member_map_: 1 entry added",
    ),
    "attribute of a library's object": (
        lambda: setattr(reprlib.aRepr, "maxlist", 99),
        lambda: setattr(reprlib.aRepr, "maxlist", 6),
        "reprlib.aRepr.maxlist: set",
    ),
    "first day of the week": (
        lambda: calendar.setfirstweekday(6),
        lambda: calendar.setfirstweekday(0),
        "calendar.c._firstweekday: set",
    ),
    "ready context": (
        lambda: setattr(decimal.BasicContext, "prec", 8),
        lambda: setattr(decimal.BasicContext, "prec", 9),
        "decimal.BasicContext: set",
    ),
}


def test_what_ranks_leave_where_all_see_it_is_named() -> None:
    acts = [act for act, _ in NAMED.values()] + [act for act, _, _ in INSIDE.values()]
    reports = [reported for _, reported in NAMED.values()] + [reported for _, _, reported in INSIDE.values()]

    def body() -> None:
        for act in acts:
            act()

    before = ctypes.pythonapi.Py_GetVersion.restype

    simdist.run(len, world_size=1, args=("",))  # the first world imports modules
    with put_back(), shared_writes() as written:
        simdist.run(body, world_size=1).raise_for_failure()
    for _, take_back, _ in INSIDE.values():
        take_back()

    assert written.lines() == sorted(reports)
    assert ctypes.pythonapi.Py_GetVersion.restype is before


def test_an_ordinary_program_leaves_nothing() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        dist.destroy_process_group()

    simdist.run(body, world_size=2)
    with shared_writes() as written:
        simdist.run(body, world_size=2)

    assert written.found == {}


@pytest.mark.usefixtures("small_look")
def test_what_an_imported_module_registers_for_itself_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers.py").write_text(
        "import copyreg, json.encoder, keyword, warnings\n"
        "class Symbol: pass\n"
        "keyword.kwlist.append(Symbol())\n"  # as libraries do with finders and `sys.meta_path`
        "class SymbolWarning(UserWarning): pass\n"
        "copyreg.pickle(Symbol, lambda symbol: 'Symbol')\n"
        "warnings.simplefilter('once', SymbolWarning)\n"
        "warnings.filterwarnings('ignore', 'of Symbol', FutureWarning)\n"
        "json.encoder.ESCAPE_DCT[Symbol] = 'x'\n"
        "json.encoder.ESCAPE_DCT['z'] = 'y'\n"
        "def detect(data): return 'utf-8'\n"
        "json.detect_encoding = json.JSONDecoder.detect = detect\n"  # as torch_geometric sets torch.select
        "def set_late(): json.loads = detect\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("detect_encoding", "loads"):
        monkeypatch.setattr(json, name, getattr(json, name))
    monkeypatch.setattr(json.JSONDecoder, "detect", None, raising=False)
    del json.JSONDecoder.detect  # type: ignore[attr-defined]
    filters = list(warnings.filters)

    def main() -> None:
        import registers  # type: ignore[import-not-found]

        registers.set_late()
        assert registers.Symbol in copyreg.dispatch_table

    with shared_writes() as alone:
        simdist.run(main, world_size=2).raise_for_failure()

    try:
        symbol = sys.modules["registers"].Symbol
        json.encoder.ESCAPE_DCT.pop("z")
        # Of the two entries it is not known what added which.
        assert alone.lines() == ["json.encoder.ESCAPE_DCT: 2 entries added", "json.loads: set"]
        assert symbol in copyreg.dispatch_table
    finally:
        vars(keyword)["kwlist"].pop()
        copyreg.dispatch_table.pop(symbol)
        json.encoder.ESCAPE_DCT.pop(symbol)
        sys.modules.pop("registers")
        warnings.filters[:] = filters  # type: ignore[index]


@pytest.mark.usefixtures("small_look")
def test_what_libraries_change_when_they_are_imported_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    types_of_all = types.ModuleType("_cython_3_2_4")
    monkeypatch.setitem(sys.modules, "_cython_3_2_4", types_of_all)
    contexts: dict[str, object] = vars(multiprocessing.context)["_concrete_contexts"]
    kind: Any = SemLock

    def main() -> None:
        types_of_all.fused_cython_function = types.FunctionType  # type: ignore[attr-defined]
        contexts["loky"] = object()
        kind._make_name = staticmethod(lambda: "/loky")

    with monkeypatch.context() as undone:
        undone.setattr(kind, "_make_name", vars(kind)["_make_name"])
        undone.setitem(contexts, "loky", None)
        del contexts["loky"]
        with shared_writes() as written:
            simdist.run(main, world_size=2).raise_for_failure()

    assert written.found == {}


def test_overloads_that_an_imported_module_declares_are_not_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "overloads.py").write_text(
        "import torch\n"
        "class Doubles(torch.nn.Module):\n"
        "    @torch.jit._overload_method\n"  # as torchvision has some
        "    def forward(self, given: list[torch.Tensor]) -> torch.Tensor:\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def main() -> None:
        import overloads  # type: ignore[import-not-found]  # noqa: F401

    with monkeypatch.context() as undone:
        known: Any = torch._jit_internal
        for name in ("_overloaded_methods", "_overloaded_method_class_fileno"):
            undone.setattr(known, name, dict(getattr(known, name)))
        with shared_writes() as written:
            simdist.run(main, world_size=2).raise_for_failure()
        assert any("overloads" in name for name in known._overloaded_methods)

    del sys.modules["overloads"]
    assert written.lines() == []


@pytest.mark.usefixtures("small_look")
def test_what_the_standard_library_finds_on_first_use_is_not_reported() -> None:
    def main() -> None:
        base64.b32encode(b"x")
        concurrent.futures.process._check_system_limits()

    table = getattr(base64, "_b32tab2", {})  # Python 3.15 has none
    table.clear()
    process: Any = concurrent.futures.process
    process._system_limits_checked = False
    with shared_writes() as written:
        simdist.run(main, world_size=2).raise_for_failure()

    assert written.lines() == []
    assert table or sys.version_info >= (3, 15)
    assert process._system_limits_checked


@pytest.mark.usefixtures("small_look")
def test_another_name_of_what_is_known_to_be_harmless_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "has_names.py").write_text("from sys import modules\nfrom linecache import cache as lines\nOWN = {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import has_names  # type: ignore[import-not-found]

    module: Any = has_names

    def main() -> None:
        module.lines["has_names"] = module.OWN["has_names"] = module.modules["made"] = types.ModuleType("made")

    try:
        with shared_writes() as written:
            simdist.run(main, world_size=2).raise_for_failure()

        assert written.lines() == ["has_names.OWN: 1 entry added"]
    finally:
        del module.lines["has_names"], module.modules["made"], sys.modules["has_names"]
