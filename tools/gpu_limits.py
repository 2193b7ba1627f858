"""What a GPU refuses that a CPU does: measured on a GPU, and kept in a file that virtual devices read.

    python tools/gpu_limits.py                 # on a GPU: measure, and write simdist/device/kernels/gpu_limits.json
    python tools/gpu_limits.py --check         # anywhere: which of these refusals virtual devices do not have, or word
                                               # otherwise; exit code 1 if there are any

Each operator of torch's own list (`op_db`, with the samples that torch tests it with) is called with each type, on the
GPU and on the CPU. The file has, for operators of the dispatcher: the GPU's name for itself where it has no kernel for
a type ("labels"), the types that a CPU takes and the GPU does not ("beyond"; "*" is C++'s name of the type), and its
name for an operation that can't be deterministic ("alerts"); each by the name that an operator's overloads share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LIMITS = ROOT / "simdist" / "device" / "kernels" / "gpu_limits.json"
TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
NO_TYPE = re.compile(r"""^"(?P<label>\w+)" not implemented for '(?P<type>\w+)'$""")
NO_DETERMINISM = re.compile(r"^(?P<label>.+) does not have a deterministic implementation, but you set")
_FEW, _MANY = 6, 20  # samples of each type; samples with deterministic algorithms
_WORKERS = 15


class _Last(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Records the last operator that was called, and the type of its first tensor."""

    name = ""
    dtype = ""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        self.name = func._schema.name.removeprefix("aten::").rstrip("_")
        first = next((each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)), None)
        self.dtype = "" if first is None else str(first.dtype).removeprefix("torch.")
        return func(*args, **(kwargs or {}))


def refusal(call: Callable[[], object]) -> dict[str, str]:
    """Return the error that `call` raises, with its operator and type; empty if the call returns."""
    last = _Last()  # type: ignore[no-untyped-call]  # of torch
    try:
        with last:
            call()
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        return {"error": type(error).__name__, "text": text, "operator": last.name, "dtype": last.dtype}
    return {}


def names() -> list[str]:
    """Return the operators of torch's list."""
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted({each.full_name for each in op_db})


def calls(name: str, dtype: torch.dtype, device: str, most: int) -> Iterator[tuple[Any, Any, bool]]:
    """Yield for each sample of an operator its call, the call of its backward pass or None, and if it has elements.

    Takes at most `most` samples.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    def there(value: object) -> object:
        return value.detach().to(device) if isinstance(value, torch.Tensor) else value

    def fresh(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.is_floating_point())

    for op in op_db:
        if op.full_name != name:
            continue
        torch.manual_seed(0)
        try:
            samples = list(itertools.islice(_samples(op, dtype), most))
        except Exception:
            continue  # torch has no samples for this type

        for sample in samples:
            given = tree_map(there, (sample.input, sample.args, sample.kwargs))
            if str(given[2].get("device")) == "cpu":
                given[2]["device"] = device

            def forward(op: Any = op, given: Any = given) -> object:
                result: object = op(given[0], *given[1], **given[2])
                return result

            def backward(op: Any = op, given: Any = given) -> object:
                mine = tree_map(fresh, given)
                results = [each for each in tree_leaves(op(mine[0], *mine[1], **mine[2])) if _has_gradient(each)]
                inputs = [each for each in tree_leaves(mine) if _has_gradient(each)]
                return torch.autograd.grad([each.sum() for each in results], inputs, allow_unused=True)

            tensors = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
            has_elements = all(each.numel() for each in tensors)
            yield forward, backward if dtype.is_floating_point and op.supports_autograd else None, has_elements


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    return iter(op.sample_inputs("cpu", dtype, requires_grad=False))


def _has_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()


def seen(name: str, device: str = "cuda") -> list[dict[str, Any]]:
    """Return what an operator of torch's list refuses on a device: for each sample, with the CPU's answer."""
    warnings.simplefilter("ignore")
    found: list[dict[str, Any]] = []
    for dtype in TYPES:
        on_cpu = [refusal(forward) for forward, *_ in calls(name, dtype, "cpu", _FEW)]
        for cpu, (forward, backward, has_elements) in zip(on_cpu, calls(name, dtype, device, _FEW), strict=True):
            said = refusal(forward)
            if not said and not has_elements:
                continue  # without elements a GPU does not check the type
            found.append({"type": str(dtype).removeprefix("torch."), "said": said, "cpu": cpu})
            if not said and backward is not None:
                found.append({"type": found[-1]["type"], "said": refusal(backward), "backward": True})
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float32, torch.int64):
            for forward, backward, _ in calls(name, dtype, device, _MANY):
                for call in (forward, backward):
                    said = {} if call is None else refusal(call)
                    if NO_DETERMINISM.match(said.get("text", "")):
                        found.append({"type": str(dtype).removeprefix("torch."), "said": said, "deterministic": True})
    finally:
        torch.use_deterministic_algorithms(False)
    return found


def limits(measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the content of the file from the measurements."""
    labels: dict[str, str] = {}  # operator -> the GPU's name for itself where it has no kernel for a type
    beyond: dict[str, dict[str, str]] = {}  # operator -> type that the CPU takes -> the error
    alerts: dict[str, str] = {}
    for samples in measured.values():
        taken = {each["type"] for each in samples if not each["said"]}
        for each in samples:
            said = each["said"]
            operator = said.get("operator", "")
            if not operator or operator in _NOT_THEM or said["text"].startswith("Could not run"):
                continue
            alert, no_type = NO_DETERMINISM.match(said["text"]), NO_TYPE.match(said["text"])
            if alert is not None:
                alerts.setdefault(operator, alert["label"])
            elif no_type is not None:
                labels.setdefault(operator, no_type["label"])
            if each.get("cpu") == {} and each["type"] not in taken and operator not in _BY_ARGUMENT:
                text = said["text"] if no_type is None else f"\"{no_type['label']}\" not implemented for '*'"
                beyond.setdefault(operator, {}).setdefault(said["dtype"], f"{said['error']}: {text}")
    return {
        "labels": dict(sorted(labels.items())),
        "beyond": {operator: _grouped(of) for operator, of in sorted(beyond.items())},
        "alerts": dict(sorted(alerts.items())),
    }


