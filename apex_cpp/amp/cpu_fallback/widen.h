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

/// The types and devices of a call's floating-point tensors.
struct Operands {
  FloatTypes types;
  bool all_on_cpu = true;   // and strided or sparse: LibTorch handles nested and oneDNN tensors
  bool any_sparse = false;  // LibTorch's kernels for them add in 16 bits, and some lack 16 bits

  void add(const at::Tensor& tensor) {
    const FloatTypes type = float_type_of(tensor);
    if (type.empty()) return;
    types |= type;
    const bool is_sparse = tensor.is_sparse() || tensor.unsafeGetTensorImpl()->is_sparse_compressed();
    any_sparse |= is_sparse;
    all_on_cpu &= tensor.is_cpu() && (is_sparse || tensor.layout() == at::kStrided) && !tensor.is_nested();
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

/// Which other types a call may mix with its 16-bit tensors.
enum class Beside { nothing, float32 };

/// On which processors an operator computes in FP32: those without instructions for the type; all, unless the user asks for
/// native kernels, because LibTorch's kernel is slower than FP32 everywhere, or adds in 16 bits; or all, because LibTorch has
/// no native kernel.
enum class Float32On { processors_without_units, all_processors, no_native_kernel };

/// The type of `operands` if it is one 16-bit type on the CPU that computes in FP32 on this thread. Reports to `amp::trace`.
std::optional<c10::ScalarType> type_to_widen(const Operands& operands, Beside beside = Beside::nothing,
                                             Float32On where = Float32On::processors_without_units);

/// The one 16-bit type of `operands` on the CPU, if this thread uses apex_cpp's kernels for it.
std::optional<c10::ScalarType> type_with_own_kernels(const Operands& operands, Beside beside = Beside::nothing);

/// As `type_with_own_kernels`, only if products of that type are native.
std::optional<c10::ScalarType> type_with_own_products(const Operands& operands);

/// A 16-bit tensor converted to FP32, with the same strides; any other tensor unchanged.
at::Tensor in_float32(const at::Tensor& tensor);
inline std::optional<at::Tensor> in_float32(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional<at::Tensor>(in_float32(*tensor)) : std::nullopt;
}
std::vector<at::Tensor> in_float32(at::TensorList tensors);
template <class T>
const T& in_float32(const T& argument) {
  return argument;
}

/// An FP32 result rounded to `type`; any other tensor unchanged.
at::Tensor rounded(const at::Tensor& tensor, c10::ScalarType type);
template <class... Tensors>
std::tuple<Tensors...> rounded(const std::tuple<Tensors...>& results, c10::ScalarType type) {
  return std::apply([&](const auto&... tensors) { return std::tuple<Tensors...>(rounded(tensors, type)...); }, results);
}

/// The kernel of an operator, `Op` being its struct in `at::_ops`, that computes in FP32 if its floating-point tensors are of
/// one 16-bit type: on FP32 copies that live during the call, with results rounded once. A product of two 16-bit numbers is
/// exact in FP32, so the result is that of an FP32 accumulator.
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

/// The kernel for an operator that writes to its first tensor.
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
