// NORM-01..05: results and every gradient compared with float64, within bounds that support.cpp derives. Apex's own tests allow
// relative errors of 1.3e-6 to 3e-2 and more.
#include "kernels/normalization/formulas.h"
#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

class NormMix : public ::testing::TestWithParam<Mix> {
 protected:
  void SetUp() override { torch::manual_seed(11); }
};

TEST_P(NormMix, MatchesFloat64AtEverySize) {
  for (const int64_t size : sizes()) {
    for (const int64_t rows : {1, 3, 70}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << size);
      const Case c = random_case(GetParam(), rows, size);
      expect_true_to(c, run(c));
    }
  }
}

TEST_P(NormMix, Norm05FromTheOutputMatchesFloat64) {
  for (const int64_t size : {1, 9, 65, 1000, 1025}) {
    SCOPED_TRACE(size);
    Case c = random_case(GetParam(), 9, size);
    c.memory_efficient = true;
    expect_true_to(c, run(c));
  }
}

TEST_P(NormMix, WithoutAWeightNothingIsRecoveredByTheEps) {
  if (GetParam().affine) return;
  Case c = random_case(GetParam(), 9, 65);
  c.memory_efficient = true;
  c.eps = 2;
  expect_true_to(c, run(c));
}

TEST_P(NormMix, SumsOverManyRows) {
  const Case c = random_case(GetParam(), 5000, 24);
  expect_true_to(c, run(c));
}

// Two passes: the mean is taken away before anything is squared.
TEST_P(NormMix, AMeanFarFromZeroIsSubtractedFirst) {
  const Case c = random_case(GetParam(), 3, 513, 100);
  expect_true_to(c, run(c));
}

TEST_P(NormMix, ComputesOnlyRequestedGradients) {
  const Case c = random_case(GetParam(), 5, 33);
  const Result all = run(c);
  if (!c.weight.defined()) return;
  const auto grad_of = [&](bool input, bool weight) {
    const Tensor x = c.input.clone().requires_grad_(input), w = c.weight.clone().requires_grad_(weight);
    output_of(c, x, w, c.bias).backward(c.grad_output);
    EXPECT_FALSE((input ? w : x).grad().defined());
    return input ? x.grad() : w.grad();
  };
  EXPECT_TRUE(same_bits(grad_of(true, false), all.grad_input));
  EXPECT_TRUE(same_bits(grad_of(false, true), all.grad_weight));
  EXPECT_FALSE(output_of(c, c.input, c.weight, c.bias).requires_grad());
}

// NORM-03: a strided input, a strided gradient and parameters that are views give the results of contiguous copies.
TEST_P(NormMix, StridedTensorsAreCopied) {
  Case c = random_case(GetParam(), 6, 40);
  const Result expected = run(c);
  const auto strided = [](const Tensor& tensor) {
    return tensor.defined() ? at::stack({tensor, tensor}, -1).select(-1, 1) : tensor;
  };
  c.weight = strided(c.weight), c.bias = strided(c.bias), c.grad_output = strided(c.grad_output);
  const Tensor x = strided(c.input).detach().requires_grad_();
  ASSERT_FALSE(x.is_contiguous());
  const Tensor output = output_of(c, x, c.weight, c.bias);
  EXPECT_TRUE(same_bits(output, expected.output));
  EXPECT_TRUE(same_bits(torch::autograd::grad({output}, {x}, {c.grad_output})[0], expected.grad_input));
}

TEST_P(NormMix, SeveralNormalizedDimensionsAreOneRow) {
  Case c = random_case(GetParam(), 4, 30);
  const Result flat = run(c);
  const auto reshaped = [](const Tensor& tensor) { return tensor.defined() ? tensor.reshape({2, 3, 5}) : tensor; };
  c.input = c.input.reshape({4, 2, 3, 5}), c.grad_output = c.grad_output.reshape({4, 2, 3, 5});
  c.weight = reshaped(c.weight), c.bias = reshaped(c.bias);
  const Result result = run(c);
  EXPECT_TRUE(same_bits(result.output.reshape({4, 30}), flat.output));
  EXPECT_TRUE(same_bits(result.grad_input.reshape({4, 30}), flat.grad_input));
  EXPECT_TRUE(same_bits(result.grad_weight, reshaped(flat.grad_weight)));
}

