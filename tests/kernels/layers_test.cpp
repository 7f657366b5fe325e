// Kernels of memory-bound layers against formulas in float64, for every 16-bit pattern where possible, with the same bits on
// every instruction set and number of threads.
#include "kernels/layers/layers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using at::Tensor;
using kernels::BatchNormShape;

// Every 16-bit pattern, repeated up to `size`.
Tensor all_patterns(at::ScalarType dtype, int64_t size = 65536) {
  return at::arange(size, at::kLong).to(at::kShort).view(dtype);
}

class Relu : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(Relu, IsTheMaximumWithZero) {
  const Tensor x = all_patterns(GetParam());
  const Tensor y = at::empty_like(x);
  kernels::relu(x, y);
  EXPECT_TRUE(at::equal(y.isnan(), x.isnan()));
  EXPECT_TRUE(same_bits(y, at::where((x.to(at::kDouble) < 0), at::zeros_like(x), x)));
}

TEST_P(Relu, PassesGradientsForPositiveAndNaNInputs) {
  const Tensor x = all_patterns(GetParam());
  const Tensor grad_y = random_values(x.numel(), GetParam()), grad_x = at::empty_like(x);
  kernels::relu_backward(grad_y, x, grad_x);
  const Tensor passes = (x.to(at::kDouble) > 0).logical_or(x.isnan());
  EXPECT_TRUE(same_bits(grad_x, at::where(passes, grad_y, at::zeros_like(grad_y))));
}

TEST_P(Relu, CanRunInPlaceAtEverySizeAndWritesNothingElse) {
  expect_same_everywhere([&] {
    Tensors results;
    for (const int64_t size : {1, 31, 33, 65, 70001}) {
      const Tensor memory = all_patterns(GetParam(), size + 64), x = memory.narrow(0, 32, size);
      const Tensor expected = at::empty_like(x), before = memory.clone();
      kernels::relu(x, expected);
      kernels::relu(x, x);
      EXPECT_TRUE(same_bits(x, expected)) << size;
      kernels::relu_backward(x, expected, x);
      EXPECT_TRUE(same_bits(x, at::where(expected == 0, at::zeros_like(x), expected))) << size;
      EXPECT_TRUE(same_bits(memory.narrow(0, 0, 32), before.narrow(0, 0, 32)));
      EXPECT_TRUE(same_bits(memory.narrow(0, 32 + size, 32), before.narrow(0, 32 + size, 32)));
      results.push_back(x);
    }
    return results;
  });
}

INSTANTIATE_TEST_SUITE_P(Types, Relu, ::testing::Values(at::kHalf, at::kBFloat16), param_name<at::ScalarType>);

TEST(Sum, OfBFloat16IsRoundedOnceAtEverySize) {
  expect_same_everywhere([] {
    Tensors results;
    for (const int64_t size : {1, 15, 16, 17, 65536, 70001}) {
      const Tensor a = all_patterns(at::kBFloat16, size).clone(), b = a.flip(0).roll(7);
      // The float64 sum is exact, so rounding it to float32 gives the float32 sum.
      const Tensor expected = (a.to(at::kDouble) + b.to(at::kDouble)).to(at::kFloat).to(at::kBFloat16);
      kernels::add(a, b, a);
      EXPECT_TRUE(same_bits(a, expected)) << size;
      results.push_back(a);
    }
    return results;
  });
}

// ---- batch norm ----

// Float32 rounds to within 2^-24. Within a block at most 8192 / 16 / 4 terms and two more are added in sequence.
constexpr double kRounding = 0x1p-24, kSumError = (128 + 3) * kRounding;
// BFloat16 rounds to within 2^-8; 2^-134 is half of its smallest subnormal number.
constexpr double kStored = 0x1p-8;

struct BatchNormCase {
  BatchNormShape shape;
  double offset;  // of the values, in standard deviations

  Tensor x() const {
    at::manual_seed(static_cast<uint64_t>(shape.rows * 1000 + shape.channels));
    return (at::randn({shape.rows, shape.channels}) + offset).to(at::kBFloat16);
  }
  Tensor channels() const { return at::randn({shape.channels}); }
};

