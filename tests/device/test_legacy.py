"""Names that older programs use work on devices, and end with the world."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import pytest
import torch

import simdist
from simdist.cluster import build
from simdist.errors import UnsupportedError
from tests.device.worlds import on_devices, values

_cuda: Any = torch.cuda
_torch: Any = torch
_NOT_RECOMMENDED = r"The torch\.cuda\.\*DtypeTensor constructors are no longer recommended"
pytestmark = pytest.mark.filterwarnings(f"ignore:{_NOT_RECOMMENDED}")


def test_the_first_tensor_that_a_rank_makes_by_its_type_warns() -> None:
    def body() -> list[tuple[str, bool]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _cuda.FloatTensor([0])
            _cuda.DoubleTensor([0])
        return [(each.filename, re.match(_NOT_RECOMMENDED, str(each.message)) is not None) for each in caught]

    assert values(body, world_size=2) == [[(__file__, True)]] * 2


@on_devices
def test_a_tensor_is_made_by_its_type() -> None:
    of = _cuda.FloatTensor
    made = of([1, 2])

    assert (made.tolist(), made.dtype, made.device) == ([1.0, 2.0], torch.float32, torch.device("cuda", 0))
    assert (of(2, 3).shape, of(torch.Size([4])).shape, of().shape) == ((2, 3), (4,), (0,))
    assert of(made).data_ptr() == made.data_ptr()
    assert _cuda.LongTensor([3]).dtype == torch.int64
    assert of([1.0], device="cuda:1").device == torch.device("cuda", 1)
    assert [each.is_cuda for each in (_cuda.HalfTensor(2), _cuda.BoolTensor([True]))] == [True, True]
    with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu was passed"):
        of([1.0], device="cpu")


@on_devices
def test_a_type_knows_what_is_one_of_it_and_converts_to_it() -> None:
    tensor = torch.ones(2)

    assert tensor.type(_cuda.HalfTensor).type() == "torch.cuda.HalfTensor"
    assert tensor.cuda().type(_cuda.LongTensor).dtype == torch.int64
    assert isinstance(tensor.cuda(), _cuda.FloatTensor)
    assert not isinstance(tensor, _cuda.FloatTensor)
    assert (_cuda.FloatTensor.dtype, _cuda.FloatTensor.is_cuda) == (torch.float32, True)
    assert repr(_cuda.FloatTensor) == "<class 'torch.cuda.FloatTensor'>"


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_the_default_type_of_a_rank_is_its_own_and_ends_with_the_world() -> None:
    def body() -> list[Any]:
        if os.environ["RANK"] == "0":
            _torch.set_default_tensor_type("torch.cuda.HalfTensor")
        made = [torch.ones(1), torch.zeros(1)]
        if os.environ["RANK"] == "0":
            _torch.set_default_tensor_type(torch.FloatTensor)
        return [(str(each.device), each.dtype) for each in (*made, torch.ones(1))]

    result = simdist.run(body, world_size=2, cluster=build(2, devices_per_host=2))

    result.raise_for_failure()
    assert result.values[0] == [("cuda:0", torch.float16)] * 2 + [("cpu", torch.float32)]
    assert result.values[1] == [("cpu", torch.float32)] * 3
    with pytest.raises((TypeError, RuntimeError), match=r"not available|Found no NVIDIA driver"):
        _cuda.FloatTensor([1])


@on_devices
def test_streams_of_any_device_are_those_of_cuda() -> None:
    stream, other = torch.Stream(device="cuda"), torch.Stream("cuda:1", priority=-1)

    with stream:
        assert torch.cuda.current_stream() == stream
        torch.ones(2, device="cuda").record_stream(stream)
    stream.wait_event(other.record_event())
    stream.synchronize()
    assert (stream.device, other.device) == (torch.device("cuda", 0), torch.device("cuda", 1))
    assert isinstance(stream, torch.Stream)
    assert issubclass(torch.cuda.Stream, torch.Stream)
    assert stream.query()


@on_devices
def test_events_of_any_device_are_those_of_cuda() -> None:
    began, ended = torch.Event(enable_timing=True), torch.Event("cuda", enable_timing=True)
    began.record()
    torch.cuda._sleep(1_000_000)
    ended.record()

    assert (began.query(), ended.query()) == (True, False)
    ended.synchronize()
    assert ended.query()
    assert began.elapsed_time(ended) > 0
    assert ended.device == torch.device("cuda", 0)
    assert isinstance(ended, torch.Event)
    assert type(torch.Event("cpu")) is not type(ended)


@on_devices
def test_what_a_compiler_is_reset_with_is_there() -> None:
    names: Any = torch._C  # `torch._dynamo.reset` imports a module that needs it

    assert isinstance(names._cuda_CUDAAllocator_AllocatorState, type)


@on_devices
def test_tensors_that_are_kept_over_iterations_are_known() -> None:
    names: Any = torch._C
    tensor = torch.ones(2, device="cuda")
    names._set_cached_tensors_enabled(True)
    try:
        names._add_cached_tensor(tensor)
        known = names._is_cached_tensor(tensor)
        names._remove_cached_tensor(tensor)
    finally:
        names._set_cached_tensors_enabled(False)

    assert known


@on_devices
def test_libraries_of_a_gpu_answer_as_if_they_were_idle() -> None:
    plans: Any = torch.backends.cuda.cufft_plan_cache
    plans.max_size = 16
    plans.clear()

    assert (plans.size, plans.max_size) == (0, 4096)
    assert not _cuda.tunable.is_enabled()
    assert _cuda.tunable.get_results() == ()
    assert not _cuda.graphs.is_current_stream_capturing()
    first, second = _cuda.nccl.unique_id(), _cuda.nccl.unique_id()
    assert (len(first), first != second) == (128, True)


@on_devices
def test_tuning_and_raw_communicators_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"leave torch\.cuda\.tunable off"):
        _cuda.tunable.enable()
    with pytest.raises(UnsupportedError, match="with the backend 'nccl'"):
        _cuda.nccl.init_rank(2, b"", 0)


def test_a_world_gives_back_the_switches_that_come_in_pairs() -> None:
    before = torch._C._get_cublas_allow_bf16_reduced_precision_reduction()

    def body() -> Any:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        return torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction

    assert simdist.run(body, world_size=2).values == [False, False]
    assert torch._C._get_cublas_allow_bf16_reduced_precision_reduction() == before
