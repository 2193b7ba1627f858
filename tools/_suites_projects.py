"""The projects of `tools/suites.py`: their repositories, the share of their tests that runs, the known differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PROJECTS", "Project"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Another project, and a share of its test suite."""

    name: str
    repository: str  # owner/name on GitHub
    commit: str
    tests: tuple[str, ...]  # as pytest takes them, relative to the project's folder
    roots: tuple[str, ...] = (".",)  # folders of the project that Python imports from
    needs: tuple[str, ...] = ()  # requirements for pip; torch is not among them
    options: tuple[str, ...] = ()  # for pytest
    settings: Mapping[str, str] = field(default_factory=dict)  # environment variables
    real: bool = True  # the share runs on real processes on a CPU
    devices: int = 0  # virtual CUDA devices of the simulated arm
    ranks: int = 1  # more: torchrun starts pytest on each of them, where else the tests start their ranks
    test_limit_s: float = 120.0  # a test that takes longer is stopped
    known: Mapping[str, str] = field(default_factory=dict)  # tests, `*` for anything: why they end otherwise

    def __post_init__(self) -> None:
        """Refuses a row that can't be compared."""
        if not self.real and not self.devices:
            raise ValueError(f"{self.name}: without real processes the share has to need devices")
        if any(requirement.split("=")[0].strip() == "torch" for requirement in self.needs):
            raise ValueError(f"{self.name}: torch is the environment's own")


# Of 192 tests of losses, which differ in four settings, only those with one value of two settings run. Of the tests of
# checkpoints on devices only those with the two smaller models run: the others take a minute each.
_SOME_OF_SHAMPOO = "(not losses or (group_2 and averaging_config0))"
_UNEVEN_GROUPS = (
    "hangs as on GPUs: ranks that own no block make no mesh for it, so that they count fewer groups, and the next "
    "mesh's groups have different names on different ranks (see the page of bugs found)"
)

