// LibTorch's operators for CUDA tensors in place of libtorch_cuda's: tensors that lie in memory of the fake runtime. Every
// operator runs as its CPU kernel on the same memory, in the order of the current stream.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tests/cuda_host/backend/backend.h"
#include "tests/cuda_host/runtime/launch.h"
#include "tests/cuda_host/runtime/objects.h"

namespace cuda_host {
namespace {

using torch::jit::Stack;

// --- Memory

c10::Allocator* allocator() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return c10::cuda::CUDACachingAllocator::get();
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::cuda::CUDAGuard guard(device.value_or(c10::Device(at::kCUDA)));
  return at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::cuda::CUDAGuard guard(device.value_or(c10::Device(at::kCUDA)));
  return at::detail::empty_strided_generic(size, stride, allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(at::kFloat));
}

// The same memory as a CPU tensor. It keeps nothing alive: on a stream, memory is reused in order.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return tensor;
  const at::Tensor copy = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, device, {});
  on_host(copy).copy_(tensor);
  return copy;
}

// --- Operators

template <class Convert>
c10::IValue converted(const c10::IValue& value, const Convert& convert) {
  if (value.isTensor()) return convert(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(convert(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional(convert(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

template <class Convert>
Stack converted(const Stack& stack, const Convert& convert) {
  Stack result;
  for (const c10::IValue& value : stack) result.push_back(converted(value, convert));
  return result;
}

std::optional<c10::Device> device_among(const Stack& stack) {
  std::optional<c10::Device> device;
  for (const c10::IValue& value : stack) {
    (void)converted(value, [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cuda()) device = tensor.device();
      return tensor;
    });
  }
  return device;
}

Stack call_on_host(const c10::OperatorHandle& op, Stack arguments) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(arguments);
  return arguments;
}

// The arguments that the operator returns after writing to them: one for each of its results, if all are of this kind.
Stack written_results(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack results;
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& result : schema.returns()) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && result.alias_info() != nullptr && alias->isWrite() && *alias == *result.alias_info()) {
        results.push_back(arguments[i]);
      }
    }
  }
  return results;
}

// Operators whose result is on the host: it waits for the device.
bool waits(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 4> kNames = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero",
                                                             "aten::is_nonzero"};
  return std::find(kNames.begin(), kNames.end(), op.schema().name()) != kNames.end();
}

// Results of an operator without side effects. In a capture it runs once for the sizes of the results; each replay computes
// their values.
void compute(const c10::OperatorHandle& op, Stack& stack, Stack arguments, c10::cuda::CUDAStream stream) {
  if (waits(op)) C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
  const bool is_captured = stream_of(stream.stream()).capture != nullptr;
  if (!is_captured) finish(stream_of(stream.stream()));
  const Stack results = call_on_host(op, arguments);
  stack = converted(results, [&](const at::Tensor& tensor) { return on_device(tensor, stream.device()); });
  if (!is_captured) return;
  const Stack targets = converted(stack, on_host);
  enqueue(stream.stream(), [op, arguments, targets] {
    const Stack again = call_on_host(op, arguments);
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].isTensor()) targets[i].toTensor().copy_(again[i].toTensor());
    }
  });
}

void run_boxed(const c10::OperatorHandle& op, Stack* stack) {
  const std::optional<c10::Device> device = device_among(*stack);
  TORCH_CHECK(device.has_value(), op.schema().name(), ": the fake backend needs a tensor to know the device");
  const c10::cuda::CUDAGuard guard(*device);
  const auto stream = c10::cuda::getCurrentCUDAStream(device->index());
  Stack arguments = converted(*stack, on_host);
  Stack written = written_results(op, *stack);
  if (written.size() != op.schema().returns().size() || written.empty())
    return compute(op, *stack, std::move(arguments), stream);
  enqueue(stream.stream(), [op, arguments] { call_on_host(op, arguments); });
  *stack = std::move(written);
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const c10::cuda::CUDAGuard guard(to.is_cuda() ? to.device() : from.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  // What a CPU tensor holds now, unless the caller may not change it before the copy has run.
  const bool is_later = from.is_cuda() || (non_blocking && is_pinned(from.const_data_ptr()));
  const at::Tensor source = is_later ? on_host(from) : from.clone(), target = on_host(to);
  // Like LibTorch's allocator of pinned memory, keeps `from` until the copy has run.
  const at::Tensor kept = from.is_cpu() ? from : at::Tensor();
  enqueue(stream, [source, target, kept] { target.copy_(source); });
  if (to.is_cpu()) C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  // The stream of the other device goes on after the copy.
  if (to.is_cuda() && from.is_cuda() && to.device() != from.device()) finish_all();
  return to;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
}

}  // namespace cuda_host