TEST_P(NormMix, NoRowsGiveNoOutputAndNoGradient) {
  const Case c = random_case(GetParam(), 0, 12);
  const Result result = run(c);
  EXPECT_EQ(result.output.sizes(), (std::vector<int64_t>{0, 12}));
  EXPECT_EQ(result.grad_input.sizes(), (std::vector<int64_t>{0, 12}));
  const auto zeros_like = [](const Tensor& tensor) { return tensor.defined() ? at::zeros_like(tensor) : tensor; };
  EXPECT_TRUE(same_bits(result.grad_weight, zeros_like(c.weight)));
  EXPECT_TRUE(same_bits(result.grad_bias, zeros_like(c.bias)));
}

TEST_P(NormMix, NonFiniteValuesStayInTheirRow) {
  Case c = random_case(GetParam(), 3, 20);
  const Tensor before = run(c).output;
  c.input[1][7] = INFINITY;
  const Tensor after = run(c).output;
  EXPECT_TRUE(after[1].isnan().any().item<bool>());
  EXPECT_TRUE(same_bits(after[0], before[0]));
  EXPECT_TRUE(same_bits(after[2], before[2]));
}

INSTANTIATE_TEST_SUITE_P(All, NormMix, ::testing::ValuesIn(all_mixes()), param_name);

// NORM-05: if |weight| < eps, eps with the weight's sign replaces it. The expected gradients are computed in float64 from the
// stored output.
class TinyWeights : public ::testing::TestWithParam<std::tuple<Kind, at::ScalarType>> {};

TEST_P(TinyWeights, Norm05CountAsEps) {
  const auto [kind, dtype] = GetParam();
  Case c = random_case({kind, dtype, dtype}, 4, 8);
  c.memory_efficient = true;
  c.eps = 1e-3;
  c.weight = torch::tensor({0.0, -0.0, 1e-8, -1e-8, 5e-4, -5e-4, 1.0, -1.0}, at::kDouble).to(dtype);
  const Result result = run(c);
  const Tensor rounded = torch::tensor({1e-3, 1e-3, 1e-3, -1e-3, 1e-3, -1e-3, 1.0, -1.0}, at::kDouble).to(dtype);
  const Tensor divisors = rounded.to(at::kDouble);
  const Tensor y = result.output.to(at::kDouble), dy = c.grad_output.to(at::kDouble);
  const Tensor x_hat = (c.bias.defined() ? y - c.bias.to(at::kDouble) : y) / divisors;
  const Tensor x = c.input.to(at::kDouble);
  const Tensor from_mean = kind == Kind::layer ? x - x.mean(-1, true) : x;
  const Tensor inv_std = (from_mean.square().mean(-1, true) + c.eps).rsqrt();
  const Tensor g = dy * c.weight.to(at::kDouble);
  const Tensor centered = kind == Kind::layer ? g - g.mean(-1, true) : g;
  const Tensor grad_input = (centered - x_hat * (g * x_hat).mean(-1, true)) * inv_std;
  // Values are of order 1, sums have 8 terms, and errors of the output of up to half a unit are divided by 1e-3.
  const Tensor bound = at::full({4, 8}, 64 * (dtype == at::kFloat ? 0x1p-24 : 0x1p-53) / 1e-3, at::kDouble);
  EXPECT_TRUE(within(result.grad_input, grad_input, bound));
  EXPECT_TRUE(within(result.grad_weight, (dy * x_hat).sum(0), bound[0]));
}

INSTANTIATE_TEST_SUITE_P(All, TinyWeights,
                         ::testing::Combine(::testing::Values(Kind::layer, Kind::rms),
                                            ::testing::Values(at::kFloat, at::kDouble)));

// Gradients do not show this sign: where the weight is 0, the output is the bias, and either divisor recovers 0 from it.
TEST(WeightDivisor, Norm05OfAZeroIsPlusEps) {
  using apex::kernels::normalization::divisor;
  EXPECT_EQ(divisor(0.0f, 1e-3f), 1e-3f);
  EXPECT_EQ(divisor(-0.0f, 1e-3f), 1e-3f);
  EXPECT_EQ(divisor(0.0, 1e-3), 1e-3);
  EXPECT_EQ(divisor(-0.0, 1e-3), 1e-3);
}

// Rounding can leave a sum of squares around the mean below 0. NaN must stay, so that a bad input is seen.
TEST(SumsOfSquares, AreNotNegative) {
  using apex::kernels::normalization::centre;
  using apex::kernels::normalization::not_negative;
  EXPECT_EQ(centre(2.0f, 3.0f, 8.999f, 1.0f).squares, 0.0f);
  EXPECT_EQ(centre(2.0, 3.0, 8.999, 1.0).squares, 0.0);
  EXPECT_EQ(centre(2.0, 3.0, 9.5, 1.0).squares, 0.5);
  EXPECT_EQ(centre(2.0, 3.0, 9.5, 1.0).mean, 5.0);
  EXPECT_TRUE(std::isnan(not_negative(std::nanf(""))));
  EXPECT_TRUE(std::isnan(not_negative(std::nan(""))));
}

