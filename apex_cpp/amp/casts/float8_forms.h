#pragma once

#include <apex_cpp/amp/casts/cast_kernels.h>
#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/float8/product.h>

#include <ATen/Operators.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <type_traits>

namespace apex::amp::detail {

template <class... Ops>
struct Float8Ops {};

/// The operators that level O6 computes in FP8, the convolutions with `fp8_convolutions`.
using Float8Products =
    Float8Ops<at::_ops::linear, at::_ops::matmul, at::_ops::mm, at::_ops::bmm, at::_ops::addmm, at::_ops::baddbmm>;
using Float8Convolutions = Float8Ops<at::_ops::conv1d, at::_ops::conv1d_padding, at::_ops::conv2d, at::_ops::conv2d_padding,
                                     at::_ops::conv3d, at::_ops::conv3d_padding, at::_ops::conv_transpose1d,
                                     at::_ops::conv_transpose2d_input, at::_ops::conv_transpose3d_input, at::_ops::convolution>;

// `call` returns an undefined tensor if the rules leave this call in bfloat16.
template <>
struct Float8Form<at::_ops::linear> {
  static constexpr bool exists = true;
  static at::Tensor call(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias);
};

template <>
struct Float8Form<at::_ops::matmul> {
  static constexpr bool exists = true;
  static at::Tensor call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b);
};

template <>
struct Float8Form<at::_ops::mm> {
  static constexpr bool exists = true;
  static at::Tensor call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b);
};

template <>
struct Float8Form<at::_ops::bmm> {
  static constexpr bool exists = true;
  static at::Tensor call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b);
};

template <>
struct Float8Form<at::_ops::addmm> {
  static constexpr bool exists = true;
  static at::Tensor call(const CastRules& rules, const at::Tensor& added, const at::Tensor& a, const at::Tensor& b,
                         const c10::Scalar& beta, const c10::Scalar& alpha);
};

template <>
struct Float8Form<at::_ops::baddbmm> {
  static constexpr bool exists = true;
  static at::Tensor call(const CastRules& rules, const at::Tensor& added, const at::Tensor& a, const at::Tensor& b,
                         const c10::Scalar& beta, const c10::Scalar& alpha);
};

/// The operands of a convolution, rounded. `is_taken` says whether the rules round it.
struct Float8Convolution {
  Float8Convolution(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight);
  bool is_taken = false;
  Float8Operands operands;
  Float8Rounding rounding;
};

template <class Op, class... Ops>
constexpr bool is_one_of(Float8Ops<Ops...>) {
  return (std::is_same_v<Op, Ops> || ...);
}

template <class Op>
struct Float8Form<Op, std::enable_if_t<is_one_of<Op>(Float8Convolutions())>> {
  static constexpr bool exists = true;
  template <class... Rest>
  static at::Tensor call(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, const Rest&... rest) {
    const Float8Convolution convolution(rules, input, weight);
    if (!convolution.is_taken) return {};
    const Float8Pause pause(true);  // the engine sees this call as the program's own
    const at::Tensor result = Op::call(convolution.operands.input, convolution.operands.weight, bias, rest...);
    round_gradient_of(result, convolution.rounding);
    return result;
  }
};

}  // namespace apex::amp::detail
