#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/float8/history.h>
#include "opt_levels/properties.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>

namespace apex::amp::detail {

using opt_levels::Float8Recipe;

/// How the operands of a product are rounded to FP8: E4M3 for weights and activations, `gradients` for gradients. Scales are
/// powers of two, from the values of the operand itself (kernels/float8/float8.h), or from `delays`, if defined.
struct Float8Rounding {
  Float8Recipe recipe = Float8Recipe::none;
  Float8Format gradients = Float8Format::e5m2;
  Float8Delays delays = {};
};

struct Float8Factor {
  at::Tensor values;  // bfloat16
  Float8Role role = Float8Role::activation;
};

/// FP8 hardware takes K and N of a product [M, K] x [K, N] in multiples of 16.
inline constexpr int64_t kFloat8Multiple = 16;

/// What a product is added to: beta * added + alpha * product. Undefined: the product alone.
struct Float8Sum {
  at::Tensor added;
  c10::Scalar beta = 1, alpha = 1;
};

/// a @ b of [M, K] and [K, N], or of [B, M, K] and [B, K, N], as FP8 hardware computes it: both factors are rounded to FP8
/// with scales and multiplied with float32 accumulation, and the result is rounded to bfloat16 once. Recorded by autograd: the
/// gradient of each factor is such a product, too, for which its factors are rounded anew, along the dimension that it sums
/// over; gradients of any order exist. Rounding itself has the derivative 1. Any device: FP8 values are exact in bfloat16,
/// whose matrix product this calls.
at::Tensor float8_product(const Float8Sum& sum, const Float8Factor& a, const Float8Factor& b, const Float8Rounding& rounding);

/// As `torch::matmul` for two factors of two dimensions or more. Dimensions before the last two are broadcast; those of `a`
/// become rows if `b` has two dimensions.
at::Tensor float8_matmul(const Float8Factor& a, const Float8Factor& b, const Float8Rounding& rounding);

/// As `torch::linear`, for an input of one dimension or more and a weight of two. `bias` may be undefined.
at::Tensor float8_linear(const Float8Factor& input, const Float8Factor& weight, const at::Tensor& bias,
                         const Float8Rounding& rounding);

/// The operands of a convolution, rounded with one scale for each tensor, whatever the recipe. Rounding has the derivative 1.
struct Float8Operands {
  at::Tensor input, weight;
};
Float8Operands float8_operands(const Float8Factor& input, const Float8Factor& weight, const Float8Rounding& rounding);

/// Rounds the gradient of `result`, a convolution of such operands, by a hook.
void round_gradient_of(const at::Tensor& result, const Float8Rounding& rounding);

}  // namespace apex::amp::detail
