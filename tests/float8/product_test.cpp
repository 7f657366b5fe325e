// Products of factors rounded to FP8, and their gradients, against float64 products of the same rounded factors.
#include <apex_cpp/amp/float8/product.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>

#include "kernels/float8/float8.h"

namespace apex::test {
namespace {

using amp::detail::float8_linear;
using amp::detail::float8_matmul;
using amp::detail::float8_product;
using amp::detail::Float8Format;
using amp::detail::Float8Recipe;
using amp::detail::Float8Role;
using amp::detail::Float8Rounding;
using kernels::Float8;
using kernels::Float8Blocks;
using torch::Tensor;

/// A recipe, with the blocks of its factors where the columns of the left factor are summed over.
struct Recipe {
  Float8Rounding rounding;
  Float8Blocks activations, weights;
  Float8 gradients;
};

const Recipe kRecipes[] = {
    {{Float8Recipe::current, Float8Format::e5m2}, {0, 0}, {0, 0}, Float8::e5m2},
    {{Float8Recipe::current, Float8Format::e4m3}, {0, 0}, {0, 0}, Float8::e4m3},
    {{Float8Recipe::block128, Float8Format::e4m3}, {1, 128}, {128, 128}, Float8::e4m3},
    {{Float8Recipe::mx, Float8Format::e4m3}, {1, 32}, {1, 32}, Float8::e4m3},
};

class Float8Products : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { torch::manual_seed(5); }
  const Recipe& recipe() const { return kRecipes[GetParam()]; }

