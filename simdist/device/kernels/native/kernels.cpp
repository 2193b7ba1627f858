// The kernels of `simdist/device/_kernels.py` in C++: the same checks, the same results, the same accounts.
//
// An operator goes down to the CPU's kernel on CPU tensors over the same memory, and what that makes comes up as a
// tensor of the device. Whatever is out of the ordinary (devices that do not fit together, generators, memory that an
// operation has claimed, a world that looks at every kernel) is given to the kernel in Python, which is registered
// for a key that nothing else uses.
#include <Python.h>
#include <pybind11/pybind11.h>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace py = pybind11;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

namespace {

constexpr DispatchKey kPython = DispatchKey::PrivateUse3;  // where the kernels in Python are
const DispatchKeySet kCpu(DispatchKey::CPU);
constexpr int64_t kBlock = 512;

// What the module is told by Python. Never freed: tensors outlive interpreters.
struct Hooks {
  py::object provide;      // registers the kernel in Python of the operator with a name
  py::object account_of;   // the account of the calling process on a device; by default on the current one
  py::object synchronize;  // park until the current stream of a device is done
  py::object no_memory;    // raises what torch says where the host has no more memory
  py::object no_type;      // raises what a GPU says where the CPU's kernel has none for a type
  py::object refuse;       // raises what is said of tensors that no device has
  py::object outstanding;  // the class of what stands for the memory that an operation has claimed
  py::object grow;         // gives a tensor of a device the values and the shape of the CPU kernel's result
};
Hooks* hooks = nullptr;
std::atomic<bool> observed{false};  // every kernel goes to Python

// What one process has on one device: the base class of `Account` in Python, which has the rest.
struct Figures {
  std::atomic<int64_t> used{0}, reserved{0}, peak{0}, total{0}, allocations{0}, most_allocations{0}, allocated{0};
  int index = 0;
};

int64_t rounded(int64_t size) {
  return (size + kBlock - 1) & -kBlock;
}

void reserve(const std::shared_ptr<Figures>& figures, int64_t used, int64_t size) {
  py::gil_scoped_acquire gil;
  py::object account = py::cast(figures);
  if (py::hasattr(account, "_reserve")) account.attr("_reserve")(used, size);
}

// Allocates; the size in whole blocks.
int64_t take(const std::shared_ptr<Figures>& figures, size_t bytes) {
  const int64_t size = rounded(static_cast<int64_t>(bytes));
  Figures& f = *figures;
  int64_t used = f.used.load(std::memory_order_relaxed) + size;
  if (used > f.reserved.load(std::memory_order_relaxed)) {
    reserve(figures, used, size);
    used = f.used.load(std::memory_order_relaxed) + size;  // garbage may have gone meanwhile
  }
  f.used.store(used, std::memory_order_relaxed);
  if (used > f.peak.load(std::memory_order_relaxed)) f.peak.store(used, std::memory_order_relaxed);
  f.total.store(f.total.load(std::memory_order_relaxed) + size, std::memory_order_relaxed);
  f.allocated.store(f.allocated.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const int64_t count = f.allocations.load(std::memory_order_relaxed) + 1;
  f.allocations.store(count, std::memory_order_relaxed);
  if (count > f.most_allocations.load(std::memory_order_relaxed))
    f.most_allocations.store(count, std::memory_order_relaxed);
  return size;
}

// What a storage of a device holds on to: the CPU tensor that a kernel made there, and its place in the accounts.
struct Held {
  Tensor host;
  std::shared_ptr<Figures> figures;
  int64_t size;               // accounted here; -1 where a `Block` in Python does it
  PyObject* block = nullptr;  // that one, borrowed: the Python object of the storage, or of the whole, has it
};

void release(void* context) {
  auto* held = static_cast<Held*>(context);
  if (held->size >= 0) {
    held->figures->used.fetch_sub(held->size, std::memory_order_relaxed);
    held->figures->allocations.fetch_sub(1, std::memory_order_relaxed);
  }
  delete held;
}

void drop(void* context) {
  delete static_cast<c10::Storage*>(context);
}

// What a storage holds; null if torch made it itself, or Python did.
Held* held_of(const c10::Storage& storage) {
  const at::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &release ? static_cast<Held*>(data.get_context()) : nullptr;
}

Tensor shaped(const Tensor& like, c10::Storage&& storage, DispatchKey key) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// A CPU tensor over the memory of one of a device, always made anew.
Tensor anew(const Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  at::DataPtr data(const_cast<void*>(storage.data()), new c10::Storage(storage), &drop, at::Device(at::kCPU));
  c10::Storage made(
      c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true);
  return shaped(tensor, std::move(made), DispatchKey::CPU);
}

// True if an operation claims the memory.
bool is_claimed(const Held* held) {
  if (!held->block) return false;
  py::gil_scoped_acquire gil;
  py::object stands = py::handle(held->block).attr("host");
  return Py_TYPE(stands.ptr()) == reinterpret_cast<PyTypeObject*>(hooks->outstanding.ptr());
}

// Raises if an operation is still to fill the memory; `_claims.Outstanding` says how.
void settle(const Held* held) {
  if (!is_claimed(held)) return;
  py::gil_scoped_acquire gil;
  py::getattr(py::handle(held->block).attr("host"), "shape");
}

// True if the CPU tensor that a storage holds on to is also the one of this tensor.
bool is_whole(const Tensor& tensor, const Tensor& host) {
  return host.dtype() == tensor.dtype() && host.storage_offset() == tensor.storage_offset() &&
      host.sizes() == tensor.sizes() && host.strides() == tensor.strides();
}

// A CPU tensor over the memory of one of a device.
Tensor lower(const Tensor& tensor) {
  if (const Held* held = held_of(tensor.storage())) {
    settle(held);
    const Tensor& host = held->host;
    if (is_whole(tensor, host)) return host;
    // In the same storage, for torch looks there whether what is read and what is written overlap.
    const c10::Storage& storage = tensor.storage();
    if (host.storage().data() == storage.data() && host.storage().nbytes() == storage.nbytes())
      return shaped(tensor, c10::Storage(host.storage()), DispatchKey::CPU);
  }
  return anew(tensor);
}

// A CPU tensor as one of a device, and accounted there.
Tensor raise(const Tensor& made, const std::shared_ptr<Figures>& figures) {
  if (!made.defined()) return made;
  if (C10_UNLIKELY(made.layout() != at::kStrided || made.is_quantized())) {
    py::gil_scoped_acquire gil;
    hooks->refuse(py::reinterpret_steal<py::object>(THPVariable_Wrap(made)));
  }
  const Tensor tensor = C10_UNLIKELY(made.is_conj() || made.is_neg()) ? made.resolve_conj().resolve_neg() : made;
  const c10::Storage& storage = tensor.storage();
  const int64_t size = take(figures, storage.nbytes());
  const auto place = static_cast<c10::DeviceIndex>(figures->index);
  at::DataPtr data(
      const_cast<void*>(storage.data()), new Held{tensor, figures, size}, &release, at::Device(at::kCUDA, place));
  c10::Storage there(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false);
  return shaped(tensor, std::move(there), DispatchKey::CUDA);
}

std::shared_ptr<Figures> figures_of(int index) {
  py::gil_scoped_acquire gil;
  py::object which = index < 0 ? py::object(py::none()) : py::object(py::int_(index));
  return hooks->account_of(which).cast<std::shared_ptr<Figures>>();
}

// When the host needs values of an operator's arguments: as in `_awaited.py`.
enum class Waits { never, always, by_index, by_assignment, by_repeat };

// What an operator is like, read from its schema when it is first called.
struct Plan {
  bool view = false;     // its results lie in the memory of its arguments
  bool python = false;   // it draws numbers, or asks for a device
  Waits waits = Waits::never;
  std::vector<bool> written, grows;  // by argument
  bool any_grows = false;
  std::vector<bool> in_place;        // by result
};

Plan plan_of(const c10::OperatorHandle& op) {
  Plan plan;
  const auto& schema = op.schema();
  std::string name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  for (const auto& each : schema.returns()) {
    const auto* info = each.alias_info();
    if (info && !info->isWrite()) plan.view = true;
    plan.in_place.push_back(info != nullptr);
  }
  if (op.hasTag(at::Tag::inplace_view) && name.find("resize") == std::string::npos) plan.view = true;
  for (const auto& each : schema.arguments()) {
    const auto* info = each.alias_info();
    plan.written.push_back(info && info->isWrite());
    plan.grows.push_back(plan.written.back() && each.kwarg_only());
    plan.any_grows = plan.any_grows || plan.grows.back();
    if (each.name() == "generator" || (each.name() == "device" && name != "aten::_to_copy")) plan.python = true;
  }
  const bool assigns = name == "aten::index_put_" || name == "aten::index_put" || name == "aten::_index_put_impl_";
  if (assigns) {
    plan.waits = Waits::by_assignment;
  } else if (name == "aten::index.Tensor" || name == "aten::_unsafe_index.Tensor") {
    plan.waits = Waits::by_index;
  } else if (name == "aten::repeat_interleave.Tensor") {
    plan.waits = Waits::by_repeat;
  } else if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape)) {
    plan.waits = Waits::always;
  }
  return plan;
}

