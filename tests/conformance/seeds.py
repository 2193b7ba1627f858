"""Every test of the two files of PyTorch that are our specification of Gloo, and where it is covered.

The names are those of the `def test_...` in the available text of `test_c10d_gloo.py` and `test_c10d_common.py`, which
are both cut off near the middle. `COVERED` names our tests, which run on both arms; `NOT_HERE` has the tests without
one, and the reasons.
"""

from __future__ import annotations

__all__ = ["COVERED", "NOT_HERE"]

_ALIKE = {  # by class, without "test_": the tests that have their names here
    "test_common.py::TestStoreBasedBarrier": "store_based_barrier",
    "test_gloo_reducer.py::TestActivationCheckpointing": (
        "ddp_checkpointing_twice_static_graph ddp_checkpointing_dynamic_module "
        "ddp_checkpointing_dynamic_weight_sharing ddp_checkpointing_weight_sharing "
        "ddp_checkpointing_twice_weight_sharing"
    ),
    "test_gloo_ddp.py::TestCommunicationHooks": "invalid_powerSGD_state",
    "test_gloo_reducer.py::TestOutputs": "dataclass_output dataclass_output_unused_param",
    "test_gloo_reducer.py::TestBucketAssignment": (
        "single_limit_single_dtype single_limit_multi_dtype multi_limit_single_dtype multi_limit_multi_dtype"
    ),
    "test_common.py::TestRendezvous": "tcp_init logging_init",
    "test_gloo.py::TestBroadcast": (
        "multi_device_constructor empty_tensors broadcast_checks broadcast_basics broadcast_stress"
    ),
    "test_gloo.py::TestAllReduce": (
        "allreduce_checks allreduce_op_timeout allreduce_overall_timeout allreduce_stress set_gloo_pg_timeout"
    ),
    "test_gloo.py::TestCoalescedAllReduce": (
        "allreduce_coalesced_checks allreduce_coalesced_basics allreduce_coalesced_stress allreduce_coalesced_async"
    ),
    "test_gloo.py::TestSparseAllReduce": "sparse_allreduce_checks sparse_allreduce_basics",
    "test_gloo_movement.py::TestAllGather": (
        "allgather_into_tensor_coalesced allgather_checks allgather_basics allgather_noncontiguous_input "
        "allgather_inference_mode allgather_stress"
    ),
    "test_gloo.py::TestReduceScatter": "reduce_scatter reduce_scatter_tensor reduce_scatter_tensor_coalesced",
    "test_gloo_movement.py::TestScatterAndGather": (
        "scatter_checks scatter_basics scatter_stress gather_checks gather_basics gather_noncontiguous_input "
        "gather_stress"
    ),
}
_CHECKPOINTS = "test_gloo_reducer.py::TestActivationCheckpointing::test_ddp_checkpointing_"
_REDUCTIONS = "test_gloo.py::TestAllReduce::test_allreduce_"
_STORES = "test_common.py::TestRendezvous::test_default_store_timeout_gloo_"

COVERED = {f"test_{name}": (f"{owner}::test_{name}",) for owner, names in _ALIKE.items() for name in names.split()} | {
    **{
        f"test_ddp_checkpointing_{name}": (f"{_CHECKPOINTS}{name}_reentrant", f"{_CHECKPOINTS}{name}_not_reentrant")
        for name in ("once", "unused_params", "twice")
    },
    "test_default_store_timeout_gloo": (f"{_STORES}file", f"{_STORES}tcp"),
    "test_allreduce_basics": tuple(
        f"{_REDUCTIONS}{name}" for name in ("basics", "of_several_tensors_of_a_rank", "basics_in_half_precision")
    ),
}

_REASONS = {  # without "test_"
    "SyncBatchNorm takes GPU tensors only": "sync_batch_norm_only_empty_input sync_batch_norm_empty_input",
    "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py": (
        "broadcast_basics_cuda broadcast_stress_cuda allreduce_basics_cuda allreduce_stress_cuda "
        "allreduce_coalesced_checks_cuda sparse_allreduce_basics_cuda sparse_allreduce_cuda_dispatched "
        "scatter_basics_cuda scatter_stress_cuda gather_basics_cuda gather_stress_cuda allgather_basics_cuda "
        "allgather_stress_cuda"
    ),
}
NOT_HERE = {f"test_{name}": reason for reason, names in _REASONS.items() for name in names.split()}
