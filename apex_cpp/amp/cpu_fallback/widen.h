#pragma once

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

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

/// The kernel of an operator, `Op` being its struct in `at::_ops`, that computes in FP32 where its floating tensors are of one
/// 16-bit type: with FP32 copies that live as long as the call, and results rounded once. A product of two 16-bit numbers is
/// exact in FP32, so this is what an accumulator of FP32 gives.
template <class Op, Beside kBeside = Beside::nothing, Float32On kWhere = Float32On::processors_without_units,
          class Schema = typename Op::schema>
struct Float32Kernel;

template <class Op, Beside kBeside, Float32On kWhere, class Result, class... Args>
struct Float32Kernel<Op, kBeside, kWhere, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {
    keys = keys & kBelowCpuFallbackKey;
    Operands operands;
    (operands.add(args), ...);
    const auto type = type_to_widen(operands, kBeside, kWhere);
    if (!type) return Op::redispatch(keys, static_cast<Args&&>(args)...);
    return rounded(Op::redispatch(keys, in_float32(args)...), *type);
  }
  static void register_in(torch::Library& library) {
    library.impl(full_operator_name(Op::name, Op::overload_name).c_str(), TORCH_FN(call));
  }
};

/// The same for an operator that writes to its first tensor.
template <class Op, Beside kBeside, Float32On kWhere, class... Args>
struct Float32Kernel<Op, kBeside, kWhere, at::Tensor&(at::Tensor&, Args...)> {
  static at::Tensor& call(c10::DispatchKeySet keys, at::Tensor& self, Args... args) {
    keys = keys & kBelowCpuFallbackKey;
    Operands operands;
    operands.add(self);
    (operands.add(args), ...);
    if (!type_to_widen(operands, kBeside, kWhere)) return Op::redispatch(keys, self, static_cast<Args&&>(args)...);
    at::Tensor result = in_float32(self);
    Op::redispatch(keys, result, in_float32(args)...);
    return self.copy_(result);
  }
  static void register_in(torch::Library& library) {
    library.impl(full_operator_name(Op::name, Op::overload_name).c_str(), TORCH_FN(call));
  }
};

}  // namespace apex::amp::detail
