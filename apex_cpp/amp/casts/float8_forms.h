#pragma once

#include <apex_cpp/amp/casts/cast_kernels.h>
#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/float8/product.h>

#include <ATen/Operators.h>
#include <ATen/core/Tensor.h>

#include <optional>

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

}  // namespace apex::amp::detail
