// Level O6 on a GPU: rounding has the bits of the CPU, and products those of the rounded operands within the GPU's sums.
#include <ATen/cuda/CUDAContext.h>
#include <apex_cpp/amp/float8/product.h>
#include <torch/torch.h>

#include <cmath>

#include "kernels/float8/float8.h"
#include "tests/cuda/support.h"

namespace cuda_test {
namespace {

using namespace apex::amp::detail;
using apex::kernels::Float8;
using apex::kernels::Float8Blocks;
using kernels_test::same_bits;
using torch::Tensor;

class GpuFloat8 : public OnGpu {};

Tensor uneven(at::IntArrayRef sizes) {
  torch::manual_seed(1);
  return (torch::randn(sizes) * (torch::rand(sizes) * 40 - 20).exp2()).to(torch::kBFloat16);
}

TEST_F(GpuFloat8, RoundsToTheBitsOfTheCpu) {
  for (const Tensor& x : {uneven({300, 500}), uneven({3, 70, 33}).mT(), uneven({2, 70001})}) {
    for (const Float8 format : {Float8::e4m3, Float8::e5m2}) {
      for (const Float8Blocks blocks : {Float8Blocks{0, 0}, {1, 128}, {128, 128}, {1, 32}}) {
        const auto expected = apex::kernels::round_to_float8(x, format, blocks);
        const auto found = apex::kernels::round_to_float8(x.cuda(), format, blocks);
        EXPECT_TRUE(same_bits({found.values.cpu(), found.scales.cpu()}, {expected.values, expected.scales}));
      }
      for (const double scale : {0.0, 8.0}) {
        const Tensor given = torch::full({1}, scale);
        const auto expected = apex::kernels::round_to_float8_with(x, format, given);
        const auto found = apex::kernels::round_to_float8_with(x.cuda(), format, given.cuda());
        EXPECT_TRUE(same_bits({found.rounded.values.cpu(), found.rounded.scales.cpu(), found.largest.cpu()},
                              {expected.rounded.values, expected.rounded.scales, expected.largest}));
      }
    }
  }
}

TEST_F(GpuFloat8, KnowsWhichGpusMultiply) {
  const auto* gpu = at::cuda::getCurrentDeviceProperties();
  EXPECT_EQ(apex::kernels::has_float8_products(at::Device(at::kCUDA, 0)), gpu->major * 10 + gpu->minor >= 89);
}

// FP8 instructions keep at least 13 bits below the largest product of a sum, for each of K terms; a result is rounded to
// bfloat16 by 2^-8.
void expect_product(const Tensor& found, const Tensor& a, const Tensor& b) {
  const Tensor left = a.to(torch::kDouble), right = b.to(torch::kDouble), exact = left.matmul(right);
  const double largest = (left.abs().max() * right.abs().max()).item<double>();
  const Tensor bound = static_cast<double>(a.size(1)) * std::pow(2, -13) * largest + std::pow(2, -8) * exact.abs();
  EXPECT_EQ((found.to(torch::kDouble) - exact).abs().gt(bound).sum().item<int64_t>(), 0);
}

TEST_F(GpuFloat8, MultipliesTheRoundedOperandsOfALayer) {
  torch::manual_seed(2);
  for (const auto recipe : {Float8Recipe::current, Float8Recipe::block128, Float8Recipe::mx}) {
    const Float8Rounding rounding{recipe, Float8Format::e5m2, {}};
    const Tensor x = torch::randn({64, 256}).to(torch::kBFloat16), w = torch::randn({128, 256}).to(torch::kBFloat16);
    const Tensor grad = torch::randn({64, 128}).to(torch::kBFloat16);
    const Tensor on_gpu = x.cuda().requires_grad_(), weight = w.cuda().requires_grad_();
    const Tensor y = float8_linear({on_gpu}, {weight, Float8Role::weight}, {}, rounding);
    y.backward(grad.cuda());
    const int64_t along = recipe == Float8Recipe::mx ? 32 : 128;
    const Float8Blocks rows = recipe == Float8Recipe::current ? Float8Blocks{} : Float8Blocks{1, along};
    const Float8Blocks tiles = recipe == Float8Recipe::block128 ? Float8Blocks{128, 128} : rows;
    const auto rounded = [](const Tensor& values, Float8 format, Float8Blocks blocks) {
      return apex::kernels::round_to_float8(values, format, blocks).values;
    };
    expect_product(y.cpu(), rounded(x, Float8::e4m3, rows), rounded(w, Float8::e4m3, tiles).t());
    expect_product(on_gpu.grad().cpu(), rounded(grad, Float8::e5m2, rows), rounded(w.t(), Float8::e4m3, tiles).t());
    expect_product(weight.grad().cpu(), rounded(grad.t(), Float8::e5m2, rows), rounded(x.t(), Float8::e4m3, rows).t());
  }
}

}  // namespace
}  // namespace cuda_test
