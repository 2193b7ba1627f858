"""The table of collectives has all properties of each, and no other file keeps a list of collectives."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import simdist
from simdist.c10d.backends.nccl.kernels._algorithm import _EXECUTE as NCCL_EXECUTES
from simdist.c10d.backends.nccl.kernels._collisions import _KERNELS as NCCL_COLLIDES
from simdist.c10d.calls import IN_PLACE, KERNELS, METHODS, REDUCTIONS, RENAMED, RINGS, ROOTED, TABLE, Collective
from simdist.c10d.engine._data import _EXECUTE as ENGINE_EXECUTES
from simdist.c10d.surface._coverage import FUNCTIONS
from simdist.c10d.surface._coverage import METHODS as COVERED
from simdist.c10d.surface._group import SimProcessGroup
from simdist.faults import ALIASES, OPERATIONS
from simdist.hardware.compare._match import _OURS
from simdist.hardware.rank._recorder import _DESCRIBE
from simdist.inside.torch import op_types
from tests.sources import without_collector

HOME = Path(str(simdist.__file__)).parent
TABLE_FILE = HOME / "c10d" / "calls" / "_table.py"
READERS = ("c10d", "hardware", "faults", "result", "trace")
NAMES = {
    name
    for row in TABLE
    for name in (row.name, *row.functions, *row.aliases, *row.all_recorded, *(m.operator for m in row.methods))
} | {*METHODS, *RENAMED}
MOST = 2  # up to two names together are a case; more are a list
ROWS = [pytest.param(row, id=row.name) for row in TABLE]
COLLECTIVES = [row for row in TABLE if row.methods and not row.is_message and row.payload != "nothing"]


def lists(path: Path) -> Iterator[int]:
    """Yield the lines of displays with more names of collectives than a case has; maps to functions do not count."""
    source = path.read_text()
    if sum(f'"{name}"' in source for name in NAMES) <= MOST:
        return
    tree = ast.parse(source)
    exported = {
        id(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AugAssign)
        and "__all__" in {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Name)}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            given: list[ast.expr | None] = list(node.elts)
        elif isinstance(node, ast.Dict):
            if all(isinstance(value, ast.Name | ast.Attribute | ast.Lambda) for value in node.values):
                continue
            given = list(node.keys)
        else:
            continue
        named = [each for each in given if isinstance(each, ast.Constant) and each.value in NAMES]
        if len(named) > MOST and id(node) not in exported:
            yield node.lineno


def test_nobody_lists_collectives_beside_the_table() -> None:
    paths = [path for room in READERS for path in sorted((HOME / room).rglob("*.py")) if path != TABLE_FILE]
    with without_collector():
        found = {str(path.relative_to(HOME)): lines for path in paths if (lines := list(lists(path)))}

    assert list(lists(TABLE_FILE))
    assert found == {}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_reaches_all_who_read_the_table(row: Collective) -> None:
    assert row.name in OPERATIONS
    assert all(row.name in ALIASES[name] for name in (*row.functions, *row.aliases))
    assert all(_OURS[name] == row.name for name in row.all_recorded)
    assert not row.methods or FUNCTIONS[row.name].status == "supported"
    for method in row.methods:
        assert method.operator in _DESCRIBE
        assert hasattr(torch.ops.c10d, method.operator)
        assert COVERED[method.name].status == "supported"
        assert not method.op_type or method.op_type in op_types()
        assert hasattr(SimProcessGroup, method.name)
        assert not method.old or hasattr(SimProcessGroup, method.old)


def test_every_collective_is_done_by_each_backend() -> None:
    names = {row.name for row in COLLECTIVES}

    assert {*ENGINE_EXECUTES} == (names - {*ROOTED}) | {"sparse_all_reduce", "reduce"}
    assert {*NCCL_EXECUTES} | {"all_reduce"} == names
    assert {*NCCL_COLLIDES} == {*KERNELS, *names}


def test_traits_follow_from_the_rows() -> None:
    assert IN_PLACE == ("all_reduce", "sparse_all_reduce", "reduce", "send")
    assert REDUCTIONS == ("all_reduce", "reduce", "reduce_scatter")
    assert RINGS == ("all_reduce", "all_gather", "reduce_scatter")
    assert ROOTED == ("reduce", "broadcast", "gather", "scatter")
    for method in METHODS.values():
        places = {*method.alike, *([] if method.if_alike is None else [method.if_alike])}
        assert places <= {*range(method.tensors)}
        assert method.compared or not places


def test_the_table_needs_no_torch() -> None:
    code = "import sys, simdist.c10d.calls; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