bool is_mask(const Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// Does the host wait in a call? `args` are the arguments on the stack, before they are lowered.
bool needs_values(Waits waits, const IValue* args) {
  if (waits == Waits::by_repeat) return args[1].isNone();
  if (waits != Waits::by_index && waits != Waits::by_assignment) return waits == Waits::always;
  bool counted = false;
  int tensors = 0, masks = 0;
  for (const IValue& each : args[1].toListRef()) {  // TorchScript's lists are of no known type
    if (!each.isTensor() || !each.toTensor().defined()) continue;
    const Tensor& index = each.toTensor();
    const bool mask = is_mask(index), here = index.device() == args[0].toTensor().device();
    counted = counted || mask == index.is_cuda();
    ++tensors;
    masks += mask && here;
  }
  if (waits == Waits::by_assignment && tensors == 1 && masks == 1 && !args[3].toBool()) {
    const Tensor& value = args[2].toTensor();
    return value.numel() != 1 || value.is_cuda();
  }
  return counted;
}

std::string name_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

void give_to_python(const c10::OperatorHandle& op, Stack* stack, bool& provided) {
  if (!provided) {
    py::gil_scoped_acquire gil;
    hooks->provide(name_of(op));
    provided = true;
  }
  op.redispatchBoxed(DispatchKeySet(kPython), stack);
}

// Calls the CPU's kernel; a host without memory is a device without memory, and a type is refused in a GPU's words.
template <class Call>
auto guarded(const c10::OperatorHandle& op, int index, const Call& of_cpu) {
  try {
    return of_cpu();
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    if (said.find("DefaultCPUAllocator: can't allocate memory") != std::string::npos) {
      py::gil_scoped_acquire gil;
      hooks->no_memory(index < 0 ? 0 : index);
    } else if (said.find("\" not implemented for '") != std::string::npos ||
               said.find("expected scalar type") == 0 || said.find("expected m1 and m2") == 0 ||
               said.find("Input type (") == 0) {
      py::gil_scoped_acquire gil;
      hooks->no_type(name_of(op), said);
    }
    throw;
  }
}

void call(const c10::OperatorHandle& op, Stack* stack, int index) {
  guarded(op, index, [&] { op.redispatchBoxed(kCpu, stack); });
}

// The tensors of one call: on which device they are, and whether that is one.
struct Devices {
  int index = -1;
  bool foreign = false;
  bool scalars = false;          // a tensor of the CPU without dimensions
  bool odd = false;              // something that only Python knows how to lower
  const Tensor* seen = nullptr;  // the first of a device

  void look(const Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!tensor.is_cuda()) {
      (tensor.dim() > 0 ? foreign : scalars) = true;
      return;
    }
    if (tensor.is_conj() || tensor.is_neg()) odd = true;
    if (const Held* held = held_of(tensor.storage())) odd = odd || is_claimed(held);
    const int on = tensor.get_device();
    if (!seen) {
      seen = &tensor;
      index = on;
    } else if (on != index) {
      foreign = true;
    }
  }
};

