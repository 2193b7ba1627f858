"""Tests about CUDA tensors in the suite that torch ships (distributed_test.py of 2.13), by name, over NCCL.

They are torch's own code, on simulated ranks with a virtual device each. `STATE` has every test of the part of that
file that is our specification and runs over NCCL: the number of ranks with which it passes, or why it does not run.
Torch's own decorators skip tests of CPU tensors over NCCL; the conformance tool runs them over Gloo.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings

import pytest

from tests.warm import Interpreters

STATE: dict[str, int | str] = {
    "test_dump_DDP_relevant_env_vars": 4,
    "test_get_rank": 4,
    "test_get_backend": 4,
    "test_Backend_enum_class": 4,
    "test_destroy_group": 4,
    "test_get_rank_size_group": 4,
    "test_destroy_full_group": 4,
    "test_get_rank_size_full_group": 4,
    "test_new_subgroups": "torch skips it, everywhere",
    "test_new_subgroups_with_group_param": 4,
    "test_new_subgroups_group_size_exceeds_world_size": 4,
    "test_new_subgroups_world_size_not_divisible_by_group_size": 4,
    "test_new_subgroups_by_enumeration": "torch skips it, everywhere",
    "test_new_subgroups_by_enumeration_input_rank_exceeds_world_size": 4,
    "test_new_subgroups_by_enumeration_negative_input_rank": 4,
    "test_new_subgroups_overlap_not_allowed": 4,
    "test_average_parameters": 4,
    "test_periodic_model_averager": 4,
    "test_periodic_model_averager_param_group": 4,
    "test_1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager": 4,
    "test_3_level_hierarchical_model_averager": 4,
    "test_coalescing_manager": 4,
    "test_coalescing_manager_async": 4,
    "test_batch_isend_irecv_nccl": 4,
    "test_batch_isend_irecv_ring_exchange_nccl": 4,
    "test_batch_isend_irecv_self_nccl": 4,
    "test_batch_isend_irecv_no_rank_zero_nccl": 8,
    "test_batch_isend_irecv_op_err": 4,
    "test_batch_isend_irecv_op_list_err": 4,
    "test_batch_isend_irecv_mixed_backend_err": 4,
    "test_send_recv_nccl": 4,
    "test_send_recv_nccl_autograd_profiler": 4,
    "test_send_recv_nccl_torch_profiler": 4,
    "test_broadcast_cuda": 4,
    "test_nccl_high_priority_stream": 4,
    "test_reduce_sum_cuda": 4,
    "test_reduce_sum_cuda_twice": 4,
    "test_reduce_scatter_v_cuda": 4,
    "test_reduce_scatter_tensor_cuda": 4,
}


def outcomes(ranks: int, names: list[str]) -> dict[str, str]:
    """Return how the tests end; needs its own interpreter: the suite is imported for one backend and world size."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from simdist.testing import distributed_test_case, run_tests

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        case = distributed_test_case(backend="nccl", world_size=ranks, real=False)
        report = run_tests(case, f"simulated {ranks}", patterns=[f"^({'|'.join(names)})$"])
    return {each.name: f"{each.verdict} {each.reason}".strip() for each in report.outcomes}


def test_nine_tenths_of_them_run() -> None:
    assert sum(isinstance(state, int) for state in STATE.values()) >= 0.9 * len(STATE)


@pytest.mark.parametrize("ranks", sorted({state for state in STATE.values() if isinstance(state, int)}))
def test_torchs_own_tests_of_devices_pass_over_nccl(ranks: int, interpreters: Interpreters) -> None:
    names = [name for name, size in STATE.items() if size == ranks]

    found = interpreters.call("1", outcomes, ranks, names)

    assert found == dict.fromkeys(names, "pass")
