"""The 45 requirements by which designs of virtual devices were judged, by name, each with the test that checks it.

Every one of these tests runs with both forms of the kernels.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest


@pytest.fixture
def kernels() -> None:
    """Use any form of the kernels."""


HERE = Path(__file__).parent

CHECKS = {
    "factories": "test_tensors.py::test_a_tensor_is_made_on_a_device",
    "to_str_int": "test_tensors.py::test_a_device_can_be_named_by_its_number",
    "cuda_method": "test_tensors.py::test_a_module_moves_to_the_current_device",
    "queries": "test_tensors.py::test_a_tensor_is_plain_and_says_where_it_is",
    "printing": "test_tensors.py::test_a_tensor_is_plain_and_says_where_it_is",
    "result_device": "test_tensors.py::test_what_is_computed_is_on_the_device_with_the_values_of_the_cpu",
    "views": "test_tensors.py::test_views_share_memory_and_know_their_base",
    "inplace": "test_tensors.py::test_in_place_operations_change_the_tensor",
    "mix_add": "test_wrong_devices.py::test_tensors_on_different_devices_are_refused",
    "mix_devices": "test_wrong_devices.py::test_tensors_on_different_devices_are_refused",
    "mix_linear": "test_wrong_devices.py::test_tensors_on_different_devices_are_refused",
    "mix_loss": "test_wrong_devices.py::test_tensors_on_different_devices_are_refused",
    "scalar_mix": "test_tensors.py::test_a_scalar_of_the_cpu_goes_with_any_device",
    "numpy_error": "test_tensors.py::test_numpy_is_refused_in_torch_s_words",
    "cpu_roundtrip": "test_tensors.py::test_a_copy_on_the_host_shares_nothing",
    "backward": "test_training.py::test_gradients_are_where_the_parameters_are",
    "optim_default": "test_training.py::test_an_optimizer_does_what_it_does_on_the_cpu",
    "optim_fused": "test_training.py::test_the_states_of_a_fused_optimizer_are_on_the_device",
    "clip": "test_training.py::test_gradients_are_clipped",
    "autocast": "test_training.py::test_autocast_chooses_half_precision",
    "grad_scaler": "test_training.py::test_a_gradient_scaler_skips_a_step_that_overflows",
    "module_zoo": "test_training.py::test_convolution_norm_pooling_and_dropout_run_and_differentiate",
    "attention": "test_training.py::test_a_module_computes_and_differentiates_as_on_the_cpu",
    "lstm": "test_training.py::test_a_module_computes_and_differentiates_as_on_the_cpu",
    "deepcopy": "test_tensors.py::test_a_copy_of_a_module_is_where_the_module_is",
    "pickle": "test_tensors.py::test_a_pickled_tensor_comes_back_to_its_device",
    "save_load": "test_tensors.py::test_a_checkpoint_is_loaded_to_where_the_program_wants_it",
    "state_dict": "test_tensors.py::test_a_state_dict_is_loaded_across_devices",
    "storage_device": "test_tensors.py::test_a_storage_moves_and_is_copied",
    "pinned": "test_tensors.py::test_memory_of_the_host_can_be_pinned",
    "pin_factory": "test_tensors.py::test_memory_of_the_host_can_be_pinned",
    "loader_pins": "test_training.py::test_a_batch_of_a_data_loader_is_pinned",
    "streams": "test_streams.py::test_streams_run_beside_each_other_and_wait_when_asked",
    "memory": "test_memory.py::test_memory_is_counted_where_it_is_and_given_back",
    "oom": "test_memory.py::test_what_does_not_fit_is_refused_in_torch_s_words",
    "with_device": "test_tensors.py::test_a_block_names_the_device_for_what_is_made_in_it",
    "generator": "test_generators.py::test_a_generator_of_a_device_draws_for_it_only",
    "func_vmap": "test_training.py::test_functional_transforms_work",
    "compile_eager": "test_training.py::test_compiled_functions_run",
    "compile_aot": "test_training.py::test_compiled_functions_run",
    "checkpointing": "test_training.py::test_activation_checkpointing_computes_again",
    "ddp_device_ids": "test_groups.py::test_ddp_trains_on_devices_to_the_bits_of_the_cpu",
    "collectives": "test_groups.py::test_collectives_take_and_fill_tensors_of_devices",
    "fsdp2": "test_groups.py::test_fsdp_shards_and_trains_on_devices",
    "dcp": "test_groups.py::test_a_distributed_checkpoint_comes_back_to_the_devices",
}


def test_each_of_the_45_has_a_test_here() -> None:
    known = {
        f"{path.name}::{node.name}"
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }

    assert len(CHECKS) == 45
    assert {test for test in CHECKS.values() if test not in known} == set()