Tensor lowered(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? lower(tensor) : tensor;
}

// A list that TorchScript made, whose type is another object than that of `Tensor?[]`.
bool may_hold_tensors(const IValue& value) {
  return value.isList() && !value.isIntList() && !value.isBoolList() && !value.isDoubleList() &&
      std::any_of(value.toListRef().begin(), value.toListRef().end(), [](const IValue& each) { return each.isTensor(); });
}

void lower_value(IValue& value, bool grows) {
  if (value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.is_cuda()) {
      if (grows) {
        if (const Held* held = held_of(tensor.storage())) settle(held);
        value = anew(tensor);  // the kernel may give it other memory
      } else {
        value = lower(tensor);
      }
    }
  } else if (value.isTensorList()) {
    const c10::List<Tensor> before = value.toTensorList();
    c10::List<Tensor> after;
    after.reserve(before.size());
    for (size_t i = 0; i < before.size(); ++i) after.push_back(lowered(before.get(i)));
    value = std::move(after);
  } else if (value.isOptionalTensorList()) {
    const auto before = value.toOptionalTensorList();
    c10::List<std::optional<Tensor>> after;
    after.reserve(before.size());
    for (size_t i = 0; i < before.size(); ++i) {
      const std::optional<Tensor> each = before.get(i);
      after.push_back(each ? std::optional<Tensor>(lowered(*each)) : each);
    }
    value = std::move(after);
  } else if (may_hold_tensors(value)) {
    const c10::List<IValue> before = value.toList();
    c10::List<IValue> after(before.elementType());
    after.reserve(before.size());
    for (const IValue& each : value.toListRef()) after.push_back(each.isTensor() ? IValue(lowered(each.toTensor())) : each);
    value = std::move(after);
  }
}

