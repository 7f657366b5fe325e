#include "kernels/float8/float8.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <vector>

namespace apex::kernels {
namespace {

struct Format {
  c10::ScalarType type;
  double largest;
  int largest_exponent;  // `largest` is 1.75 * 2^largest_exponent
};

Format format_of(Float8 format) {
  return format == Float8::e4m3 ? Format{at::kFloat8_e4m3fn, 448, 8} : Format{at::kFloat8_e5m2, 57344, 15};
}

// 2^exponents, exactly: pow would round on some devices.
at::Tensor powers_of_two(const at::Tensor& exponents) {
  return exponents.add(127).bitwise_left_shift(23).to(at::kInt).view(at::kFloat);
}

// From the largest magnitudes, float32.
at::Tensor scales_of(const at::Tensor& largest, const Format& format) {
  const auto [mantissa, exponent] = at::frexp(largest);  // mantissa in [0.5, 1)
  const at::Tensor subtracted = exponent + mantissa.gt(0.875).to(at::kInt);
  const at::Tensor of_scale =
      at::rsub(subtracted, format.largest_exponent + 1).clamp(-kLargestScaleExponent, kLargestScaleExponent);
  const at::Tensor scales = at::where(largest.eq(0), at::ones_like(largest), powers_of_two(of_scale));
  return at::where(at::isfinite(largest), scales, at::full_like(largest, std::numeric_limits<double>::quiet_NaN()));
}

// `x` is float32, and `scales` can be broadcast to it.
at::Tensor rounded(const at::Tensor& x, const at::Tensor& scales, const Format& format) {
  const at::Tensor within = (x * scales).clamp(-format.largest, format.largest);
  return within.to(format.type).to(at::kFloat).div(scales).to(at::kBFloat16);
}

}  // namespace

at::Tensor float8_scales(const at::Tensor& largest, Float8 format) { return scales_of(largest, format_of(format)); }

Float8ByGivenScale round_to_float8_with_by_aten(const at::Tensor& x, Float8 format, const at::Tensor& scale) {
  if (x.numel() == 0) return {{x.clone(), at::where(scale.eq(0), at::ones_like(scale), scale)}, at::zeros_like(scale)};
  const Format as = format_of(format);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor largest = wide.abs().amax().view({1});
  const at::Tensor own = scales_of(largest, as);
  const at::Tensor used = at::where(at::logical_and(scale.ne(0), at::isfinite(largest)), scale, own);
  return {{rounded(wide, used, as), used}, largest.nan_to_num(HUGE_VAL, HUGE_VAL)};
}

Float8Values round_to_float8_by_aten(const at::Tensor& x, Float8 format, Float8Blocks blocks) {
  const Format as = format_of(format);
  if (x.numel() == 0) {
    const int64_t rows = blocks.rows == 0 ? 1 : blocks_in(x.size(-2), blocks.rows);
    const int64_t columns = blocks.rows == 0 ? 1 : blocks_in(x.size(-1), blocks.columns);
    const auto options = x.options().dtype(at::kFloat);
    return {x.clone(), blocks.rows == 0 ? at::ones({1}, options) : at::ones({0, rows, columns}, options)};
  }
  const at::Tensor wide = x.to(at::kFloat);
  if (blocks.rows == 0) {
    const at::Tensor scale = scales_of(wide.abs().amax(), as);
    return {rounded(wide, scale, as), scale.view({1})};
  }
  const int64_t rows = x.size(-2), columns = x.size(-1);
  const int64_t block_rows = blocks_in(rows, blocks.rows), block_columns = blocks_in(columns, blocks.columns);
  const at::Tensor padded = at::constant_pad_nd(
      wide.reshape({-1, rows, columns}), {0, block_columns * blocks.columns - columns, 0, block_rows * blocks.rows - rows});
  const at::Tensor in_blocks = padded.view({-1, block_rows, blocks.rows, block_columns, blocks.columns});
  const at::Tensor scales = scales_of(in_blocks.abs().amax({2, 4}, true), as);
  const at::Tensor values = rounded(in_blocks, scales, as).reshape(padded.sizes()).slice(1, 0, rows).slice(2, 0, columns);
  return {values.reshape(x.sizes()), scales.squeeze(4).squeeze(2)};
}

}  // namespace apex::kernels
