from __future__ import annotations

import copy
import gc
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from simdist.errors import UnsupportedError
from tests.device.worlds import cuda, model, on_devices, values

Tensor = torch.Tensor
storage_of = torch.Tensor.untyped_storage


def random() -> Tensor:
    return torch.randn(3, 4, device=cuda(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.zeros(2, device=device),
        lambda device: torch.tensor([1, 2], device=device),
        lambda device: torch.arange(2, device=device),
        lambda device: torch.randn(2, device=device),
        lambda device: torch.randint(9, (2,), device=device),
        lambda device: torch.randperm(2, device=device),
        lambda device: torch.eye(2, device=device),
        lambda device: torch.full((2,), 3.0, device=device),
        lambda device: torch.linspace(0, 1, 2, device=device),
        lambda device: torch.empty_strided((2, 2), (1, 2), device=device),
        lambda device: torch.ones(2).to(device),
        lambda device: torch.ones(2).to(torch.device(device)),
        lambda device: torch.ones(2).cuda(device),
        lambda device: torch.as_tensor([1.0], device=device),
        lambda device: nn.Linear(1, 1, device="meta").to_empty(device=device).weight,
    ],
)
@on_devices
def test_a_tensor_is_made_on_a_device(make: Callable[[str], Tensor]) -> None:
    assert make("cuda:2").device == cuda(2)
    assert make("cuda").device == cuda(0)


@on_devices
def test_a_device_can_be_named_by_its_number() -> None:
    assert torch.ones(1).to(2).device == cuda(2)
    assert torch.ones(1).cuda(3).device == cuda(3)
    assert torch.ones(1, device=1).device == cuda(1)


@on_devices
def test_a_module_moves_to_the_current_device() -> None:
    torch.cuda.set_device(2)

    assert nn.Linear(1, 1).cuda().weight.device == cuda(2)


@on_devices
def test_a_block_names_the_device_for_what_is_made_in_it() -> None:
    with torch.device("cuda", 3):
        made = torch.ones(1), nn.Linear(1, 1).weight, torch.tensor(1)

    assert [each.device for each in made] == [cuda(3)] * 3


@on_devices
def test_a_tensor_is_plain_and_says_where_it_is() -> None:
    tensor = random()

    assert type(tensor) is torch.Tensor
    assert (tensor.is_cuda, tensor.is_cpu, tensor.get_device()) == (True, False, 1)
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert "device='cuda:1'" in repr(tensor)
    assert tensor.untyped_storage().device == cuda(1)


@on_devices
def test_what_is_computed_is_on_the_device_with_the_values_of_the_cpu() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    there = tensor.to(cuda(1))

    for function in (
        lambda x: x + 1,
        lambda x: x @ x.t(),
        lambda x: x.softmax(1),
        lambda x: x.sort(1, descending=True)[1],
        lambda x: torch.cat([x, x]),
        lambda x: x[x > 3],
        lambda x: torch.stack(torch.split(x, 1)),
        lambda x: nn.functional.one_hot(x.long()[0]),
        lambda x: torch.where(x > 3, x, -x),
        lambda x: torch.fft.fft(x).abs(),
        lambda x: torch.linalg.svdvals(x),
        lambda x: (x + 1j).conj() * 2,
        lambda x: (x + 1j).conj().imag + 1,
    ):
        assert function(there).device == cuda(1)
        assert torch.equal(function(there).cpu(), function(tensor))


@on_devices
def test_a_scalar_of_the_cpu_goes_with_any_device() -> None:
    assert (random() * torch.tensor(2.0)).device == cuda(1)
    assert (torch.tensor(2.0) + random()).device == cuda(1)


@on_devices
def test_views_share_memory_and_know_their_base() -> None:
    tensor = random()
    part = tensor.view(-1)[2:5]

    part.mul_(0)

    assert part.device == cuda(1)
    assert part._base is tensor
    assert tensor.flatten()[2:5].tolist() == [0, 0, 0]