# Many backward passes end in operators of the first list; refusals in the second depend on more than types.
_NOT_THEM = ("detach", "clone", "view", "set_")
_BY_ARGUMENT = ("linalg_lstsq", "_fft_r2c", "_fft_c2c", "_fft_c2r", "_sparse_mm_reduce_impl", "scatter_reduce")


def _grouped(texts: dict[str, str]) -> dict[str, str]:
    """Group types by their text; returns the types of each text as words."""
    found: dict[str, list[str]] = {}
    for of, text in sorted(texts.items()):
        found.setdefault(text, []).append(of)
    return {text: " ".join(types) for text, types in sorted(found.items())}


def measure(device: str, chosen: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what each operator of torch's list refuses on a device; uses several processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(_WORKERS, os.cpu_count() or 1), mp_context=context) as pool:
        look = seen if device == "cuda" else seen_simulated
        return dict(zip(chosen, pool.map(look, chosen), strict=True))


def seen_simulated(name: str) -> list[dict[str, Any]]:
    """Return the result of `seen` on a virtual device."""
    import simdist

    cluster = simdist.cluster.build(1, devices_per_host=1)
    result = simdist.run(lambda: seen(name), world_size=1, cluster=cluster)
    result.raise_for_failure()
    (found,) = result.values
    return list(found)


def kept() -> dict[str, Any]:
    """Return the content of the file."""
    found: dict[str, Any] = json.loads(LIMITS.read_text("utf-8"))
    return found


def differences(real: dict[str, Any], simulated: dict[str, Any]) -> list[str]:
    """Return a line for each place where virtual devices refuse differently from the GPU."""
    lines = []
    for what in ("labels", "beyond", "alerts"):
        for operator in dict.fromkeys([*real[what], *simulated[what]]):
            there, here = real[what].get(operator), simulated[what].get(operator)
            if there != here:
                lines.append(f"{what}: {operator}: GPU {there}, virtual device {here}")
    return lines


def main() -> int:
    """Measure, or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare virtual devices with the file")
    parser.add_argument("operators", nargs="*", help="of torch's list (with --check); all of them by default")
    options = parser.parse_args()
    chosen = options.operators or names()
    if options.check:
        here = limits(measure("virtual", chosen))
        there = kept()
        if options.operators:  # the others were not looked at
            there = {what: {each: there[what].get(each) for each in here[what]} for what in here}
        found = differences(there, here)
        print("\n".join(found) or "virtual devices refuse what the GPU refused")
        return 1 if found else 0
    if options.operators or not torch.cuda.is_available():
        parser.error("measuring takes a GPU, and every operator of torch's list; --check compares")
    made = {
        "measured": f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}",
        **limits(measure("cuda", chosen)),
    }
    LIMITS.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
