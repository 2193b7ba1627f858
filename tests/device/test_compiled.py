"""Kernels in C++: how they are found, chosen and built; they do the same as those in Python."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simdist
from simdist.cluster import build
from simdist.device import build_kernels, built_kernels
from simdist.device.kernels import _compiled
from simdist.errors import UnsupportedError
from tests.device.worlds import values


@pytest.fixture
def kernels() -> None:
    """Choose no form of the kernels: these tests do it themselves."""


@pytest.fixture
def _built(compiled_kernels: Path | None) -> None:
    if compiled_kernels is None:
        pytest.skip("there is no g++ to build the kernels in C++ with")


def training() -> tuple[list[float], dict[str, int]]:
    """Use AMP, an optimizer, random numbers, views, indices, collectives; returns values and memory statistics."""
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(dist.get_rank())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.2), nn.Flatten())
    head = nn.Linear(2 * 36, 5)
    parallel = nn.parallel.DistributedDataParallel(nn.Sequential(model, head).cuda(), device_ids=[dist.get_rank()])
    optimizer, scaler = torch.optim.AdamW(parallel.parameters(), lr=0.01), torch.amp.GradScaler("cuda")
    losses = []
    for step in range(3):
        inputs = torch.randn(4, 1, 8, 8, device="cuda")
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(parallel(inputs), torch.arange(4, device="cuda"))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        rows = inputs.flatten(1)[torch.tensor([0, 2]), step:].sort(descending=True).values
        losses += [loss.item(), rows.sum().item(), float(rows[rows > 0].numel())]
    figures = torch.cuda.memory_stats()
    return losses, {name: value for name, value in figures.items() if "bytes" in name or "allocation" in name}


@pytest.mark.usefixtures("_built")
def test_both_forms_give_the_same_bits_accounts_and_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for form in ("python", "compiled", "python"):
        monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
        runs.append(simdist.run(training, world_size=2, cluster=build(2, devices_per_host=2)))
        runs[-1].raise_for_failure()

    python, compiled, again = runs
    assert compiled.values == python.values == again.values
    assert compiled.digest == python.digest == again.digest


def of_one(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that applies one of torch's to the first operand."""
    return lambda one, _: getattr(torch, name)(one)


# Operators that call the CPU's kernels directly, in C++.
DIRECT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda one, other: torch.add(one, other, alpha=2),
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "mm": torch.mm,
    "bmm": lambda one, other: torch.bmm(one.expand(2, *one.shape), other.expand(2, *other.shape)),
    "addmm": lambda one, other: torch.addmm(one, one, other, beta=2, alpha=3),
    "threshold_backward": lambda one, other: torch.ops.aten.threshold_backward(one, other, 1.0),
    "tanh_backward": torch.ops.aten.tanh_backward,
    "sigmoid_backward": torch.ops.aten.sigmoid_backward,
    "pow": lambda one, _: one.pow(3),
    "silu": lambda one, _: nn.functional.silu(one),
    **{name: of_one(name) for name in ("relu", "tanh", "sigmoid", "neg", "exp", "log", "sqrt", "rsqrt")},
}


