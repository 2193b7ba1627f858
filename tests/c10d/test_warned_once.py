"""Each rank of each world is shown what torch shows once in a process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from simdist.inside.torch import log_once
from tests.c10d.worlds import values, world
from tests.warm import Interpreters

_torch: Any = torch


def _caught(body: Callable[[], object]) -> list[str]:
    """What `body` shows if it is called twice: how the texts begin."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
        time.sleep(1)  # the other rank's turn
        body()
    return [str(each.message)[:12] for each in caught]


def _as_number() -> None:
    float(torch.ones(1, requires_grad=True))


def _read_only() -> None:
    array = np.ones(3)
    array.flags.writeable = False
    torch.from_numpy(array)


def _graph() -> None:
    weight = _torch.ones(1, requires_grad=True)
    (weight * weight).sum().backward(create_graph=True)


def _anomalies() -> None:
    with torch.autograd.detect_anomaly():
        _torch.ones(1, requires_grad=True).sum().backward()


def _padded() -> None:
    torch.nn.functional.conv1d(torch.ones(1, 1, 9), torch.ones(1, 1, 4), padding="same", dilation=3)


def _exit_with_warnings() -> None:
    sys.exit(10 + len(_caught(_as_number)))


_ONES = torch.ones(2, 2)
_ZERO_D = torch.tensor(1.0)
_SHOWN: list[tuple[Callable[[], object], list[str]]] = [
    (_as_number, ["Converting a"]),
    (_read_only, ["The given Nu"]),
    (lambda: torch.frombuffer(b"abcd", dtype=torch.uint8), ["The given bu"]),
    (lambda: torch.tensor([np.ones(2)] * 3), ["Creating a t"]),
    (lambda: _torch.ones(2).add_(2, torch.ones(2)), ["This overloa"]),
    (lambda: torch.set_default_tensor_type(torch.FloatTensor), ["torch.set_de"]),
    (lambda: _torch.sparse.FloatTensor(), ["torch.sparse"]),
    (_graph, ["Using backwa"]),
    (lambda: torch.stft(torch.ones(100), 20, return_complex=True), ["A window was"]),
    (lambda: torch.ones(1).copy_(torch.ones(1, dtype=torch.complex64)), ["Casting comp"]),
    (lambda: _ZERO_D.T, ["Tensor.T is "]),
    (lambda: _ZERO_D.H, ["Tensor.H is "]),
    (lambda: _ZERO_D.mT, ["Tensor.mT is"]),
    (lambda: _ZERO_D.mH, ["Tensor.mH is"]),
    (lambda: _ZERO_D.adjoint(), ["adjoint() is"]),
    (lambda: torch.ones(2, 2, 2).T, ["The use of `"]),
    (_padded, ["Using paddin"]),
    (lambda: torch.cross(torch.ones(3), torch.ones(3)), ["Using torch."]),
    (lambda: _torch._aminmax(_ONES), ["_aminmax is "]),
    (lambda: torch.ones(3).index_reduce_(0, torch.tensor([0]), torch.ones(1), "prod"), ["index_reduce"]),
    (lambda: _torch.chain_matmul(_ONES, _ONES), ["torch.chain_"]),
    (lambda: _torch.cholesky(torch.eye(2)), ["torch.choles"]),
    (lambda: torch.qr(torch.eye(2)), ["torch.qr is "]),
    (lambda: torch.meshgrid(torch.ones(2), torch.ones(2)), ["torch.meshgr"]),
    (lambda: torch.searchsorted(_ONES.t(), torch.eye(2).t()), ["torch.search", "torch.search"]),
    (lambda: torch.where(torch.ones(2, dtype=torch.uint8), 1.0, 2.0), ["where receiv"]),
    (lambda: (torch.eye(2).to_sparse_csr(), torch.eye(2).to_sparse_csc()), ["Sparse CSR t"]),
    (lambda: torch.nested.nested_tensor([torch.ones(2)]), ["The PyTorch "]),
    (lambda: _torch.ones(2).storage(), ["TypedStorage"]),
    # two kinds that torch repeats
    (_anomalies, ["Anomaly Dete"] * 2),
    (lambda: torch.range(0, 3), ["torch.range "] * 2),
]


