#include <apex_cpp/optimizers/detail/coded_moment.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <apex_cpp/amp/tensors/gradients.h>

#include "kernels/rules/quantized.h"

namespace apex::optimizers::detail {
namespace {

namespace rules = kernels::rules;

constexpr int kExponentPlace = 23, kMagnitudeBits = 0x7fffffff;

// The elements of a dense tensor in the order of its memory, without a copy.
at::Tensor in_memory_order(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

// The scale's exponent of each group from the largest magnitude, as rules::scale_exponent gives it. int32.
at::Tensor exponents_of(const at::Tensor& largest) {
  const at::Tensor bits = largest.view(at::kInt).bitwise_and(kMagnitudeBits);
  const at::Tensor finite = (bits + kMagnitudeBits / 256).bitwise_right_shift(kExponentPlace).clamp(1, rules::kLargestExponent);
  const at::Tensor known = at::where(bits == 0, 0, finite);
  return at::where(bits >= static_cast<int>(rules::detail::kFloatInf), static_cast<int>(rules::kNonfiniteExponent), known);
}

at::Tensor float_of_bits(const at::Tensor& exponents) { return exponents.bitwise_left_shift(kExponentPlace).view(at::kFloat); }

// Codes as integers, [groups, 32]. `sizes`: magnitudes of means or roots of squares; zeros in groups without codes.
at::Tensor codes_of(const at::Tensor& values, const at::Tensor& sizes, const at::Tensor& exponents, Moment moment) {
  const at::Tensor scaled = sizes * float_of_bits((254 - exponents).clamp_min(0)).unsqueeze(1);
  const bool is_mean = moment == Moment::mean;
  const float most = (is_mean ? rules::kMeanCodes : rules::kSquareCodes) * rules::kUnits;
  const at::Tensor position = ((is_mean ? scaled.sqrt() : scaled) * most).clamp_max(most).to(at::kInt);
  const at::Tensor whole = (position + rules::kNearest).bitwise_right_shift(rules::kUnitBits);
  return is_mean ? at::where(values < 0, -whole, whole) : at::where((sizes > 0).logical_and(whole == 0), 1, whole);
}

// Codes as values, [groups, 32], by the formulas of rules::mean_at and rules::square_at.
at::Tensor values_of(const at::Tensor& codes, const at::Tensor& exponents, Moment moment) {
  const bool is_mean = moment == Moment::mean;
  const at::Tensor scales = float_of_bits(exponents).unsqueeze(1);
  const at::Tensor parts = codes.to(at::kFloat) * (1 / (is_mean ? rules::kMeanCodes : rules::kSquareCodes));
  const at::Tensor roots = scales * parts;
  return is_mean ? scales * (parts * parts.abs()) : roots * roots;
}

// The exponents with which a step has coded these means. It chooses a group's scale before it rounds, and may round the largest
// mean down to less than half of that scale. Codes of two scales give the same values only by chance: their squares would have
// the ratio 2.
at::Tensor exponents_of_step(const at::Tensor& means, const at::Tensor& sizes, const at::Tensor& exponents) {
  const int most = static_cast<int>(rules::kLargestExponent);
  const at::Tensor next = exponents + (exponents > 0).logical_and(exponents < most);
  const at::Tensor exact = values_of(codes_of(means, sizes, next, Moment::mean), next, Moment::mean).eq(means).all(1);
  return at::where(exact, next, exponents);
}

at::Tensor coded(const at::Tensor& values, Moment moment) {
  const int64_t groups = rules::group_count(values.numel());
  const at::Tensor flat = in_memory_order(values);
  const at::Tensor rows = at::constant_pad_nd(flat, {0, groups * rules::kGroup - flat.numel()}).view({groups, rules::kGroup});
  const at::Tensor sizes = moment == Moment::mean ? rows.abs() : rows.sqrt();
  at::Tensor exponents = exponents_of(groups == 0 ? sizes.sum(1) : sizes.amax(1));
  const at::Tensor not_finite = (exponents == static_cast<int>(rules::kNonfiniteExponent)).unsqueeze(1);
  const at::Tensor finite = sizes.masked_fill(not_finite, 0);
  if (moment == Moment::mean) exponents = exponents_of_step(rows, finite, exponents);
  const at::Tensor codes = codes_of(rows, finite, exponents, moment);
  return at::cat({codes.bitwise_and(255).to(at::kByte).view(-1), exponents.to(at::kByte)});
}

}  // namespace

CodedMoment::CodedMoment(const at::Tensor& param)
    : codes_(at::zeros({rules::quantized_bytes(param.numel())}, param.options().dtype(at::kByte).requires_grad(false))),
      sizes_(param.sizes().vec()),
      strides_(param.strides().vec()) {}

CodedMoment::CodedMoment(const at::Tensor& values, Moment moment)
    : sizes_(values.sizes().vec()), strides_(values.strides().vec()) {
  const at::NoGradGuard no_grad;
  codes_ = coded(values, moment);
}

at::Tensor CodedMoment::values(Moment moment) const {
  const at::NoGradGuard no_grad;
  const int64_t groups = codes_.numel() / (rules::kGroup + 1);
  const at::Tensor codes = codes_.narrow(0, 0, groups * rules::kGroup).view({groups, rules::kGroup});
  const at::Tensor exponents = codes_.narrow(0, groups * rules::kGroup, groups).to(at::kInt);
  const at::Tensor rows = values_of(moment == Moment::mean ? codes.view(at::kChar) : codes, exponents, moment);
  const at::Tensor result = at::empty_strided(sizes_, strides_, rows.options());
  in_memory_order(result).copy_(rows.view(-1).narrow(0, 0, result.numel()));
  return result;
}

const at::Tensor& CodedMoment::codes_for(const at::Tensor& param, Moment moment) {
  if (param.strides() == strides_ && param.device() == codes_.device()) return codes_;
  const at::Tensor moved = amp::detail::in_layout_of(values(moment).to(param.device()), param);
  return (*this = CodedMoment(moved, moment)).codes_;
}

}  // namespace apex::optimizers::detail