def operands() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of tensors by kind: usual kinds and rare ones."""
    numbers = torch.arange(1.0, 10.0, device="cuda").view(3, 3)
    whole = torch.arange(9, device="cuda").view(3, 3)
    wave = torch.complex(numbers, numbers.flip(0))
    return {
        "plain": (numbers, numbers.flip(0).clone()),
        "the same": (numbers, numbers),
        "not contiguous": (numbers.t(), numbers[:, 1:2]),
        "at an offset": (numbers.flatten()[5:9].view(2, 2), numbers.flatten()[1:5].view(2, 2)),
        "half as wide": (numbers.half(), numbers.half() + 1),
        "of two types": (numbers, whole),
        "whole": (whole, whole + 1),
        "true or false": (whole > 3, whole > 5),
        "complex": (wave, wave.t()),
        "conjugated": (wave.conj(), wave),
        "negated": (wave.conj().imag, numbers),
        "empty": (numbers[:0], numbers[:0]),
        "a number of the host": (numbers, torch.tensor(2.0)),
        "the host's": (numbers, torch.ones(3, 3)),
        "all of the host": (torch.ones(3, 3), torch.ones(3, 3)),
        "of another device": (numbers, torch.ones(3, 3, device="cuda:1")),
        "that do not fit": (numbers, torch.ones(4, 4, device="cuda")),
        "without data": (numbers, torch.ones(3, 3, device="meta")),
    }


def called_directly() -> list[tuple[object, ...]]:
    """Return each operator's result or error for each kind, and the device's memory afterwards."""
    found: list[tuple[object, ...]] = []
    torch.use_deterministic_algorithms(True)
    for name, call in DIRECT.items():
        for kind, (one, other) in operands().items():
            try:
                made: object = call(one, other)
            except (RuntimeError, IndexError) as error:  # type and text are compared, too
                made = f"{type(error).__name__}: {error}"
            if isinstance(made, torch.Tensor):
                bits = (
                    [] if made.is_meta else made.resolve_conj().resolve_neg().cpu().flatten().view(torch.uint8).tolist()
                )
                made = str(made.dtype), made.stride(), str(made.device), str(bits)
            found.append((name, kind, made, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
    return found


@pytest.mark.usefixtures("_built")
def test_what_is_called_directly_makes_and_raises_what_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[tuple[object, ...]]] = []
    for form in ("python", "compiled"):
        monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
        result = simdist.run(called_directly, world_size=1, cluster=build(1, devices_per_host=2))
        result.raise_for_failure()
        found.append(result.values[0])

    python, compiled = found
    source = (Path(_compiled.__file__).parent / "native" / "kernels.cpp").read_text()
    assert set(re.findall(r'\{"(\w+)(?:\.\w+)?", &direct<', source)) == {name for name, *_ in python} == DIRECT.keys()
    assert len(python) == len(DIRECT) * len({kind for _, kind, *_ in python}) > 300
    assert [pair for pair in zip(python, compiled, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.usefixtures("_built")
def test_tensors_of_one_form_are_read_in_a_world_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []

    def make() -> None:
        kept.append(torch.arange(6.0, device="cuda").view(2, 3))

    def use(place: int) -> list[float]:
        tensor = kept[place]
        tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes())
        return [*(tensor.t() @ tensor).sum(0).tolist(), tensor.add_(1).sum().item()]

    for form in ("compiled", "python"):
        monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
        values(make)
    found = []
    for place, form in enumerate(("python", "compiled")):
        monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
        found += values(use, args=(place,))

    assert found == [[36.0, 51.0, 66.0, 21.0]] * 2
    assert [tensor.sum().item() for tensor in kept] == [21.0, 21.0]


def test_they_are_taken_if_they_are_there_and_python_does_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = object()
    monkeypatch.setattr(_compiled, "_loaded", lambda path: loaded if path == str(built_kernels()) else None)
    monkeypatch.delenv("SIMDIST_DEVICE_KERNELS", raising=False)

    assert _compiled.chosen() is None
    built_kernels().parent.mkdir()
    built_kernels().touch()
    assert _compiled.chosen() is loaded
    monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", "python")
    assert _compiled.chosen() is None


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("compiled", "and there are none for torch .*; simdist build-devices builds them, with g[+][+]"),
        ("c++", "'c[+][+]' is no form of kernels; expected one of auto, python, compiled"),
    ],
)
def test_what_is_asked_for_and_not_there_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, words: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)

    with pytest.raises(UnsupportedError, match=words):
        simdist.run(lambda: None, world_size=1, cluster=build(1, devices_per_host=1))
    assert simdist.run(lambda: 1, world_size=1).values == [1]


def test_a_file_that_is_no_library_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SIMDIST_DEVICE_KERNELS", raising=False)
    built_kernels().parent.mkdir()
    built_kernels().write_text("nothing")

    with pytest.raises(UnsupportedError, match=r"can't be loaded \(.*\); delete it, and build the kernels anew"):
        _compiled.chosen()


def test_without_a_compiler_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(UnsupportedError, match=r"g\+\+ is not to be found.*apt install g\+\+.*go on without"):
        build_kernels()


def test_what_the_compiler_says_is_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'kernels.cpp:3: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(_compiled, "compiler", lambda: str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(UnsupportedError, match=r"g\+\+ did not take the kernels .*\nkernels.cpp:3: error: no such"):
        build_kernels()
    assert list(built_kernels().parent.iterdir()) == []


@pytest.mark.usefixtures("_built")
def test_a_world_that_looks_for_races_finds_them_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> Any:
        tensor = torch.zeros(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            return tensor.add_(1).tolist()

    texts = []
    for form in ("python", "compiled"):
        monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
        (rank,) = simdist.run(body, world_size=1, cluster=build(1, devices_per_host=1), strict=True).ranks
        texts.append(str(rank.exception))

    assert "writes a tensor of shape [4] on stream 1 of cuda:0, while zero" in texts[0] or "while fill" in texts[0]
    assert texts[0] == texts[1]


def test_a_cached_build_belongs_to_this_torch_and_this_source() -> None:
    name = built_kernels().name

    assert torch.__version__ in name
    assert subprocess.list2cmdline([name]) == name  # no character that a shell would change