class BatchNorm : public ::testing::TestWithParam<BatchNormCase> {
 protected:
  BatchNormShape shape() const { return GetParam().shape; }
  kernels::BatchNormChannels channels_for(const Tensor& input) const {
    const auto batch = kernels::batch_statistics(shape(), input);
    return {GetParam().channels(), GetParam().channels(), batch.mean, kernels::inverse_std(batch.variance, 1e-5)};
  }
};

::testing::AssertionResult within(const Tensor& actual, const Tensor& exact, const Tensor& bound) {
  const Tensor error = (actual.to(at::kDouble) - exact).abs();
  if ((error <= bound).all().item<bool>()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "up to " << (error / bound).max().item<double>() << " times the bound";
}

TEST_P(BatchNorm, StatisticsMatchFloat64) {
  ASSERT_TRUE(kernels::has_batch_norm(shape()));
  const Tensor x = GetParam().x(), wide = x.to(at::kDouble);
  const auto batch = kernels::batch_statistics(shape(), x);
  const Tensor mean = wide.mean(0), variance = (wide - mean).square().mean(0);
  // Deviations are taken from the mean of 16 rows. It is within 2 standard deviations of the true mean (the mean of 16 values
  // has a quarter of their standard deviation), so squares and the correction of their mean are below 5 variances.
  const Tensor deviation = variance.sqrt();
  EXPECT_TRUE(within(batch.mean, mean, 3 * deviation * kSumError + mean.abs() * kRounding + 1e-30));
  EXPECT_TRUE(within(batch.variance, variance, 10 * variance * (kSumError + 3 * kRounding) + 1e-30));
}

TEST_P(BatchNorm, ForwardEqualsFloat64RoundedOnce) {
  const Tensor x = GetParam().x();
  const auto channels = channels_for(x);
  const Tensor y = at::empty_like(x);
  kernels::batch_norm_forward(shape(), x, channels, y);
  const Tensor scaled = (x.to(at::kDouble) - channels.mean) * channels.inv_std.to(at::kDouble) * channels.weight;
  const Tensor exact = scaled + channels.bias;
  EXPECT_TRUE(within(y, exact, exact.abs() * kStored + (scaled.abs() + channels.bias.abs()) * (5 * kRounding) + 0x1p-134));
}

TEST_P(BatchNorm, BackwardMatchesFloat64) {
  const Tensor x = GetParam().x();
  const Tensor grad_y = at::randn_like(x);
  const auto channels = channels_for(x);
  const auto rows = static_cast<double>(shape().rows);
  for (const bool by_batch : {true, false}) {
    const Tensor grad_x = at::empty_like(x);
    const auto grads = kernels::batch_norm_backward(shape(), grad_y, x, channels, by_batch, grad_x);
    const Tensor g = grad_y.to(at::kDouble), x_hat = (x.to(at::kDouble) - channels.mean) * channels.inv_std.to(at::kDouble);
    EXPECT_TRUE(within(grads.bias, g.sum(0), g.abs().sum(0) * kSumError + 1e-30));
    const Tensor products = (g * x_hat).abs().sum(0);
    EXPECT_TRUE(within(grads.weight, (g * x_hat).sum(0), products * (kSumError + 3 * kRounding) + 1e-30));
    const Tensor scale = channels.inv_std.to(at::kDouble) * channels.weight;
    const Tensor by_mean = g.sum(0) / rows, by_variance = x_hat * ((g * x_hat).sum(0) / rows);
    const Tensor exact = scale * (by_batch ? g - by_mean - by_variance : g);
    const Tensor terms = scale.abs() * (g.abs() + g.abs().sum(0) / rows + x_hat.abs() * (products / rows));
    EXPECT_TRUE(within(grad_x, exact, exact.abs() * kStored + terms * (kSumError + 8 * kRounding) + 0x1p-134)) << by_batch;
    // A network's data needs no gradient; weight and bias have theirs all the same.
    const auto of_data = kernels::batch_norm_backward(shape(), grad_y, x, channels, by_batch, /*grad_x=*/Tensor());
    EXPECT_TRUE(same_bits(of_data.weight, grads.weight) && same_bits(of_data.bias, grads.bias));
  }
}

TEST_P(BatchNorm, HasTheSameBitsEverywhere) {
  const Tensor x = GetParam().x(), grad_y = at::randn_like(x);
  const Tensor weight = GetParam().channels(), bias = GetParam().channels();
  expect_same_everywhere([&] {
    const auto batch = kernels::batch_statistics(shape(), x);
    const kernels::BatchNormChannels channels{weight, bias, batch.mean, kernels::inverse_std(batch.variance, 1e-5)};
    const Tensor y = at::empty_like(x), grad_x = at::empty_like(x);
    kernels::batch_norm_forward(shape(), x, channels, y);
    const auto grads = kernels::batch_norm_backward(shape(), grad_y, x, channels, true, grad_x);
    return Tensors{batch.mean, batch.variance, y, grads.weight, grads.bias, grad_x};
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNorm,
                         ::testing::Values(BatchNormCase{{16, 1}, 0}, BatchNormCase{{32, 3}, 1}, BatchNormCase{{4000, 24}, 0.5},
                                           BatchNormCase{{8192, 32}, 0}, BatchNormCase{{1031, 64}, 0},
                                           BatchNormCase{{80, 250}, 0}, BatchNormCase{{7, 4096}, 0},
                                           BatchNormCase{{20000, 16}, 100}));

// Neighbouring rows of an image, such as a border of one colour, may differ from all other rows.
TEST(BatchNormValues, MayStartFarFromTheirMean) {
  const BatchNormShape shape{65536, 16};
  Tensor x = at::randn({shape.rows, shape.channels});
  x.narrow(0, 0, 16).fill_(300);
  x = x.to(at::kBFloat16);
  const Tensor wide = x.to(at::kDouble), mean = wide.mean(0), variance = (wide - mean).square().mean(0);
  const auto batch = kernels::batch_statistics(shape, x);
  // One of the 16 sampled rows is 300, so the centre lies 19 from the mean, where the standard deviation is 4.8.
  EXPECT_TRUE(within(batch.variance, variance, 2 * (1 + 16) * variance * (kSumError + 3 * kRounding)));
}

// A batch is often a part of a larger tensor. The rows before and behind it are no part of its statistics.
TEST(BatchNormValues, AreReadFromTheirOwnRowsAlone) {
  const BatchNormShape shape{640, 16};
  const Tensor memory = at::full({3 * shape.rows, shape.channels}, NAN, at::kBFloat16);
  const Tensor x = memory.narrow(0, shape.rows, shape.rows);
  x.copy_(at::randn({shape.rows, shape.channels}));
  const Tensor wide = x.to(at::kDouble), mean = wide.mean(0), variance = (wide - mean).square().mean(0);
  const auto batch = kernels::batch_statistics(shape, x);
  // As in StatisticsMatchFloat64.
  EXPECT_TRUE(within(batch.mean, mean, 3 * variance.sqrt() * kSumError + mean.abs() * kRounding));
  EXPECT_TRUE(within(batch.variance, variance, 10 * variance * (kSumError + 3 * kRounding)));
}

TEST(BatchNormShapes, WithoutWholeVectorsHaveNoKernel) {
  EXPECT_FALSE(kernels::has_batch_norm({5, 3}));
  EXPECT_FALSE(kernels::has_batch_norm({16, 4097}));
  EXPECT_FALSE(kernels::has_batch_norm({0, 16}));
}

TEST(BatchNormValues, NonFiniteOnesAffectTheirChannel) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const int64_t row : {0, 700}) {
      Tensor x = at::randn({1024, 16}).to(at::kBFloat16);
      x[row][5] = value;
      const auto batch = kernels::batch_statistics({1024, 16}, x);
      const Tensor finite = batch.variance.isfinite();
      EXPECT_EQ(finite.sum().item<int64_t>(), 15);
      EXPECT_FALSE(finite[5].item<bool>());
    }
  }
}

}  // namespace
}  // namespace kernels_test