  // The factors of a product in float64, rounded as its left and right factor.
  Tensor left(const Tensor& values, Float8 format, Float8Blocks blocks) const {
    return kernels::round_to_float8(values.detach(), format, blocks).values.to(torch::kDouble);
  }
  Tensor right(const Tensor& values, Float8 format, Float8Blocks blocks) const {
    return kernels::round_to_float8(values.detach(), format, blocks.transposed()).values.to(torch::kDouble);
  }
};
INSTANTIATE_TEST_SUITE_P(EveryRecipe, Float8Products, ::testing::Range<size_t>(0, 4));

// A sum of K products that are exact in float32 is off by (K - 1) * 2^-24 of the sum of magnitudes, in any order; rounding the
// result to bfloat16 by 2^-8 of it.
void expect_product(const Tensor& result, const Tensor& a, const Tensor& b, const Tensor& added = {}, double alpha = 1) {
  Tensor exact = alpha * a.matmul(b), magnitudes = std::abs(alpha) * a.abs().matmul(b.abs());
  if (added.defined()) exact = exact + added, magnitudes = magnitudes + added.abs();
  // One more addition and one more multiplication where there is something to add.
  const double terms = static_cast<double>(a.size(-1)) + (added.defined() ? 2 : 0);
  const Tensor bound = terms * std::pow(2, -24) * magnitudes;
  const Tensor error = (result.to(torch::kDouble) - exact).abs();
  EXPECT_EQ(error.gt(bound + std::pow(2, -8) * (exact.abs() + bound)).sum().item<int64_t>(), 0)
      << "largest error " << error.max().item<double>();
}

// At most this share of a value's square, on average, is what rounding adds as noise. A value between 2^k and 2^(k+1) is off by
// anything up to half a step, 2^(k-4) in e4m3, 2^(k-3) in e5m2 and 2^(k-8) in bfloat16, whose square is on average a third of
// that half step's.
double noise_of(Float8 format) { return std::pow(2, format == Float8::e4m3 ? -8 : -6) / 3; }
const double kBfloat16Noise = std::pow(2, -16) / 3;

// Such shares add up in a product of random factors.
double in_decibels(double noise) { return -10 * std::log10(noise); }

double signal_to_noise(const Tensor& exact, const Tensor& result) {
  const Tensor noise = result.to(torch::kDouble) - exact;
  return 20 * std::log10(exact.norm().item<double>() / noise.norm().item<double>());
}

Tensor bfloat16(at::IntArrayRef sizes) { return torch::randn(sizes).to(torch::kBFloat16); }

struct Layer {
  Tensor x = bfloat16({48, 256}).requires_grad_(), weight = (bfloat16({320, 256}) * 0.05).detach().requires_grad_();
  Tensor bias = bfloat16({320}).requires_grad_(), grad = bfloat16({48, 320});
};

TEST_P(Float8Products, OfALinearLayerAreThoseOfItsRoundedFactors) {
  const Layer layer;
  const Tensor y =
      float8_linear({layer.x, Float8Role::activation}, {layer.weight, Float8Role::weight}, layer.bias, recipe().rounding);
  y.backward(layer.grad);
  const auto& [rounding, activations, weights, gradients] = recipe();
  const auto e4m3 = Float8::e4m3;
  expect_product(y, left(layer.x, e4m3, activations), right(layer.weight.t(), e4m3, weights),
                 layer.bias.detach().to(torch::kDouble));
  expect_product(layer.x.grad(), left(layer.grad, gradients, activations), right(layer.weight, e4m3, weights));
  expect_product(layer.weight.grad(), left(layer.grad.t(), gradients, activations), right(layer.x, e4m3, activations));
  EXPECT_TRUE(torch::equal(layer.bias.grad(), layer.grad.sum(0)));
  EXPECT_TRUE(layer.weight.grad().is_contiguous());
}

// One dimension is one row.
TEST_P(Float8Products, OfALinearLayerAreThoseOfTheRowsOfItsInput) {
  const Layer layer;
  const auto linear = [&](const Tensor& x) {
    return float8_linear({x}, {layer.weight, Float8Role::weight}, layer.bias, recipe().rounding);
  };
  const Tensor rows = layer.x.detach();
  EXPECT_TRUE(torch::equal(linear(rows.view({4, 12, 256})), linear(rows).view({4, 12, 320})));
  EXPECT_TRUE(torch::equal(linear(rows[5]), linear(rows.slice(0, 5, 6))[0]));
}

// Beside the product of unrounded factors, for the output and every gradient. 25.8 dB, and 21.9 where gradients are e5m2.
TEST_P(Float8Products, KeepTheSignalOfALayer) {
  const Layer layer;
  const Tensor y = float8_linear({layer.x, Float8Role::activation}, {layer.weight, Float8Role::weight}, {}, recipe().rounding);
  y.backward(layer.grad);
  const Tensor x = layer.x.detach().to(torch::kDouble), weight = layer.weight.detach().to(torch::kDouble);
  const Tensor grad = layer.grad.to(torch::kDouble);
  const double weights = noise_of(Float8::e4m3) + kBfloat16Noise;  // and the result's rounding
  EXPECT_GT(signal_to_noise(x.matmul(weight.t()), y), in_decibels(noise_of(Float8::e4m3) + weights));
  const double of_gradients = in_decibels(noise_of(recipe().gradients) + weights);
  EXPECT_GT(signal_to_noise(grad.matmul(weight), layer.x.grad()), of_gradients);
  EXPECT_GT(signal_to_noise(grad.t().matmul(x), layer.weight.grad()), of_gradients);
}

TEST_P(Float8Products, OfBatchesAreBroadcast) {
  const Tensor a = bfloat16({3, 1, 20, 64}).requires_grad_(), b = bfloat16({2, 64, 48}).requires_grad_();
  const Tensor y = float8_matmul({a}, {b}, recipe().rounding);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 2, 20, 48}));
  const Tensor wide_a = a.detach().expand({3, 2, 20, 64}).reshape({6, 20, 64});
  const Tensor wide_b = b.detach().expand({3, 2, 64, 48}).reshape({6, 64, 48});
  expect_product(y.reshape({6, 20, 48}), left(wide_a, Float8::e4m3, recipe().activations),
                 right(wide_b, Float8::e4m3, recipe().activations));
  const Tensor grad = bfloat16({3, 2, 20, 48});
  y.backward(grad);
  EXPECT_EQ(a.grad().sizes(), a.sizes());
  EXPECT_EQ(b.grad().sizes(), b.sizes());
  // The gradients of what was broadcast are sums of up to three bfloat16 values: roundings of these bring one share of the sum
  // together, each of the two sums at most one. 48.2 dB.
  const double of_sum = in_decibels(3 * kBfloat16Noise);
  const Tensor of_batch = grad.reshape({6, 20, 48});
  const Tensor exact = left(of_batch, recipe().gradients, recipe().activations)
                           .matmul(right(wide_b.mT(), Float8::e4m3, recipe().activations))
                           .reshape({3, 2, 20, 64});
  EXPECT_GT(signal_to_noise(exact.sum(1, true), a.grad()), of_sum);
  const Tensor exact_b = left(wide_a.mT(), Float8::e4m3, recipe().activations)
                             .matmul(right(of_batch, recipe().gradients, recipe().activations))
                             .reshape({3, 2, 64, 48});
  EXPECT_GT(signal_to_noise(exact_b.sum(0), b.grad()), of_sum);
}