def test_warnings_are_shown_once_on_each_rank_of_each_world() -> None:
    def warned() -> list[list[str]]:
        return [_caught(each) for each, _ in _SHOWN]

    expected = [each for _, each in _SHOWN]
    assert values(warned, 2) == [expected] * 2
    assert values(warned, 2) == [expected] * 2


def test_a_warning_that_a_setting_ends_is_shown_once_on_each_rank(interpreters: Interpreters) -> None:
    # The test needs its own process: one in which something has decided about these checks is never warned again.
    program = """
import torch, simdist, warnings

def main():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.sparse_coo_tensor([[0]], [1.0], (1,))
    return [str(each.message)[:12] for each in caught]

for _ in range(2):
    print(simdist.run(main, world_size=2).values)
"""
    done = interpreters.run([sys.executable, "-c", program], anew=["simdist"])

    assert done.stdout.splitlines() == ["[['Sparse invar'], ['Sparse invar']]"] * 2, done.stderr


def test_a_rank_that_asks_for_all_warnings_is_alone() -> None:
    def warned() -> tuple[list[str], bool]:
        if os.environ["RANK"] == "1":
            torch.set_warn_always(True)
        return _caught(_as_number), torch.is_warn_always_enabled()

    before = torch.is_warn_always_enabled()
    assert values(warned, 3) == [
        (["Converting a"], False),
        (["Converting a", "Converting a"], True),
        (["Converting a"], False),
    ]
    assert torch.is_warn_always_enabled() == before


def test_what_cpp_writes_itself_is_a_line_of_its_rank(capfd: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        torch.set_warn_always(os.environ["RANK"] == "1")
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(1, 1), find_unused_parameters=True)
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()

    lines = [each.stderr.splitlines() for each in world(train, 2).ranks]

    assert [len(of_rank) for of_rank in lines] == [1, 2]
    for rank, function in enumerate(("operator()", "search_unused_parameters")):
        head = rf"\[rank{rank}\]:\[W101 00:00:00\.\d{{9}} reducer\.cpp:\d+\] Warning: find_unused_parameters"
        assert all(re.match(head, line) and line.endswith(f"(function {function})") for line in lines[rank])
    assert "find_unused" not in capfd.readouterr().err


def test_ranks_begin_with_what_the_host_asks_for() -> None:
    def warned() -> tuple[list[str], bool, list[str]]:
        always = torch.is_warn_always_enabled()
        shown = _caught(_as_number)
        torch.set_warn_always(False)
        return shown, always, _caught(_as_number)

    torch.set_warn_always(True)
    try:
        assert values(warned, 1) == [(["Converting a"] * 2, True, ["Converting a"])]
        assert torch.is_warn_always_enabled()
    finally:
        torch.set_warn_always(False)


def test_what_python_logs_once_is_logged_on_each_rank() -> None:
    class Records(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.texts: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.texts.append(record.getMessage())

    def logged() -> list[str]:
        shared, records = logging.getLogger("once"), Records()
        for _ in range(2):
            shared.addHandler(records)
            log_once(shared, "once for %s", "each")
            shared.removeHandler(records)
            time.sleep(1)
        return records.texts

    assert values(logged, 3) == [["once for each"]] * 3


def test_a_forked_child_is_not_shown_what_its_parent_was() -> None:
    def forked() -> int:
        shown = _caught(_as_number)
        child = multiprocessing.get_context("fork").Process(target=_exit_with_warnings)
        child.start()
        child.join()
        return len(shown) * 100 + (child.exitcode or 0)

    assert values(forked, 2) == [110, 110]


def test_each_rank_is_warned_of_a_kernel_that_it_replaces() -> None:
    def replaces() -> list[str]:
        library = _torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            library.impl("normal_", lambda tensor, *_, **__: tensor, "CPU")
            library.impl("log_normal_", lambda tensor, *_, **__: tensor, "CPU")
        return [f"{Path(each.filename).name}: {str(each.message)[:36]}" for each in caught]

    assert values(replaces, 2) == [["library.py: Warning only once for all operators,"]] * 2
