#include "tests/normalization/support.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "kernels/normalization/formulas.h"

namespace normalization_test {
namespace {

namespace norm = apex::normalization;
namespace order = apex::kernels::normalization;

// Half the distance from 1 to the next value.
double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 0x1p-11;
    case at::kBFloat16:
      return 0x1p-8;
    case at::kFloat:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

// Half the step between subnormal values: the rounding error where the relative bound does not apply.
double smallest_half_step(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-25 : 0x1p-134; }

Tensor rounding(const Tensor& exact, at::ScalarType dtype) {
  return exact.abs().mul(unit_roundoff(dtype)).add(smallest_half_step(dtype));
}

Tensor wide(const Tensor& tensor) { return tensor.detach().to(at::kDouble); }

Tensor or_ones(const Tensor& weight, const Tensor& like) { return weight.defined() ? wide(weight) : at::ones_like(like[0]); }

// Statistics and normalized values in float64.
struct Normalized {
  Tensor mean, inv_std, x_hat;
};

Normalized normalized(Kind kind, const Tensor& x, double eps) {
  const Tensor mean = kind == Kind::layer ? x.mean(-1, true) : at::zeros_like(x.narrow(-1, 0, 1));
  const Tensor deviation = x - mean;
  const Tensor inv_std = (deviation.square().mean(-1, true) + eps).rsqrt();
  return {mean, inv_std, deviation * inv_std};
}

Tensor requiring_grad(const Tensor& tensor) { return tensor.defined() ? tensor.detach().clone().requires_grad_() : tensor; }

Result gradients_of(const Tensor& output, const Tensor& grad_output, const Tensor& x, const Tensor& weight,
                    const Tensor& bias) {
  std::vector<Tensor> inputs{x};
  if (weight.defined()) inputs.push_back(weight);
  if (bias.defined()) inputs.push_back(bias);
  const auto grads = torch::autograd::grad({output}, inputs, {grad_output});
  Result result{output.detach(), grads[0], {}, {}};
  if (weight.defined()) result.grad_weight = grads[1];
  if (bias.defined()) result.grad_bias = grads[2];
  return result;
}

}  // namespace

std::string name_of(const Mix& mix) {
  std::ostringstream name;
  name << (mix.kind == Kind::layer ? "Layer" : "Rms") << mix.input;
  if (mix.is_mixed()) name << "With" << mix.weight;
  if (!mix.affine) name << "Plain";
  return name.str();
}

const std::vector<Mix>& all_mixes() {
  static const std::vector<Mix> mixes = [] {
    std::vector<Mix> all;
    for (const Kind kind : {Kind::layer, Kind::rms}) {
      for (const auto input : {at::kFloat, at::kHalf, at::kBFloat16}) {
        for (const auto weight : {at::kFloat, at::kHalf, at::kBFloat16}) all.push_back({kind, input, weight});
        all.push_back({kind, input, input, false});
      }
      all.push_back({kind, at::kDouble, at::kDouble});
      all.push_back({kind, at::kDouble, at::kDouble, false});
    }
    return all;
  }();
  return mixes;
}

const std::vector<int64_t>& sizes() {
  static const std::vector<int64_t> all{1,   2,   7,   8,   9,   16,   17,   63,   64,   65,   127,
                                        128, 129, 511, 512, 513, 1000, 1023, 1024, 1025, 4096, 9001};
  return all;
}

Case random_case(const Mix& mix, int64_t rows, int64_t size, double input_mean) {
  Case c{mix, (at::randn({rows, size}) + input_mean).to(mix.input), {}, {}, at::randn({rows, size}).to(mix.weight)};
  if (!mix.affine) return c;
  // Away from 0, so that memory_efficient can recover the normalized values.
  c.weight = (at::rand({size}) + 0.5).mul(at::randn({size}).sign()).to(mix.weight);
  if (mix.kind == Kind::layer) c.bias = at::randn({size}).to(mix.weight);
  return c;
}

Tensor output_of(const Case& c, const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const auto shape = input.sizes().slice(1);
  const bool saves = c.memory_efficient;
  if (c.mix.kind == Kind::layer) {
    if (!weight.defined()) return norm::fused_layer_norm(input, shape, c.eps, saves);
    return c.mix.is_mixed() ? norm::mixed_dtype_fused_layer_norm_affine(input, weight, bias, shape, c.eps, saves)
                            : norm::fused_layer_norm_affine(input, weight, bias, shape, c.eps, saves);
  }
  if (!weight.defined()) return norm::fused_rms_norm(input, shape, c.eps, saves);
  return c.mix.is_mixed() ? norm::mixed_dtype_fused_rms_norm_affine(input, weight, shape, c.eps, saves)
                          : norm::fused_rms_norm_affine(input, weight, shape, c.eps, saves);
}

Result run(const Case& c) {
  const Tensor x = requiring_grad(c.input), weight = requiring_grad(c.weight), bias = requiring_grad(c.bias);
  return gradients_of(output_of(c, x, weight, bias), c.grad_output, x, weight, bias);
}

Result truth(const Case& c) {
  const Tensor x = wide(c.input).requires_grad_();
  const Tensor weight = c.weight.defined() ? wide(c.weight).requires_grad_() : Tensor();
  const Tensor bias = c.bias.defined() ? wide(c.bias).requires_grad_() : Tensor();
  Tensor output = normalized(c.mix.kind, x, c.eps).x_hat;
  if (weight.defined()) output = output * weight;
  if (bias.defined()) output = output + bias;
  return gradients_of(output, wide(c.grad_output), x, weight, bias);
}

// Let u be half a unit in the last place of the arithmetic. A sum along a row passes through at most kStrips additions per
// segment of its slot and the folds of lanes and slots; the formulas around it have up to 8 more roundings. Let K be the total.
// Then a mean is within K u mean|x|, a deviation from it within that plus a relative u, inv_std within a relative K u (1 +
// mean|x| inv_std), and so x_hat within
//   E = K u (1 + |x_hat|) (1 + mean|x| inv_std),
// With memory_efficient, the rounding of the output, divided by the weight, is added. The other bounds follow from E by the
// formulas, term by term, plus the last rounding to the result's dtype. In float64 both sides of the comparison have this
// error.
Result bounds(const Case& c) {
  const Tensor x = wide(c.input), dy = wide(c.grad_output), weight = or_ones(c.weight, x);
  const auto [mean, inv_std, x_hat] = normalized(c.mix.kind, x, c.eps);
  const Tensor output = c.bias.defined() ? x_hat * weight + wide(c.bias) : x_hat * weight;
  const int64_t rows = x.size(0), size = x.size(-1);
  const bool is_double = c.mix.input == at::kDouble;
  const double u = is_double ? 2 * 0x1p-53 : 0x1p-24;
  const int64_t rounds = (size + order::kSlots * order::kSegment - 1) / (order::kSlots * order::kSegment);
  const double k_u = u * static_cast<double>(rounds * order::kStrips + 7 + 3 + 8);
  const Tensor spread = x.abs().mean(-1, true) * inv_std + 1;

  Result bound;
  const Tensor x_hat_error = k_u * (x_hat.abs() + 1) * spread;
  bound.output = x_hat_error * weight.abs() + 2 * u * ((x_hat * weight).abs() + output.abs()) + rounding(output, c.mix.weight);
  Tensor error = x_hat_error;
  if (c.memory_efficient) {
    const Tensor bias = c.bias.defined() ? wide(c.bias).abs() : at::zeros_like(weight);
    error = error + (rounding(output, c.mix.weight) + 4 * u * (output.abs() + bias)) / weight.abs();
  }
  const Tensor g = (dy * weight).abs();
  const Tensor mean_g = g.mean(-1, true), mean_g_x_hat = (g * x_hat.abs()).mean(-1, true);
  const Tensor grad = truth(c).grad_input;
  bound.grad_input = inv_std * (k_u * (g + mean_g + x_hat.abs() * mean_g_x_hat) + error * mean_g_x_hat +
                                (x_hat.abs() + error) * (g * error).mean(-1, true)) +
                     k_u * spread * grad.abs() + rounding(grad, c.mix.input);
  const double row_u =
      u * static_cast<double>(order::rows_per_block(rows, size) + order::kMaxBlocks / order::kBlockLanes + 4 + 2);
  if (c.weight.defined()) {
    bound.grad_weight = (dy.abs() * error).sum(0) + row_u * (dy * (x_hat.abs() + error)).abs().sum(0) +
                        rounding((dy * x_hat).sum(0), c.mix.weight);
  }
  if (c.bias.defined()) bound.grad_bias = row_u * dy.abs().sum(0) + rounding(dy.sum(0), c.mix.weight);
  return bound;
}

::testing::AssertionResult within(const Tensor& actual, const Tensor& expected, const Tensor& bound) {
  if (actual.sizes() != expected.sizes()) return ::testing::AssertionFailure() << "shape " << actual.sizes();
  const Tensor ratio = (wide(actual) - expected).abs() / bound;
  if (actual.numel() == 0 || ratio.le(1).all().item<bool>()) return ::testing::AssertionSuccess();
  const int64_t worst = ratio.nan_to_num(INFINITY).flatten().argmax().item<int64_t>();
  const auto value_at = [&](const Tensor& tensor) { return tensor.flatten()[worst].item<double>(); };
  return ::testing::AssertionFailure() << "element " << worst << " is " << value_at(wide(actual)) << ", not "
                                       << value_at(expected) << " within " << value_at(bound.expand_as(expected).contiguous());
}

::testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected) {
  if (!actual.defined() && !expected.defined()) return ::testing::AssertionSuccess();
  if (actual.scalar_type() != expected.scalar_type()) return ::testing::AssertionFailure() << "dtypes differ";
  if (actual.sizes() != expected.sizes()) return ::testing::AssertionFailure() << "the shape is " << actual.sizes();
  // A zero's sign is one of its bits.
  const Tensor same = actual.eq(expected).logical_and(actual.signbit().eq(expected.signbit()));
  if (same.all().item<bool>()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << same.logical_not().sum().item<int64_t>() << " of " << actual.numel() << " differ";
}

void expect_true_to(const Case& c, const Result& actual) {
  const Result expected = truth(c), bound = bounds(c);
  EXPECT_EQ(actual.output.scalar_type(), c.mix.weight) << "NORM-03, NORM-04";
  EXPECT_EQ(actual.grad_input.scalar_type(), c.mix.input);
  EXPECT_TRUE(within(actual.output, expected.output, bound.output)) << "output";
  EXPECT_TRUE(within(actual.grad_input, expected.grad_input, bound.grad_input)) << "grad of input";
  if (c.weight.defined()) {
    EXPECT_EQ(actual.grad_weight.scalar_type(), c.mix.weight);
    EXPECT_TRUE(within(actual.grad_weight, expected.grad_weight, bound.grad_weight)) << "grad of weight";
  }
  if (c.bias.defined()) {
    EXPECT_EQ(actual.grad_bias.scalar_type(), c.mix.weight);
    EXPECT_TRUE(within(actual.grad_bias, expected.grad_bias, bound.grad_bias)) << "grad of bias";
  }
}

void expect_same_bits(const Result& actual, const Result& expected) {
  EXPECT_TRUE(same_bits(actual.output, expected.output)) << "output";
  EXPECT_TRUE(same_bits(actual.grad_input, expected.grad_input)) << "grad of input";
  EXPECT_TRUE(same_bits(actual.grad_weight, expected.grad_weight)) << "grad of weight";
  EXPECT_TRUE(same_bits(actual.grad_bias, expected.grad_bias)) << "grad of bias";
}

}  // namespace normalization_test