// What a GPU refuses of an operator: types of its first tensor, a bit each; results, if they are to be the same each
// time; tensors of the CPU without dimensions.
struct Limits {
  uint64_t types = 0;
  bool varies = false;
  bool one_device = false;

  bool hold(const Tensor& first) const {
    return (types >> static_cast<int>(first.scalar_type()) & 1) ||
        (varies && at::globalContext().deterministicAlgorithms());
  }
};

class Kernel : public c10::OperatorKernel {
 public:
  explicit Kernel(Limits limits) : limits_(limits) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    if (C10_UNLIKELY(!known_)) {
      plan_ = plan_of(op);
      known_ = true;
    }
    if (plan_.view) {
      op.redispatchBoxed(kCpu, stack);
      return;
    }
    if (plan_.python || observed.load(std::memory_order_relaxed)) {
      give_to_python(op, stack, provided_);
      return;
    }
    const size_t count = plan_.written.size(), base = stack->size() - count;
    Devices devices;
    std::vector<Tensor> listed;  // what lists were asked for
    for (size_t i = 0; i < count; ++i) look((*stack)[base + i], plan_.written[i], plan_.grows[i], devices);
    if (C10_UNLIKELY(devices.odd || (devices.scalars && limits_.one_device) || devices.foreign || devices.index < 0 ||
                     limits_.hold(*devices.seen))) {
      give_to_python(op, stack, provided_);
      return;
    }
    if (C10_UNLIKELY(plan_.any_grows && shares_memory(&(*stack)[base]))) {
      give_to_python(op, stack, provided_);  // it lets torch see what overlaps
      return;
    }
    std::shared_ptr<Figures> figures;
    if (const Held* held = held_of(devices.seen->storage())) figures = held->figures;
    const bool waits = plan_.waits != Waits::never && needs_values(plan_.waits, &(*stack)[base]);
    c10::SmallVector<std::pair<IValue, IValue>, 2> written;
    for (size_t i = 0; i < count; ++i) {
      IValue& value = (*stack)[base + i];
      if (plan_.written[i]) {
        IValue was = value;
        lower_value(value, plan_.grows[i]);
        written.emplace_back(std::move(was), value);
      } else {
        lower_value(value, false);
      }
    }
    if (C10_UNLIKELY(waits)) {
      py::gil_scoped_acquire gil;
      hooks->synchronize(devices.index);
    }
    call(op, stack, devices.index);
    if (C10_UNLIKELY(!figures)) figures = figures_of(devices.index);
    for (auto& [was, now] : written) {
      if (!was.isTensor() || !was.toTensor().defined()) continue;
      const Tensor& before = was.toTensor();
      const Tensor& after = now.toTensor();
      if (C10_UNLIKELY(before.sizes() != after.sizes())) grow(before, after);
    }
    const size_t results = plan_.in_place.size(), first = stack->size() - results;
    size_t next = 0;
    for (size_t i = 0; i < results; ++i) {
      IValue& value = (*stack)[first + i];
      if (plan_.in_place[i]) {
        value = std::move(written[next++].first);
      } else if (value.isTensor()) {
        value = raise(value.toTensor(), figures);
      } else if (value.isTensorList()) {
        const c10::List<Tensor> before = value.toTensorList();
        c10::List<Tensor> after;
        for (size_t k = 0; k < before.size(); ++k) after.push_back(raise(before.get(k), figures));
        value = std::move(after);
      }
    }
  }

 private:
  static void look(const IValue& value, bool written, bool grows, Devices& devices) {
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      devices.look(tensor);
      if (written && tensor.defined() && !tensor.is_cuda()) devices.odd = true;  // Python refuses it
      // What grows from nothing gets memory of its own, in Python.
      if (grows && tensor.defined() && tensor.is_cuda() && !tensor.numel()) devices.odd = true;
    } else if (value.isTensorList()) {
      for (const IValue& each : value.toListRef()) devices.look(each.toTensor());
    } else if (value.isOptionalTensorList() || may_hold_tensors(value)) {
      for (const IValue& each : value.toListRef())
        if (each.isTensor()) devices.look(each.toTensor());
    } else if (value.isDevice()) {
      devices.odd = true;
    }
  }

  // Does a tensor that may grow have the memory of another argument?
  bool shares_memory(const IValue* args) const {
    for (size_t i = 0; i < plan_.grows.size(); ++i) {
      if (!plan_.grows[i] || !args[i].isTensor() || !args[i].toTensor().defined()) continue;
      const auto* storage = args[i].toTensor().storage().unsafeGetStorageImpl();
      const auto same = [&](const IValue& each) {
        return each.isTensor() && each.toTensor().defined() && each.toTensor().has_storage() &&
            each.toTensor().storage().unsafeGetStorageImpl() == storage;
      };
      for (size_t k = 0; k < plan_.grows.size(); ++k) {
        if (k != i && same(args[k])) return true;
        if (!args[k].isTensorList() && !args[k].isOptionalTensorList()) continue;
        for (const IValue& each : args[k].toListRef())
          if (same(each)) return true;
      }
    }
    return false;
  }

  static void grow(const Tensor& tensor, const Tensor& made) {
    py::gil_scoped_acquire gil;
    hooks->grow(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)),
                py::reinterpret_steal<py::object>(THPVariable_Wrap(made)));
  }

  const Limits limits_;
  Plan plan_;
  bool known_ = false, provided_ = false;
};

