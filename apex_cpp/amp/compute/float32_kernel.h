#pragma once

#include <torch/library.h>

#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/compute/widen.h>

namespace apex::amp::detail {

/// The kernel of an operator, `Op` being its struct in `at::_ops`, that computes in FP32 where its floating tensors are of one
/// 16-bit type: with FP32 copies that live as long as the call, and results rounded once. A product of two 16-bit numbers is
/// exact in FP32, so this is what an accumulator of FP32 gives.
template <class Op, Beside kBeside = Beside::nothing, Float32On kWhere = Float32On::processors_without_units,
          class Schema = typename Op::schema>
struct Float32Kernel;

template <class Op, Beside kBeside, Float32On kWhere, class Result, class... Args>
struct Float32Kernel<Op, kBeside, kWhere, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {
    keys = keys & kBelowComputeKey;
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
    keys = keys & kBelowComputeKey;
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
