#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include <apex_cpp/amp/casts/float_types.h>

namespace apex::amp::detail {

/// What a call's floating tensors are.
struct Operands {
  FloatTypes types;
  bool all_on_cpu = true;  // as strided tensors: sparse and nested ones, and oneDNN's own, are left to LibTorch

  void add(const at::Tensor& tensor) {
    const FloatTypes type = float_type_of(tensor);
    types |= type;
    all_on_cpu &= type.empty() || (tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_nested());
  }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) add(*tensor);
  }
  void add(at::TensorList tensors) {
    for (const at::Tensor& tensor : tensors) add(tensor);
  }
  template <class T>
  void add(const T&) {}
};

/// What may stand beside the 16-bit tensors of a call.
enum class Beside { nothing, float32 };

/// Which processors an operator computes in FP32 on: those without instructions for the type; all, unless native kernels are
/// asked for, since LibTorch's is slower than FP32's everywhere; or all, since LibTorch has no native kernel.
enum class Float32On { processors_without_units, all_processors, no_native_kernel };

/// The type whose operators compute in FP32 on this thread: that of `operands` where it is one 16-bit type on the CPU. Reports
/// to `amp::trace`.
std::optional<c10::ScalarType> type_to_widen(const Operands& operands, Beside beside = Beside::nothing,
                                             Float32On where = Float32On::processors_without_units);

/// The one 16-bit type of `operands` on the CPU, if this thread has kernels of ours for it.
std::optional<c10::ScalarType> type_with_own_kernels(const Operands& operands, Beside beside = Beside::nothing);

/// The same, if products of that type are native.
std::optional<c10::ScalarType> type_with_own_products(const Operands& operands);

/// A 16-bit tensor in FP32, with the strides it has; any other as it is.
at::Tensor in_float32(const at::Tensor& tensor);
inline std::optional<at::Tensor> in_float32(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional<at::Tensor>(in_float32(*tensor)) : std::nullopt;
}
std::vector<at::Tensor> in_float32(at::TensorList tensors);
template <class T>
const T& in_float32(const T& argument) {
  return argument;
}

/// A result in FP32, rounded to `type`; any other as it is.
at::Tensor rounded(const at::Tensor& tensor, c10::ScalarType type);
template <class... Tensors>
std::tuple<Tensors...> rounded(const std::tuple<Tensors...>& results, c10::ScalarType type) {
  return std::apply([&](const auto&... tensors) { return std::tuple<Tensors...>(rounded(tensors, type)...); }, results);
}

}  // namespace apex::amp::detail