// The same for operators that only make one tensor of tensors and numbers: arguments do not go through a stack.
template <class... Args>
class Direct {
 public:
  Direct(const c10::OperatorHandle& op, Limits limits)
      : op_(op), typed_(op.typed<Tensor(Args...)>()), limits_(limits), kernel_(std::make_shared<Kernel>(limits)) {}

  Tensor operator()(Args... args) const {
    Devices devices;
    (look(args, devices), ...);
    const Held* held = devices.seen ? held_of(devices.seen->storage()) : nullptr;
    if (C10_UNLIKELY(!held || devices.odd || devices.foreign || (devices.scalars && limits_.one_device) ||
                     observed.load(std::memory_order_relaxed) || limits_.hold(*devices.seen))) {
      Stack stack;
      torch::jit::push(stack, args...);
      (*kernel_)(op_, kCpu, &stack);
      return std::move(stack.back()).toTensor();
    }
    Tensor made =
        guarded(op_, devices.index, [&] { return typed_.redispatch(kCpu, lowered_argument(args, Tensor())...); });
    return raise(made, held->figures);
  }

 private:
  static void look(const Tensor& tensor, Devices& devices) {
    devices.look(tensor);
  }

  static void look(const at::Scalar&, Devices&) {}

  // `made` keeps what had to be made for this call.
  static const Tensor& lowered_argument(const Tensor& tensor, Tensor&& made) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    const Held* held = held_of(tensor.storage());
    return held && is_whole(tensor, held->host) ? held->host : made = lower(tensor);
  }

  static const at::Scalar& lowered_argument(const at::Scalar& number, Tensor&&) {
    return number;
  }

  const c10::OperatorHandle op_;
  const c10::TypedOperatorHandle<Tensor(Args...)> typed_;
  const Limits limits_;
  const std::shared_ptr<Kernel> kernel_;
};

