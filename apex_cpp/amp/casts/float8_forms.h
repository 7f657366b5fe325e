#pragma once

#include <apex_cpp/amp/casts/cast_kernels.h>
#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/float8/product.h>

#include <ATen/Operators.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <set>
#include <string>

namespace apex::amp::detail {

/// The products that level O6 computes in FP8. `call` returns an undefined tensor if the rules leave this call in bfloat16.
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

/// A convolution with rounded operands, at work if the rules round it.
struct Float8Convolution {
  Float8Convolution(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight);
  bool is_taken = false;
  Float8Operands operands;
  Float8Rounding rounding;
};

template <class Op>
struct Float8FormOfConvolution {
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

/// With `fp8_convolutions`.
template <>
struct Float8Form<at::_ops::conv1d> : Float8FormOfConvolution<at::_ops::conv1d> {};
template <>
struct Float8Form<at::_ops::conv1d_padding> : Float8FormOfConvolution<at::_ops::conv1d_padding> {};
template <>
struct Float8Form<at::_ops::conv2d> : Float8FormOfConvolution<at::_ops::conv2d> {};
template <>
struct Float8Form<at::_ops::conv2d_padding> : Float8FormOfConvolution<at::_ops::conv2d_padding> {};
template <>
struct Float8Form<at::_ops::conv3d> : Float8FormOfConvolution<at::_ops::conv3d> {};
template <>
struct Float8Form<at::_ops::conv3d_padding> : Float8FormOfConvolution<at::_ops::conv3d_padding> {};
template <>
struct Float8Form<at::_ops::conv_transpose1d> : Float8FormOfConvolution<at::_ops::conv_transpose1d> {};
template <>
struct Float8Form<at::_ops::conv_transpose2d_input> : Float8FormOfConvolution<at::_ops::conv_transpose2d_input> {};
template <>
struct Float8Form<at::_ops::conv_transpose3d_input> : Float8FormOfConvolution<at::_ops::conv_transpose3d_input> {};
template <>
struct Float8Form<at::_ops::convolution> : Float8FormOfConvolution<at::_ops::convolution> {};

/// The operators above, without overloads: "aten::linear".
std::set<std::string> float8_operators(bool with_convolutions);

}  // namespace apex::amp::detail
