"""Every operator that a GPU has by torch's own list, on a virtual device: the CPU's numbers, or a refusal.

The test takes two minutes, so it runs with `--real`.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.device.worlds import values

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.complex32)
SAMPLES = 20

# Operators that draw random numbers, in which a device differs from the CPU, or that return unwritten memory.
_RANDOM = frozenset(
    (
        *("cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal_in_place"),
        *("normal_number_mean", "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "bernoulli"),
        *("nn_functional_dropout", "nn_functional_dropout2d", "nn_functional_dropout3d", "nn_functional_rrelu"),
        *("nn_functional_alpha_dropout", "nn_functional_feature_alpha_dropout_with_train"),
        *("nn_functional_fractional_max_pool2d", "nn_functional_fractional_max_pool3d"),
        *("nn_functional_scaled_dot_product_attention", "nn_functional_multi_head_attention_forward"),
        *("svd_lowrank", "pca_lowrank", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"),
        "new_empty_strided",
    )
)
# Operators for which the CPU lacks a kernel for one of the types, or whose samples name the device.
_ONLY_ON_DEVICES = frozenset(
    (
        *("nn_functional_avg_pool3d", "_upsample_bilinear2d_aa", "nn_functional_multi_margin_loss", "histc"),
        *("nn_functional_multilabel_margin_loss", "as_strided_partial_views", "jiterator_unary", "jiterator_binary"),
        *("jiterator_4inputs_with_extra_args", "jiterator_binary_return_by_ref", "jiterator_2inputs_2outputs"),
    )
)
# Operators that also return statistics, of which a GPU keeps others; only their first result is compared.
_OWN_STATISTICS = frozenset(
    ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
)
# Operators that compute halves in float32, and so come nearer to the exact result than the CPU.
_MORE_PRECISE = frozenset(
    (
        *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "nn_functional_instance_norm"),
        *("nn_functional_batch_norm", "nn_functional_batch_norm_without_cudnn"),
        "_unsafe_masked_index_put_accumulate",
    )
)
# Operators that are refused or missing, each with its reason.
_REFUSED = {
    "torch_ops_aten__efficient_attention_forward": "torch's own, below scaled_dot_product_attention",
    "torch_ops_aten__flash_attention_forward": "torch's own, below scaled_dot_product_attention",
}


def on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


def in_double(value: Any) -> Any:
    value = on_cpu(value)
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def error_of(found: Any, exact: torch.Tensor) -> float:
    """Return the largest error of the first result."""
    one = tree_leaves(found)[0].detach().cpu().double()
    return float((one - exact).abs().max()) if one.numel() else 0.0


def difference(wanted: Any, found: Any) -> str:
    """Return in words how two results differ; empty if they do not."""
    pairs = tree_leaves(wanted), tree_leaves(found)
    if len(pairs[0]) != len(pairs[1]):
        return "their number"
    for one, other in zip(*pairs, strict=True):
        if not isinstance(one, torch.Tensor) or one.layout is not torch.strided:
            continue
        if one.dtype is not other.dtype or one.shape != other.shape or one.stride() != other.stride():
            return f"{one.dtype}{list(one.shape)}{one.stride()}, {other.dtype}{list(other.shape)}{other.stride()}"
        wide = torch.complex128 if one.is_complex() else torch.float64
        expected, least = one.detach().to(wide), 1e-3
        if one.dtype is torch.complex32 and one.numel():  # whose products are rounded, and then added up
            least = max(least, 4 * torch.finfo(one.dtype).eps * expected.abs().max().item())
        if not torch.allclose(expected, other.detach().cpu().to(wide), rtol=1e-3, atol=least, equal_nan=True):
            return "values"
    return ""


def problem_with(op: Any, given: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> str:
    """Return in words how an operator's result on the device differs from that on the CPU; empty if it does not."""
    name = op.formatted_name
    first, args, kwargs = tree_map(on_cpu, given)
    doubles = tree_map(in_double, given) if name in _MORE_PRECISE else None  # before an operator changes its arguments
    try:
        wanted = op(first, *args, **kwargs)
    except Exception:
        op(given[0], *given[1], **given[2])  # refused by the CPU, but it must work on a device
        return ""
    found = op(given[0], *given[1], **given[2])
    if name in _OWN_STATISTICS:
        wanted, found = wanted[0], found[0]
    problem = difference(wanted, found)
    if problem == "values" and doubles is not None:
        (exact, *_) = tree_leaves(op(doubles[0], *doubles[1], **doubles[2]))
        if error_of(found, exact) <= error_of(wanted, exact):
            return ""
    return problem


def compared() -> list[str]:
    """Return a line for each operator and type that differs."""
    warnings.simplefilter("ignore")
    known: Any = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    found = []
    for op in known:
        name = op.formatted_name
        for dtype in DTYPES:
            if name in _RANDOM | _ONLY_ON_DEVICES or dtype not in op.supported_dtypes("cuda"):
                continue
            try:
                samples = list(op.sample_inputs("cuda", dtype, requires_grad=False))[:SAMPLES]
            except Exception as error:
                if "sparse_csr" not in str(error) and "detailed CUDA version" not in str(error):
                    found.append(f"{name} {dtype}: no samples: {error}")
                continue
            for sample in samples:
                given = sample.input, sample.args, sample.kwargs
                try:
                    problem = problem_with(op, given)
                except Exception as error:
                    problem = f"raises {error}"
                if problem and name not in _REFUSED:
                    found.append(f"{name} {dtype}: {problem[:200]}")
                    break
    return found


@pytest.mark.real
@pytest.mark.timeout(600)
def test_operators_of_a_gpu_are_those_of_the_cpu() -> None:
    assert values(compared, devices=1, stall_s=300) == [[]]