// `empty.memory_format` and `empty_strided`: the device must have the memory before the host is asked for it.
class Empty : public c10::OperatorKernel {
 public:
  explicit Empty(bool strided) : strided_(strided) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    const size_t base = stack->size() - 6, options = base + (strided_ ? 2 : 1);
    const IValue& pinned = (*stack)[options + 3];
    IValue& device = (*stack)[options + 2];
    const IValue& layout = (*stack)[options + 1];
    if (observed.load(std::memory_order_relaxed) || (pinned.isBool() && pinned.toBool()) || !device.isDevice() ||
        (layout.isInt() && layout.toLayout() != at::kStrided)) {
      give_to_python(op, stack, provided_);
      return;
    }
    const auto place = device.toDevice();
    const auto figures = figures_of(place.has_index() ? place.index() : -1);
    const IValue& dtype = (*stack)[options];
    const int64_t element =
        static_cast<int64_t>(dtype.isInt() ? c10::elementSize(dtype.toScalarType()) : at::get_default_dtype().itemsize());
    const auto sizes = (*stack)[base].toDimVector();
    int64_t numbers = 1;
    if (strided_) {
      const auto strides = (*stack)[base + 1].toDimVector();
      for (size_t i = 0; i < sizes.size() && i < strides.size(); ++i) numbers += (sizes[i] - 1) * strides[i];
      for (const int64_t each : sizes) numbers = each ? numbers : 0;
    } else {
      for (const int64_t each : sizes) numbers *= each;
    }
    const int64_t size = rounded(numbers * element);
    if (figures->used + size > figures->reserved) reserve(figures, figures->used + size, size);
    device = IValue(at::Device(at::kCPU));
    (*stack)[options + 3] = IValue();
    call(op, stack, figures->index);
    Tensor made = stack->back().toTensor();
    // Memory that is the same in each run; larger pieces come from the system full of zeros.
    const size_t bytes = made.storage().nbytes();
    const auto& context = at::globalContext();
    const bool filled = context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
    if (bytes && bytes <= kCleared && !filled) std::memset(made.storage().mutable_data(), 0, bytes);
    stack->back() = raise(made, figures);
  }

 private:
  static constexpr size_t kCleared = 64 << 20;
  bool strided_, provided_ = false;
};