TEST_P(Float8Products, RoundAMatrixOnceForAllOfABatch) {
  const Tensor a = bfloat16({48, 64}).requires_grad_(), b = bfloat16({2, 3, 64, 20}).requires_grad_();
  const Tensor y = float8_matmul({a}, {b}, recipe().rounding);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, 48, 20}));
  EXPECT_TRUE(y.is_contiguous());
  expect_product(y, left(a, Float8::e4m3, recipe().activations), right(b, Float8::e4m3, recipe().activations));
  y.backward(torch::ones_like(y));
  EXPECT_EQ(a.grad().sizes(), a.sizes());
  EXPECT_EQ(b.grad().sizes(), b.sizes());
}

TEST_P(Float8Products, AddWhatTheyAreAddedTo) {
  const Tensor a = bfloat16({2, 16, 32}).requires_grad_(), b = bfloat16({2, 32, 48}).requires_grad_();
  const Tensor added = bfloat16({48}).requires_grad_();
  const Tensor y = float8_product({added, 2, 0.5}, {a}, {b}, recipe().rounding);
  const Tensor rounded_a = left(a, Float8::e4m3, recipe().activations),
               rounded_b = right(b, Float8::e4m3, recipe().activations);
  expect_product(y, rounded_a, rounded_b, 2 * added.detach().to(torch::kDouble).expand({2, 16, 48}), 0.5);
  const Tensor grad = bfloat16({2, 16, 48});
  y.backward(grad);
  expect_product(a.grad(), left(grad * 0.5, recipe().gradients, recipe().activations),
                 right(b.mT(), Float8::e4m3, recipe().activations));
  expect_product(b.grad(), left(a.mT(), Float8::e4m3, recipe().activations),
                 right(grad * 0.5, recipe().gradients, recipe().activations));
  EXPECT_TRUE(torch::equal(added.grad(), grad.sum(c10::IntArrayRef({0, 1})) * 2));
}

// The gradient of a gradient: for y = x @ w and s = sum((dy/dx)^2), ds/dw is a product again.
TEST_P(Float8Products, HaveSecondDerivatives) {
  const Tensor x = bfloat16({16, 32}).requires_grad_(), w = bfloat16({32, 48}).requires_grad_();
  const Tensor seed = bfloat16({16, 48});
  const Tensor y = float8_matmul({x}, {w, Float8Role::weight}, recipe().rounding);
  const Tensor first = torch::autograd::grad({y}, {x}, {seed}, true, true)[0];
  const Tensor second = torch::autograd::grad({first}, {w}, {first.detach()})[0];
  const Tensor wide_seed = seed.to(torch::kDouble);
  const Tensor exact = wide_seed.matmul(w.detach().to(torch::kDouble).t()).t().matmul(wide_seed);
  // The first gradient has the noise of a seed and of the weight. The second rounds it, and the seed once more. 22.8 dB,
  // and 17.7 with e5m2.
  const double noise = 3 * noise_of(recipe().gradients) + noise_of(Float8::e4m3) + 2 * kBfloat16Noise;
  EXPECT_GT(signal_to_noise(exact, second), in_decibels(noise));
}

TEST_P(Float8Products, NeedOnlyTheGradientsThatAreAskedFor) {
  const Tensor x = bfloat16({16, 32}), w = bfloat16({32, 48}).requires_grad_();
  const Tensor y = float8_matmul({x}, {w}, recipe().rounding);
  y.backward(torch::ones_like(y));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(float8_matmul({x}, {w}, recipe().rounding).requires_grad());
  const c10::InferenceMode inference;
  EXPECT_TRUE(torch::equal(float8_matmul({x}, {w}, recipe().rounding), y));
}

// FP8 has a bit or two less of range than a factor that holds both large and tiny values needs; its infinities must not vanish.
TEST_P(Float8Products, PassOnOverflows) {
  Tensor x = bfloat16({16, 256});
  x[3][5] = INFINITY;
  const Tensor y = float8_matmul({x}, {bfloat16({256, 16})}, recipe().rounding);
  EXPECT_TRUE(y[3].isnan().all().item<bool>());
}

TEST(Float8Product, OfEmptyFactorsIsEmpty) {
  const Tensor x = bfloat16({0, 32}).requires_grad_(), w = bfloat16({48, 32}).requires_grad_();
  for (const Recipe& recipe : kRecipes) {
    const Tensor y = float8_linear({x}, {w, Float8Role::weight}, {}, recipe.rounding);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 48}));
    w.mutable_grad().reset();
    y.sum().backward();
    EXPECT_TRUE(torch::equal(w.grad(), torch::zeros_like(w)));
  }
}

TEST(Float8Product, NoticesFactorsThatWereWritten) {
  const Tensor x = bfloat16({16, 32}), w = bfloat16({32, 16}).requires_grad_();
  const Tensor y = float8_matmul({x}, {w}, kRecipes[0].rounding);
  x.mul_(2);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace apex::test
