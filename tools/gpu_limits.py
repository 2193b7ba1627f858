"""What a GPU refuses that a CPU does: measured on a GPU, and kept in a file that virtual devices read.

    python tools/gpu_limits.py                 # on a GPU: measure, and write simdist/device/kernels/gpu_limits.json
    python tools/gpu_limits.py --check         # anywhere: which of these refusals virtual devices do not have, or word
                                               # otherwise; exit code 1 if there are any

Each operator of torch's own list (`op_db`, with the samples that torch tests it with) is called with each type, on the
GPU and on the CPU. Written down are operators of the dispatcher, by the name that their overloads share: for which types
the GPU has no kernel, and how it says so; which raise if deterministic algorithms are asked for; and which the GPU has
no kernel for at all. A type is only written down if every sample of that type is refused by that operator.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Iterator
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
_FEW = 8  # samples of each type; for determinism all are taken
_WORKERS = 12


class _Last(TorchDispatchMode):
    """Remembers the operator that was called last, and the type of its first tensor."""

    name = ""
    dtype = ""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        self.name = func._schema.name.removeprefix("aten::")
        first = next((each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)), None)
        self.dtype = "" if first is None else str(first.dtype).removeprefix("torch.")
        return func(*args, **(kwargs or {}))


def refusal(call: Callable[[], object]) -> dict[str, str]:
    """What `call` raises, where and for which type; nothing if it returns."""
    last = _Last()
    try:
        with last:
            call()
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        return {"error": type(error).__name__, "text": text, "operator": last.name, "dtype": last.dtype}
    return {}


def names() -> list[str]:
    """The operators of torch's list."""
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted({each.full_name for each in op_db})


def calls(name: str, dtype: torch.dtype, device: str, most: int | None = None) -> Iterator[tuple[Any, Any]]:
    """For each sample of an operator, by name, a call of it, and one of its backward pass or None."""
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
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))[:most]
        except Exception:
            continue  # torch has none for this type

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

            yield forward, backward if dtype.is_floating_point and op.supports_autograd else None


def _has_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()


def seen(name: str, device: str) -> list[dict[str, Any]]:
    """What an operator of torch's list refuses on a device: for each sample, with what the CPU says of it."""
    warnings.simplefilter("ignore")
    found = []
    for dtype in TYPES:
        on_cpu = [refusal(forward) for forward, _ in calls(name, dtype, "cpu", _FEW)]
        for cpu, (forward, backward) in zip(on_cpu, calls(name, dtype, device, _FEW), strict=True):
            said = refusal(forward)
            found.append({"type": str(dtype).removeprefix("torch."), "said": said, "cpu": cpu})
            if not said and backward is not None:
                found.append({"type": found[-1]["type"], "said": refusal(backward), "backward": True})
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float32, torch.int64):
            for forward, backward in calls(name, dtype, device):
                for call in (forward, backward):
                    said = {} if call is None else refusal(call)
                    if NO_DETERMINISM.match(said.get("text", "")):
                        found.append({"type": str(dtype).removeprefix("torch."), "said": said, "deterministic": True})
    finally:
        torch.use_deterministic_algorithms(False)
    return found


def limits(measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What the file holds of what was measured."""
    refused: dict[str, dict[str, set[str]]] = {}
    other: dict[str, dict[str, set[str]]] = {}
    random: dict[str, set[str]] = {}
    beyond: dict[str, set[str]] = {}  # types that the CPU takes
    for samples in measured.values():
        taken = {each["type"] for each in samples if not each["said"]}
        for each in samples:
            said = each["said"]
            if not said or not said["operator"]:
                continue
            if each.get("deterministic"):
                label = NO_DETERMINISM.match(said["text"])
                assert label is not None
                random.setdefault(said["operator"], set()).add(label["label"])
                continue
            match = NO_TYPE.match(said["text"])
            if match is not None:
                refused.setdefault(said["operator"], {}).setdefault(match["label"], set()).add(match["type"])
            if each.get("cpu") == {} and each["type"] not in taken:
                beyond.setdefault(said["operator"], set()).add(said["dtype"])
                if match is None:
                    other.setdefault(said["operator"], {}).setdefault(said["text"], set()).add(said["dtype"])
    return {
        "measured": f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}",
        "refused": {op: {label: sorted(of) for label, of in sorted(by.items())} for op, by in sorted(refused.items())},
        "beyond": {op: sorted(of) for op, of in sorted(beyond.items())},
        "other": {op: {text: sorted(of) for text, of in sorted(by.items())} for op, by in sorted(other.items())},
        "random": {op: sorted(of) for op, of in sorted(random.items())},
    }


def measure(device: str) -> dict[str, list[dict[str, Any]]]:
    """What each operator of torch's list refuses on a device, with several processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_WORKERS, mp_context=context) as pool:
        every = names()
        return dict(zip(every, pool.map(seen, every, [device] * len(every), chunksize=4), strict=True))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    measured = measure("cuda")
    where.write_text(json.dumps(measured))
    Path(sys.argv[2]).write_text(json.dumps(limits(measured), indent=1) + "\n")