// `copy_` between tensors of one world of devices; what comes from the host or goes there may wait, in Python.
class Copy : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    const size_t base = stack->size() - 3;
    const Tensor self = (*stack)[base].toTensor();
    const Tensor& source = (*stack)[base + 1].toTensor();
    if (observed.load(std::memory_order_relaxed) || !self.is_cuda() || !source.is_cuda() || self.is_conj() ||
        self.is_neg() || source.is_conj() || source.is_neg() || claimed(self) || claimed(source)) {
      give_to_python(op, stack, provided_);
      return;
    }
    Tensor from = lower(source);
    (*stack)[base] = lower(self);
    (*stack)[base + 1] = std::move(from);
    op.redispatchBoxed(kCpu, stack);
    stack->back() = self;
  }

 private:
  static bool claimed(const Tensor& tensor) {
    const Held* held = held_of(tensor.storage());
    return held && is_claimed(held);
  }

  bool provided_ = false;
};

class Quiet : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

std::unique_ptr<torch::Library> library;

template <class... Args>
torch::CppFunction direct(const char* name, const char* overload, Limits limits) {
  return torch::CppFunction(
      Direct<Args...>(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), limits));
}

// What models are made of, and what their backward passes call.
using T = const Tensor&;
using S = const at::Scalar&;
const std::unordered_map<std::string, torch::CppFunction (*)(const char*, const char*, Limits)> kDirect = {
    {"add.Tensor", &direct<T, T, S>},      {"sub.Tensor", &direct<T, T, S>},
    {"mul.Tensor", &direct<T, T>},         {"div.Tensor", &direct<T, T>},
    {"mm", &direct<T, T>},                 {"bmm", &direct<T, T>},
    {"addmm", &direct<T, T, T, S, S>},     {"relu", &direct<T>},
    {"threshold_backward", &direct<T, T, S>}, {"tanh", &direct<T>},
    {"tanh_backward", &direct<T, T>},      {"sigmoid", &direct<T>},
    {"sigmoid_backward", &direct<T, T>},   {"neg", &direct<T>},
    {"exp", &direct<T>},                   {"log", &direct<T>},
    {"sqrt", &direct<T>},                  {"rsqrt", &direct<T>},
    {"silu", &direct<T>},                  {"pow.Tensor_Scalar", &direct<T, S>},
};

// Puts the kernels before those in Python, for the operators with these names.
void enable(const std::vector<std::pair<std::string, Limits>>& operators) {
  Quiet quiet;  // torch would tell of the kernels that are overridden
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  library = std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", std::make_optional(DispatchKey::CUDA), __FILE__, __LINE__);
  for (const auto& [name, limits] : operators) {
    const auto found = kDirect.find(name);
    if (found == kDirect.end()) {
      library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(limits)));
    } else {
      const size_t dot = name.find('.');
      const std::string base = "aten::" + name.substr(0, dot), overload = dot == name.npos ? "" : name.substr(dot + 1);
      library->impl(name.c_str(), found->second(base.c_str(), overload.c_str(), limits));
    }
  }
  for (const bool strided : {false, true})
    library->impl(
        strided ? "empty_strided" : "empty.memory_format",
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Empty>(strided)));
  library->impl("copy_", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Copy>()));
}

const Tensor& unpacked(const py::handle& tensor) {
  return THPVariable_Unpack(tensor.ptr());
}