PROJECTS: tuple[Project, ...] = (
    Project(
        name="torchsnapshot",
        repository="pytorch/torchsnapshot",
        commit="df45917d12b1e64a4567e8ca1a591909fffad02e",
        tests=("tests/test_dist_store.py", "tests/test_pg_wrapper.py", "tests/test_async_take.py"),
        needs=(
            "pyyaml",
            "aiofiles",
            "aiohttp",
            "importlib-metadata",
            "pyre-extensions",
            "psutil",
            "pytest-asyncio",
            "expecttest",
        ),
    ),
    Project(
        name="mmengine",
        repository="open-mmlab/mmengine",
        commit="254342938d9bde1775c39ea7d5181c5d294026c4",
        tests=("tests/test_dist",),
        needs=("addict", "pyyaml", "termcolor", "yapf", "opencv-python-headless", "parameterized", "coverage"),
    ),
    Project(
        name="OLMo-core",
        repository="allenai/OLMo-core",
        commit="fa6c5014c9f6e9ee789da2d9c20d5126fee8df0d",
        tests=(
            "src/test/distributed/checkpoint",
            "src/test/distributed/checkpoint_test.py",
            "src/test/distributed/nn_test.py",
            "src/test/distributed/utils_test.py",
        ),
        options=("-k", "not remotely"),  # tests that use their authors' buckets
        roots=("src",),
        needs=(
            "cached-path>=1.7.2",
            "requests",
            "dataclass-extensions>=0.3.0",
            "pyyaml",
            "safetensors",
            "importlib-resources",
            "bettermap",
            "pandas",
        ),
    ),
    Project(
        name="Distributed Shampoo",
        repository="facebookresearch/optimizers",
        commit="f60660661194de26d3ee78bae6d15820ff8e583d",
        tests=("distributed_shampoo/distributor/gpu_tests/shampoo_ddp_distributor_test.py",),
        options=("-k", f"CPU and {_SOME_OF_SHAMPOO}"),
        needs=("expecttest",),
    ),
    Project(
        name="Distributed Shampoo on devices",
        repository="facebookresearch/optimizers",
        commit="f60660661194de26d3ee78bae6d15820ff8e583d",
        tests=(
            "distributed_shampoo/distributor/gpu_tests/shampoo_ddp_distributor_test.py",
            "distributed_shampoo/distributor/gpu_tests/shampoo_dist_utils_test.py",
            "distributed_shampoo/distributor/gpu_tests/shampoo_fsdp_utils_test.py",
            "distributed_shampoo/distributor/gpu_tests/shampoo_checkpoint_test.py",
        ),
        options=("-k", f"not CPU and not linear_layers_dims0 and not linear_layers_dims1 and {_SOME_OF_SHAMPOO}"),
        needs=("expecttest",),
        real=False,
        devices=4,
        test_limit_s=240.0,
        known={
            f"*_dims{model}_model_dead_layers_dims{dead}_param_assignment_strategy{strategy}"
            "_distributed_config_type1": _UNEVEN_GROUPS
            for model, dead, strategy in ((2, 0, 1), (2, 1, 1), (3, 0, 0), (3, 0, 1), (3, 1, 1))
        },
    ),
    Project(
        name="torchtitan",
        repository="pytorch/torchtitan",
        commit="b5bcd76c66d0acb1a08b176d9639425bc55e0b2a",
        tests=(
            "tests/unit_tests/test_parallel_dims.py",
            "tests/unit_tests/test_set_determinism.py",
            "tests/unit_tests/test_loss_dtensor.py",
        ),
        needs=(
            "tyro",
            "safetensors",
            "tokenizers",
            "tensorboard",
            "fsspec",
            "einops",
            "expecttest",
            "datasets<4.8.0",
            "spmd_types==0.2.3",
            "pillow",
            "triton",
        ),
    ),
    Project(
        name="Lightning Fabric",
        repository="Lightning-AI/pytorch-lightning",
        commit="7f0c3436cd3f6ad3753125672024fc415cbcb414",
        tests=(
            "tests/tests_fabric/plugins/collectives",
            "tests/tests_fabric/strategies/test_ddp.py",
            "tests/tests_fabric/utilities/test_distributed.py",
        ),
        roots=("src", "tests"),
        needs=(
            "lightning-utilities",
            "torchmetrics",
            "tqdm",
            "pyyaml",
            "pytest-random-order",
            "pytest-rerunfailures",
            "tensorboardX",
            "click",
        ),
    ),
    Project(
        name="ignite",
        repository="pytorch/ignite",
        commit="de08e799cfb55a6cf4aa778575d6bad725385453",
        tests=("tests/ignite/distributed/comp_models/test_native.py", "tests/ignite/distributed/test_auto.py"),
        needs=("pytest-order", "dill", "packaging", "requests"),
    ),
    Project(
        name="accelerate",
        repository="huggingface/accelerate",
        commit="16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        tests=("tests/test_cpu.py", "tests/test_grad_sync.py", "tests/test_scheduler.py", "tests/test_optimizer.py"),
        roots=("src",),
        needs=("huggingface-hub", "safetensors", "pyyaml", "packaging", "parameterized", "psutil", "pytest-subtests"),
        settings={"HF_HUB_OFFLINE": "1"},
    ),
    Project(
        name="fairscale",
        repository="facebookresearch/fairscale",
        commit="146f160241651e1211c4247979f159a4ef43b54a",
        tests=("tests/nn/model_parallel", "tests/nn/wrap", "tests/optim/test_oss.py"),
        needs=("parameterized",),
    ),
    Project(
        name="Megatron-LM",
        repository="NVIDIA/Megatron-LM",
        commit="c1e938b03902ab688cf4ac1ce1eaebe7a5a17dcf",
        tests=(
            "tests/unit_tests/tensor_parallel",
            "tests/unit_tests/distributed/test_finalize_model_grads.py",
            "tests/unit_tests/distributed/test_param_and_grad_buffer.py",
            "tests/unit_tests/transformer/moe/test_a2a_token_dispatcher.py",
            "tests/unit_tests/dist_checkpointing/test_serialization.py",
            "tests/unit_tests/dist_checkpointing/test_nonpersistent.py",
        ),
        needs=("packaging", "einops", "triton", "tensorstore", "zarr", "requests", "pytest-mock", "pytest-asyncio"),
        settings={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        real=False,
        devices=8,
        ranks=8,
        known={
            "tests/unit_tests/dist_checkpointing/test_nonpersistent.py::TestLegacySaveAndLoad::*": "needs Apex: "
            "torch's Adam refuses the learning rate None",
            "tests/unit_tests/dist_checkpointing/test_serialization.py::*::test_remove_sharded_tensors": (
                "this commit calls a method of another class"
            ),
            **dict.fromkeys(
                (
                    "tests/unit_tests/distributed/test_finalize_model_grads.py::TestAllReduceLNGrads::*-2*",
                    "tests/unit_tests/tensor_parallel/test_initialization.py::Test::test_te_*_init",
                    "tests/unit_tests/tensor_parallel/test_random.py::test_checkpoint_without_output*",
                    "tests/unit_tests/tensor_parallel/test_random.py::test_convert_cuda_rng_state",
                ),
                "needs Transformer Engine, which has no build for a CPU",
            ),
        },
    ),
)
