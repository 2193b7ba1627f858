"""Every test of the two files of PyTorch that are our specification of Gloo, and what became of it.

The names are those of the `def test_...` in the text that we were given of `test_c10d_gloo.py` and
`test_c10d_common.py`, both cut off near the middle. `COVERED` names our tests, which run on both arms; `NOT_HERE` gives
the reason why there is none.
"""

from __future__ import annotations

__all__ = ["COVERED", "NOT_HERE"]

COVERED = {
    # test_c10d_common.py
    "test_store_based_barrier": ("test_common.py::TestStoreBasedBarrier::test_store_based_barrier",),
    "test_ddp_checkpointing_once": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_once_reentrant",
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_once_not_reentrant",
    ),
    "test_ddp_checkpointing_unused_params": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_unused_params_reentrant",
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_unused_params_not_reentrant",
    ),
    "test_ddp_checkpointing_twice": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_twice_reentrant",
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_twice_not_reentrant",
    ),
    "test_ddp_checkpointing_twice_static_graph": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_twice_static_graph",
    ),
    "test_ddp_checkpointing_dynamic_module": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_dynamic_module",
    ),
    "test_ddp_checkpointing_dynamic_weight_sharing": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_dynamic_weight_sharing",
    ),
    "test_ddp_checkpointing_weight_sharing": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_weight_sharing",
    ),
    "test_ddp_checkpointing_twice_weight_sharing": (
        "test_gloo_ddp.py::TestActivationCheckpointing::test_ddp_checkpointing_twice_weight_sharing",
    ),
    "test_invalid_powerSGD_state": ("test_gloo_ddp.py::TestCommunicationHooks::test_invalid_powerSGD_state",),
    "test_dataclass_output": ("test_gloo_ddp.py::TestOutputs::test_dataclass_output",),
    "test_dataclass_output_unused_param": ("test_gloo_ddp.py::TestOutputs::test_dataclass_output_unused_param",),
    "test_single_limit_single_dtype": ("test_gloo_ddp.py::TestBucketAssignment::test_single_limit_single_dtype",),
    "test_single_limit_multi_dtype": ("test_gloo_ddp.py::TestBucketAssignment::test_single_limit_multi_dtype",),
    "test_multi_limit_single_dtype": ("test_gloo_ddp.py::TestBucketAssignment::test_multi_limit_single_dtype",),
    "test_multi_limit_multi_dtype": ("test_gloo_ddp.py::TestBucketAssignment::test_multi_limit_multi_dtype",),
    # test_c10d_gloo.py
    "test_tcp_init": ("test_common.py::TestRendezvous::test_tcp_init",),
    "test_logging_init": ("test_common.py::TestRendezvous::test_logging_init",),
    "test_default_store_timeout_gloo": (
        "test_common.py::TestRendezvous::test_default_store_timeout_gloo_file",
        "test_common.py::TestRendezvous::test_default_store_timeout_gloo_tcp",
    ),
    "test_multi_device_constructor": ("test_gloo.py::TestBroadcast::test_multi_device_constructor",),
    "test_empty_tensors": ("test_gloo.py::TestBroadcast::test_empty_tensors",),
    "test_broadcast_checks": ("test_gloo.py::TestBroadcast::test_broadcast_checks",),
    "test_broadcast_basics": ("test_gloo.py::TestBroadcast::test_broadcast_basics",),
    "test_broadcast_stress": ("test_gloo.py::TestBroadcast::test_broadcast_stress",),
    "test_allreduce_checks": ("test_gloo.py::TestAllReduce::test_allreduce_checks",),
    "test_allreduce_op_timeout": ("test_gloo.py::TestAllReduce::test_allreduce_op_timeout",),
    "test_allreduce_overall_timeout": ("test_gloo.py::TestAllReduce::test_allreduce_overall_timeout",),
    "test_allreduce_basics": (
        "test_gloo.py::TestAllReduce::test_allreduce_basics",
        "test_gloo.py::TestAllReduce::test_allreduce_of_several_tensors_of_a_rank",
        "test_gloo.py::TestAllReduce::test_allreduce_basics_in_half_precision",
    ),
    "test_allreduce_stress": ("test_gloo.py::TestAllReduce::test_allreduce_stress",),
    "test_allreduce_coalesced_checks": ("test_gloo.py::TestCoalescedAllReduce::test_allreduce_coalesced_checks",),
    "test_allreduce_coalesced_basics": ("test_gloo.py::TestCoalescedAllReduce::test_allreduce_coalesced_basics",),
    "test_allreduce_coalesced_stress": ("test_gloo.py::TestCoalescedAllReduce::test_allreduce_coalesced_stress",),
    "test_allreduce_coalesced_async": ("test_gloo.py::TestCoalescedAllReduce::test_allreduce_coalesced_async",),
    "test_sparse_allreduce_checks": ("test_gloo.py::TestSparseAllReduce::test_sparse_allreduce_checks",),
    "test_sparse_allreduce_basics": ("test_gloo.py::TestSparseAllReduce::test_sparse_allreduce_basics",),
    "test_allgather_into_tensor_coalesced": ("test_gloo.py::TestAllGather::test_allgather_into_tensor_coalesced",),
    "test_reduce_scatter": ("test_gloo.py::TestReduceScatter::test_reduce_scatter",),
    "test_reduce_scatter_tensor": ("test_gloo.py::TestReduceScatter::test_reduce_scatter_tensor",),
    "test_reduce_scatter_tensor_coalesced": ("test_gloo.py::TestReduceScatter::test_reduce_scatter_tensor_coalesced",),
    "test_scatter_checks": ("test_gloo.py::TestScatterAndGather::test_scatter_checks",),
    "test_scatter_basics": ("test_gloo.py::TestScatterAndGather::test_scatter_basics",),
    "test_set_gloo_pg_timeout": ("test_gloo.py::TestAllReduce::test_set_gloo_pg_timeout",),
    "test_scatter_stress": ("test_gloo.py::TestScatterAndGather::test_scatter_stress",),
    "test_gather_checks": ("test_gloo.py::TestScatterAndGather::test_gather_checks",),
    "test_gather_basics": ("test_gloo.py::TestScatterAndGather::test_gather_basics",),
    "test_gather_noncontiguous_input": ("test_gloo.py::TestScatterAndGather::test_gather_noncontiguous_input",),
    "test_gather_stress": ("test_gloo.py::TestScatterAndGather::test_gather_stress",),
    "test_allgather_checks": ("test_gloo.py::TestAllGather::test_allgather_checks",),
    "test_allgather_basics": ("test_gloo.py::TestAllGather::test_allgather_basics",),
    "test_allgather_noncontiguous_input": ("test_gloo.py::TestAllGather::test_allgather_noncontiguous_input",),
    "test_allgather_inference_mode": ("test_gloo.py::TestAllGather::test_allgather_inference_mode",),
    "test_allgather_stress": ("test_gloo.py::TestAllGather::test_allgather_stress",),
}

NOT_HERE = {
    "test_sync_batch_norm_only_empty_input": "SyncBatchNorm takes GPU tensors only",
    "test_sync_batch_norm_empty_input": "SyncBatchNorm takes GPU tensors only",
    "test_broadcast_basics_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_broadcast_stress_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_allreduce_basics_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_allreduce_stress_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_allreduce_coalesced_checks_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_sparse_allreduce_basics_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_sparse_allreduce_cuda_dispatched": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_scatter_basics_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_scatter_stress_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_gather_basics_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_gather_stress_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_allgather_basics_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
    "test_allgather_stress_cuda": "needs a GPU, and has a virtual one in tests/device/test_gloo_cases.py",
}