py::object wrapped(const Tensor& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

Held* held_by(const py::handle& storage) {
  return held_of(THPStorage_Unpack(storage.ptr()));
}

// Python's `Block` takes over the account of a storage: its account, its size, its CPU tensor; None if there is none.
py::object adopt(const py::handle& storage) {
  const Held* held = held_by(storage);
  if (!held) return py::none();
  return py::make_tuple(py::cast(held->figures), held->size, wrapped(held->host));
}

void adopted(const py::handle& storage, const py::handle& block) {
  Held* held = held_by(storage);
  held->size = -1;
  held->block = block.ptr();
}

// A storage like `slice`, over a part of the memory of `whole`, with its block; `slice` if torch made `whole` itself.
py::object part(const py::handle& whole, const py::handle& slice, const py::handle& block) {
  const Held* held = held_by(whole);
  if (!held) return py::reinterpret_borrow<py::object>(slice);
  const c10::Storage& from = THPStorage_Unpack(slice.ptr());  // it keeps the whole
  at::DataPtr bytes(const_cast<void*>(from.data()), new c10::Storage(from), &drop, at::Device(at::kCPU));
  c10::Storage on_cpu(
      c10::Storage::use_byte_size_t(), from.nbytes(), std::move(bytes), c10::GetCPUAllocator(), true);
  Tensor host = at::detail::make_tensor<c10::TensorImpl>(
      std::move(on_cpu), DispatchKeySet(DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
  at::DataPtr data(
      const_cast<void*>(from.data()), new Held{host, held->figures, -1, block.ptr()}, &release, from.device());
  c10::Storage made(c10::Storage::use_byte_size_t(), from.nbytes(), std::move(data), nullptr, false);
  return py::reinterpret_steal<py::object>(THPStorage_Wrap(std::move(made)));
}

py::object account_holding(const py::handle& tensor) {
  const Held* held = held_of(unpacked(tensor).storage());
  return held ? py::cast(held->figures) : py::none();
}

template <std::atomic<int64_t> Figures::* Field>
void field(py::class_<Figures, std::shared_ptr<Figures>>& figures, const char* name) {
  figures.def_property(
      name, [](const Figures& self) { return (self.*Field).load(); },
      [](Figures& self, int64_t value) { (self.*Field).store(value); });
}

}  // namespace

PYBIND11_MODULE(_simdist_devices, module) {
  py::class_<Figures, std::shared_ptr<Figures>> figures(module, "Figures");
  figures.def(py::init<>()).def_readwrite("index", &Figures::index);
  field<&Figures::used>(figures, "used");
  field<&Figures::reserved>(figures, "reserved");
  field<&Figures::peak>(figures, "peak");
  field<&Figures::total>(figures, "total");
  field<&Figures::allocations>(figures, "allocations");
  field<&Figures::most_allocations>(figures, "most_allocations");
  field<&Figures::allocated>(figures, "allocated");
  module.def(
      "connect",
      [](py::object provide, py::object account_of, py::object synchronize, py::object no_memory, py::object no_type,
         py::object refuse, py::object outstanding, py::object grow) {
        hooks = new Hooks{provide, account_of, synchronize, no_memory, no_type, refuse, outstanding, grow};
      });
  // For each operator a name, the types that it refuses, whether its results vary, and whether it takes no CPU scalars.
  module.def("enable", [](const py::list& operators) {
    std::vector<std::pair<std::string, Limits>> all;
    for (const auto& each : operators) {
      const auto row = each.cast<py::tuple>();
      Limits limits;
      for (const auto& type : row[1])
        limits.types |= uint64_t{1} << static_cast<int>(reinterpret_cast<THPDtype*>(type.ptr())->scalar_type);
      limits.varies = row[2].cast<bool>();
      limits.one_device = row[3].cast<bool>();
      all.emplace_back(row[0].cast<std::string>(), limits);
    }
    enable(all);
  });
  module.def("disable", [] { library.reset(); });
  module.def("observe", [](bool on) { observed = on; });
  module.def("host", [](const py::handle& tensor) { return wrapped(lower(unpacked(tensor))); });
  module.def("memory", [](const py::handle& tensor) { return wrapped(anew(unpacked(tensor))); });
  module.def("raised", [](const py::handle& tensor, const std::shared_ptr<Figures>& to) {
    return wrapped(raise(unpacked(tensor), to));
  });
  module.def("adopt", &adopt);
  module.def("adopted", &adopted);
  module.def("part", &part);
  module.def("account_holding", &account_holding);
}