@on_devices
def test_in_place_operations_change_the_tensor() -> None:
    tensor = same = torch.zeros(3, 4, device=cuda(1))

    same += 1
    same[0] = 2.0
    same[torch.tensor([1])] = 3
    same[2].fill_(4)
    same.t()[0].add_(1)

    assert tensor.tolist() == [[3, 2, 2, 2], [4, 3, 3, 3], [5, 4, 4, 4]]
    assert tensor._version > 0


@on_devices
def test_an_output_grows_to_what_is_written_into_it() -> None:
    output = torch.empty(0, device=cuda(1))
    sizes = torch.empty(0, dtype=torch.int64, device=cuda(1))

    torch.add(torch.ones(3, device=cuda(1)), 1, out=output)
    torch.max(torch.ones(2, 3, device=cuda(1)), 1, out=(torch.empty(0, device=cuda(1)), sizes))

    assert output.tolist() == [2, 2, 2]
    assert output.device == sizes.device == cuda(1)
    assert sizes.shape == (2,)


@on_devices
def test_a_resized_tensor_keeps_its_elements() -> None:
    tensor = torch.arange(4.0, device=cuda(1))
    view = tensor.view(2, 2)

    tensor.resize_(2)
    smaller = tensor.tolist()
    tensor.resize_(2, 3)

    assert smaller == [0, 1]
    assert tensor.shape == (2, 3)
    assert tensor.flatten()[:2].tolist() == [0, 1]
    assert view.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "resize",
    [lambda tensor: tensor.resize_(600), lambda tensor: storage_of(tensor).resize_(2400)],
    ids=["tensor", "storage"],
)
@on_devices
def test_views_see_the_memory_that_a_storage_grows_to(resize: Callable[[Tensor], object]) -> None:
    tensor = torch.arange(4.0, device=cuda(1))
    view, part = tensor[1:], storage_of(tensor)[0:8]

    resize(tensor)
    view.add_(10)

    assert storage_of(tensor).nbytes() == storage_of(view).nbytes() == 2400
    assert tensor[:4].tolist() == [0, 11, 12, 13]
    assert torch.cuda.memory_allocated(1) == 2560 + 512  # a part keeps the memory that it was cut from
    assert torch.empty(0, device=cuda(1)).set_(part).tolist() == [0, 1]
    del tensor, view, part
    assert torch.cuda.memory_allocated(1) == 0


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@on_devices
def test_results_of_another_shape_go_into_the_storage_of_their_view() -> None:
    numbers, memory = torch.ones(3, device=cuda(1)), torch.zeros(6, device=cuda(1))
    none, some, last = memory[:0], memory[3:5], memory[5:]

    torch.add(numbers, 1, out=none)
    torch.add(numbers, 2, out=some)
    fitted = memory.tolist()
    torch.add(numbers, 3, out=last)

    assert fitted == [2, 2, 2, 3, 3, 3]
    assert memory.tolist() == [2, 2, 2, 3, 3, 4]
    assert last.tolist() == [4, 4, 4]
    assert storage_of(memory).nbytes() == 8 * 4