// The gradients of weight and bias add up the rows of each block, then the blocks. The fewer rows a block has, the smaller is
// the error.
TEST(BlocksOfRows, AreTheSmallestWithinTheirLimits) {
  for (const int64_t rows : {1, 2048, 2049, 5000, 1000003}) {
    for (const int64_t columns : {1, 3, 16, 4095, 4096, 5000}) {
      const auto is_allowed = [&](int64_t of_block) {
        return of_block >= 8 && of_block * columns >= 32768 && of_block * 256 >= rows;
      };
      const int64_t found = apex::kernels::normalization::rows_per_block(rows, columns);
      EXPECT_TRUE(is_allowed(found) && !is_allowed(found - 1)) << rows << " x " << columns << ": " << found;
    }
  }
}

// A value passes through at most 2048 additions in its block, 2 in its lane and 4 folds, each off by 2^-24 of the sum. In one
// sum over all rows, the error of these equal values would be 5 times the bound.
TEST(BlocksOfRows, BoundTheErrorOfManyRows) {
  Case c = random_case({Kind::layer, at::kFloat, at::kFloat}, 65536, 16);
  c.grad_output.fill_(0.7f);
  const double sum = 65536 * static_cast<double>(0.7f);
  EXPECT_TRUE(within(run(c).grad_bias, at::full({16}, sum, at::kDouble), at::full({16}, sum * 2060 * 0x1p-24, at::kDouble)));
}

// The float32 mean of equal values is off by one ulp; without correction, x - mean would be divided by the root of eps alone.
// NORM-01: Apex's Welford sums are exact here.
TEST(EqualValues, GiveTheBias) {
  for (const double eps : {1e-5, 0.1}) {
    for (const float value : {25.3f, -0.1f, 3.3e4f, 1e9f, 7e-30f}) {
      Case c = random_case({Kind::layer, at::kFloat, at::kFloat}, 3, 1000);
      c.eps = eps;
      c.input.fill_(value);
      const Result result = run(c);
      EXPECT_TRUE(result.output.equal(c.bias.expand_as(result.output))) << value;
      EXPECT_TRUE(at::isfinite(result.grad_input).all().item<bool>()) << value;
    }
  }
}

// NORM-02: torch's layer_norm, which Apex uses for CPU tensors, computes the same function.
TEST(TorchLayerNorm, Norm02Agrees) {
  const Case c = random_case({Kind::layer, at::kFloat, at::kFloat}, 16, 512);
  const Tensor torch_output = torch::layer_norm(c.input, {512}, c.weight, c.bias, c.eps);
  EXPECT_TRUE(within(run(c).output, torch_output.to(at::kDouble), 2 * bounds(c).output));
}

TEST(ManualRmsNorm, Norm02AgreesAndHasTheDtypesOfItsWeight) {
  const Case c = random_case({Kind::rms, at::kFloat, at::kFloat}, 16, 512);
  const Tensor manual = apex::normalization::manual_rms_norm(c.input, {512}, c.weight, c.eps);
  EXPECT_TRUE(within(run(c).output, manual.to(at::kDouble), 2 * bounds(c).output));
  const Tensor low = apex::normalization::manual_rms_norm(c.input, {512}, c.weight.to(at::kHalf), c.eps);
  EXPECT_EQ(low.scalar_type(), at::kHalf);
  EXPECT_EQ(apex::normalization::manual_rms_norm(c.input.to(at::kHalf), {512}, {}, c.eps).scalar_type(), at::kFloat);
}

// 24 squares, their sum, the mean, the eps, the root and the products: at most 60 roundings of 2^-53 here and in the reference.
TEST(ManualRmsNorm, ComputesInFloat64ForFloat64OverSeveralDimensions) {
  const Tensor x = at::randn({5, 4, 6}, at::kDouble), weight = at::randn({4, 6}, at::kDouble);
  const Tensor mean_square = x.flatten(1).square().sum(1).div(24).view({5, 1, 1});
  const Tensor expected = x / (mean_square + 0.01).sqrt() * weight;
  const Tensor found = apex::normalization::manual_rms_norm(x, {4, 6}, weight, 0.01);
  EXPECT_EQ(found.scalar_type(), at::kDouble);
  EXPECT_TRUE(within(found, expected, expected.abs() * (2 * 60 * 0x1p-53)));
}

}  // namespace
}  // namespace normalization_test