@pytest.mark.parametrize(
    "write",
    [
        lambda numbers, places: torch.gather(numbers[:3], 0, places, out=numbers[1:4]),
        lambda numbers, places: torch.take(numbers, places, out=numbers[:3]),
        lambda numbers, places: torch.kthvalue(numbers, 2, out=(numbers[0], places[0])),
        lambda numbers, places: torch.add(numbers[:3], 1, out=numbers[1:]),
        lambda numbers, places: torch.cat([numbers[:2], numbers[2:]], out=numbers),
    ],
)
@on_devices
def test_results_may_not_overlap_with_what_is_read(write: Callable[[Tensor, Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="unsupported operation"):
        write(torch.arange(4.0, device=cuda(1)), torch.tensor([0, 1, 2], device=cuda(1)))


@on_devices
def test_a_result_in_the_memory_of_an_argument_leaves_no_garbage() -> None:
    gc.disable()
    try:
        tensor = torch.ones(1024, device="cuda")
        torch.add(tensor, 1, out=tensor)
        torch.cumsum(tensor[:2], 0, out=tensor[2:4])
        del tensor
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


@on_devices
def test_results_may_replace_what_is_read() -> None:
    numbers = torch.arange(4.0, device=cuda(1))

    torch.add(numbers, 1, out=numbers)
    torch.cumsum(numbers[:2], 0, out=numbers[2:])

    assert numbers.tolist() == [1, 2, 1, 3]


@pytest.mark.parametrize("stride", [(1, 2), (0, 1), (3, 1)], ids=["transposed", "expanded", "plain"])
@pytest.mark.parametrize("size", [(1, 2), (3, 4), (2, 0)], ids=["less", "more", "none"])
def test_resizing_keeps_memory_as_it_lies(stride: tuple[int, int], size: tuple[int, int]) -> None:
    """New memory is filled if torch is asked to be deterministic."""

    @on_devices
    def program() -> None:
        found = []
        for device in (torch.device("cpu"), cuda(1)):
            tensor = torch.arange(9.0, device=device).as_strided((2, 2), stride, 1)
            torch.use_deterministic_algorithms(True)
            tensor.resize_(size)
            torch.use_deterministic_algorithms(False)
            found.append(
                (tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes(), str(tensor.cpu()))
            )
        assert found[0] == found[1]

    program()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@on_devices
def test_compiled_scripts_index_with_tensors() -> None:
    source = "def put(x, index, values):\n    x[index] = values\n    x[x > 5] = 0.0\n    return x[index]\n"
    put: Any = torch.jit.CompilationUnit(source).put
    numbers = torch.arange(8.0, device=cuda(1))

    found = put(numbers, torch.tensor([1, 7], device=cuda(1)), torch.tensor([9.0, 4.0], device=cuda(1)))

    assert found.tolist() == [0, 4]
    assert numbers.tolist() == [0, 0, 2, 3, 4, 5, 0, 4]


@on_devices
def test_a_second_derivative_that_is_zero_is_added_and_viewed() -> None:
    """Torch makes it a tensor without memory: of the absolute value it is one."""
    x = torch.tensor([1.0, -2.0], device=cuda(1), requires_grad=True)
    (slope,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((slope + x * x).sum(), x)
    nothing = torch._efficientzerotensor((2, 3), device=cuda(1))

    assert second.tolist() == [2.0, -4.0]
    assert nothing.view(6).sum().item() == 0
    assert nothing.device == cuda(1)


@on_devices
def test_a_tensor_that_is_set_to_nothing_stays_on_its_device() -> None:
    tensor: Any = torch.ones(3, device=cuda(1))
    view = tensor.view(3)

    tensor.set_()

    assert (tensor.shape, tensor.device) == ((0,), cuda(1))
    assert view.tolist() == [1, 1, 1]


@on_devices
def test_an_encoder_takes_a_padding_mask_and_nested_tensors_are_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).to(cuda(1)).eval()
    padding = torch.tensor([[False, False, False], [False, False, True]], device=cuda(1))
    inputs = torch.randn(2, 3, 8, device=cuda(1))

    with torch.no_grad():
        found = encoder(inputs, src_key_padding_mask=padding)
        encoder.enable_nested_tensor = False
        plain = encoder(inputs, src_key_padding_mask=padding)

    assert torch.equal(found, plain)
    with pytest.raises(UnsupportedError, match=r"no nested tensors of strided layout; make them"):
        torch._nested_tensor_from_mask(inputs, ~padding)


@on_devices
def test_a_copy_on_the_host_shares_nothing() -> None:
    tensor = torch.zeros(3, device=cuda(1))

    on_host = tensor.cpu()
    array = on_host.numpy()
    tensor.fill_(1)

    assert array.tolist() == [0, 0, 0]
    assert tensor.tolist() == [1, 1, 1]
    assert isinstance(tensor.sum().item(), float)
    assert bool(tensor.any())


@on_devices
def test_numpy_is_refused_in_torch_s_words() -> None:
    with pytest.raises(TypeError) as caught:
        random().numpy()

    assert str(caught.value) == (
        "can't convert cuda:1 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


@on_devices
def test_a_copy_of_a_module_is_where_the_module_is() -> None:
    copied = copy.deepcopy(model())

    assert copied[0].weight.device == cuda(1)


@on_devices
def test_a_pickled_tensor_comes_back_to_its_device() -> None:
    tensor = random()

    again = pickle.loads(pickle.dumps(tensor))

    assert again.device == cuda(1)
    assert torch.equal(again, tensor)


@pytest.mark.parametrize(
    ("location", "where"),
    [(None, "cuda:1"), ("cpu", "cpu"), ("cuda:3", "cuda:3"), ({"cuda:1": "cuda:2"}, "cuda:2"), ("cuda", "cuda:0")],
)
@on_devices
def test_a_checkpoint_is_loaded_to_where_the_program_wants_it(location: Any, where: str) -> None:
    file = io.BytesIO()
    state = model().state_dict()
    torch.save(state, file)
    file.seek(0)

    loaded = torch.load(file, map_location=location)

    assert loaded["0.weight"].device == torch.device(where)
    assert all(torch.equal(loaded[name].cpu(), state[name].cpu()) for name in state)


@on_devices
def test_a_checkpoint_of_a_missing_device_is_refused_in_torch_s_words() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(1, device=cuda(1)), file)
    file.seek(0)

    with pytest.raises(RuntimeError, match="object on CUDA device 7"):
        torch.load(file, map_location="cuda:7")


@on_devices
def test_a_state_dict_is_loaded_across_devices() -> None:
    source, target = model(1), model(0)

    target.load_state_dict({name: value.cpu() for name, value in source.state_dict().items()})

    assert target[0].weight.device == cuda(0)
    assert torch.equal(target[0].weight.cpu(), source[0].weight.cpu())


@on_devices
def test_a_storage_moves_and_is_copied() -> None:
    storage = torch.arange(4, dtype=torch.uint8, device=cuda(1)).untyped_storage()

    assert storage.cuda(2).device == cuda(2)
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert storage.cpu().tolist() == [0, 1, 2, 3]
    assert len(storage) == 4


@on_devices
def test_a_slice_of_a_storage_is_a_storage_of_its_own_over_the_same_memory() -> None:
    tensor = torch.arange(4.0, device=cuda(1))
    whole = tensor.untyped_storage()
    allocated = torch.cuda.memory_allocated(1)
    part = whole[4:12]
    view = torch.empty(0, device=cuda(1)).set_(part)
    view.add_(10)

    assert (part.device, part.nbytes(), part.data_ptr() - whole.data_ptr()) == (cuda(1), 8, 4)
    assert tensor.tolist() == [0.0, 11.0, 12.0, 3.0]
    assert torch.cuda.memory_allocated(1) == allocated
    with pytest.raises(RuntimeError, match="Trying to resize storage that is not resizable"):
        part.resize_(0)
    whole.resize_(0)
    assert (whole.nbytes(), part.nbytes()) == (0, 8)
    del tensor, whole
    assert view.tolist() == [11.0, 12.0]
    assert part.tolist() == view.cpu().untyped_storage().tolist()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@on_devices
def test_a_storage_is_made_on_a_device() -> None:
    with torch.cuda.device(2):
        storages: list[Any] = [
            torch.UntypedStorage(4, device="cuda"),
            torch.UntypedStorage(4, device=cuda(1)),
            torch.UntypedStorage([1, 2], device="cuda"),
            torch.TypedStorage(3, dtype=torch.float64, device="cuda"),
            torch.cuda.FloatStorage(5),
            torch.cuda.IntStorage(),
        ]
        allocated = torch.cuda.memory_allocated()

    assert [(each.device, each.nbytes()) for each in storages] == [
        (cuda(2), 4),
        (cuda(1), 4),
        (cuda(2), 2),
        (cuda(2), 24),
        (cuda(2), 20),
        (cuda(2), 0),
    ]
    assert storages[2].tolist() == [1, 2]
    assert allocated == 4 * 512
    assert torch.UntypedStorage(4).device.type == torch.UntypedStorage(4, device="cpu").device.type == "cpu"


def test_a_storage_is_made_in_c_again_after_a_world() -> None:
    values(lambda: torch.UntypedStorage(4, device="cuda").device)

    assert "__new__" not in vars(torch.UntypedStorage)
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]


@on_devices
def test_workspaces_of_cublas_have_a_size() -> None:
    blas: Any = torch.backends.cuda
    if not hasattr(blas, "cublas_workspace_size"):
        return  # torch before 2.13
    assert (blas.cublas_workspace_size(), blas.cublaslt_workspace_size()) == (32 << 20, 32 << 20)
    assert (blas.cublas_workspace_size(1 << 20), blas.cublas_workspace_size()) == (1 << 20, 1 << 20)
    assert blas.blas_workspace_size() == blas.cublaslt_workspace_size() == 1 << 20


def test_a_tensor_that_outlives_its_world_can_be_read() -> None:
    (tensor,) = values(lambda: torch.arange(4.0, device=cuda(1)).view(2, 2))

    assert repr(tensor) == "tensor([[0., 1.],\n        [2., 3.]], device='cuda:1')"
    assert tensor.sum().item() == 6
    assert tensor.cpu().tolist() == [[0, 1], [2, 3]]


@on_devices
def test_tensors_that_are_given_by_name_are_on_the_device_too() -> None:
    numbers, order = torch.tensor([3.0, 1.0, 2.0], device="cuda").sort()

    places = torch.searchsorted(torch.tensor([3.0, 1.0, 2.0], device="cuda"), numbers, sorter=order)

    assert places.tolist() == [0, 1, 2]
    assert places.device == cuda(0)


@on_devices
def test_tensors_of_inference_mode_stay_such() -> None:
    with torch.inference_mode():
        made = torch.ones(2, device="cuda") * 2

    assert made.is_inference()
    assert not (torch.ones(2, device="cuda") * 2).is_inference()


@on_devices
def test_the_host_s_memory_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    tensor = torch.ones(1 << 20, device="cuda", requires_grad=True)
    for round_ in range(30):
        if round_ == 10:
            before = resident()
        (tensor * 2).cos().sum().backward()
        tensor.grad = None

    assert resident() - before < 32 << 20


@on_devices
def test_memory_of_the_host_can_be_pinned() -> None:
    made, pinned = torch.empty(3, pin_memory=True), torch.ones(3).pin_memory()

    assert made.is_pinned()
    assert pinned.is_pinned()
    assert pinned.tolist() == [1, 1, 1]
    assert pinned.to(cuda(1), non_blocking=True).device == cuda(1)
    assert torch.ones(3, device=cuda(1)).to("cpu", non_blocking=True).is_pinned()
    assert not torch.ones(3).is_pinned()


def test_fake_tensors_are_of_each_ranks_current_device() -> None:
    def body() -> list[str]:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        with FakeTensorMode():
            made = torch.empty(3, 5, device="cuda")
            return [str(made.device), str((made + 1).device), str(torch.empty(3, 5, device="cuda").device)]

    assert values(body, world_size=3) == [[f"cuda:{rank}"] * 3 for rank in range(3)]


@on_devices
def test_a_fake_tensor_of_unknown_size_makes_others_like_it() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    for size in (5, 7):
        tensor = mode.from_tensor(torch.ones(size, 3, device="cuda"))

        for _ in range(2):  # the second time from torch's cache
            assert str(torch.empty_like(tensor).shape) == str(tensor.shape)
            assert isinstance(torch.empty_like(tensor).shape[0], torch.SymInt)


@on_devices
def test_what_is_read_and_what_is_written_must_not_overlap() -> None:
    values = torch.arange(6.0, device=cuda())

    for write in (
        lambda: values[1:].add_(values[:-1]),
        lambda: values[1:].copy_(values[:-1]),
        lambda: values.index_add_(0, torch.tensor([0], device=cuda()), values[:1]),
        lambda: values.scatter_(0, torch.tensor([0, 1], device=cuda()), values[:2]),
    ):
        with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
            write()
    assert values.add_(values).tolist() == [0, 2, 4, 6, 8, 10]
    assert values[:3].add_(values[3:]).tolist() == [6, 10, 14]
