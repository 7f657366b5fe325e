// The weight gradient of convolutions against float64, at every boundary of the blocks that are packed and multiplied.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <limits>

#include "kernels/convolution/convolution.h"
#include "kernels/convolution/cpu/packed.h"
#include "tests/kernels/convolution_support.h"

namespace kernels_test {
namespace {

using apex::kernels::ConvolutionGrads;
using at::Tensor;
using Shape = ConvolutionShape;

// clang-format off
const std::vector<Shape>& weight_grad_shapes() {
  static const std::vector<Shape> all = {
      {"3x3", 4, 32, 32, {8, 8}, {3, 3}, every_pixel(1)},
      {"an odd width and no padding", 2, 16, 16, {7, 9}, {3, 3}, every_pixel(0)},
      {"an odd number of images", 3, 24, 48, {5, 7}, {3, 3}, every_pixel(1)},
      {"tails of channels", 5, 19, 37, {6, 5}, {3, 3}, every_pixel(1)},
      {"13 to 17 channels in a tail", 2, 29, 49, {6, 6}, {3, 3}, every_pixel(1)},
      {"1x1", 2, 40, 24, {9, 7}, {1, 1}, every_pixel(0)},
      {"1x1 with padding", 2, 16, 16, {4, 3}, {1, 1}, every_pixel(2)},
      {"1x1, stride 2", 2, 32, 64, {9, 8}, {1, 1}, {{2, 2}, {0, 0}, {1, 1}}},
      {"1x1, stride 3 and padding", 3, 16, 20, {8, 7}, {1, 1}, {{3, 2}, {1, 3}, {1, 1}}},
      {"stride 2", 2, 32, 64, {8, 8}, {3, 3}, {{2, 2}, {1, 1}, {1, 1}}},
      {"stride 3, inputs that none reads", 2, 16, 32, {12, 11}, {2, 2}, {{3, 3}, {0, 0}, {1, 1}}},
      {"dilation", 2, 16, 16, {11, 9}, {3, 3}, {{1, 1}, {2, 2}, {2, 3}}},
      {"all at once, height and width unlike", 3, 21, 35, {13, 10}, {3, 2}, {{2, 1}, {3, 0}, {2, 4}}},
      {"5x5", 2, 16, 33, {9, 9}, {5, 5}, every_pixel(2)},
      {"7x7", 2, 17, 16, {8, 7}, {7, 7}, {{2, 2}, {3, 3}, {1, 1}}},
      {"1x3", 2, 30, 16, {6, 7}, {1, 3}, {{1, 1}, {0, 1}, {1, 1}}},
      {"3x1, stride 2", 2, 16, 16, {6, 7}, {3, 1}, {{2, 2}, {1, 0}, {1, 1}}},
      {"padding as wide as the kernel", 2, 16, 16, {3, 2}, {3, 3}, every_pixel(3)},
      {"taps that read padding alone", 2, 16, 16, {2, 1}, {7, 7}, every_pixel(3)},
      {"one pixel", 7, 16, 16, {1, 1}, {3, 3}, every_pixel(1)},
      {"several passes over images", 32, 48, 64, {16, 16}, {3, 3}, every_pixel(1)},
      {"several passes over rows", 3, 64, 64, {40, 48}, {3, 3}, every_pixel(1)},
      {"several passes over rows, stride 2", 2, 128, 64, {63, 64}, {3, 3}, {{2, 2}, {1, 1}, {1, 1}}},
      {"several passes over rows, 1x1 with stride", 2, 128, 128, {129, 96}, {1, 1}, {{2, 2}, {1, 0}, {1, 1}}},
  };
  return all;
}
// clang-format on

ConvolutionGrads kernel_grads(const Shape& s, const ConvolutionTensors& t) {
  return apex::kernels::convolution_weight_grad(t.grad_output, t.input, t.weight, s.steps, true);
}

ConvolutionGrads torch_grads(const Shape& s, const ConvolutionTensors& t, at::ScalarType type) {
  const auto [input, weight, bias] =
      at::convolution_backward(t.grad_output.to(type), t.input.to(type), t.weight.to(type), at::IntArrayRef{s.output},
                               s.steps.stride, s.steps.padding, s.steps.dilation, false, {0, 0}, 1, {false, true, true});
  return {weight, bias};
}

class Allocated : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    largest = std::max(largest, size);
    held += size;  // less than 0: freed
    most = std::max(most, held);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t largest = 0, held = 0, most = 0;  // bytes: of one tensor, of all now, and of all at any time
};

// Parts between the borders read one row more at either end.
TEST(PackedImages, GrowForAPartOfMoreRows) {
  using namespace apex::kernels::convolution::cpu;
  const apex::kernels::convolution::Axis height{12, 12, 3, 1, 1, 1}, width{5, 5, 3, 1, 1, 1};
  const Tensor images = at::zeros({2, 16, 12, 5}, at::kBFloat16);
  const auto allocated = std::make_shared<Allocated>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
  Packed packed(images, height, width, {{0, 16}}, kLanes);
  packed.begin({0, 1, height.inputs_of({0, 4})});
  EXPECT_EQ(allocated->largest, 5 * 5 * 16 * static_cast<int64_t>(sizeof(Pair)));
  packed.begin({0, 1, height.inputs_of({4, 8})});
  EXPECT_EQ(allocated->largest, 6 * 5 * 16 * static_cast<int64_t>(sizeof(Pair)));
}

class ConvolutionWeightGrad : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!apex::kernels::has_convolutions()) GTEST_SKIP() << "needs a processor with AVX512-BF16";
    at::manual_seed(3);
  }
};

TEST_F(ConvolutionWeightGrad, EqualsFloat64RoundedOnce) {
  for (const Shape& s : weight_grad_shapes()) {
    SCOPED_TRACE(s.what);
    const ConvolutionTensors t = random_tensors(s);
    const auto got = kernel_grads(s, t), exact = torch_grads(s, t, at::kDouble);
    const auto magnitudes = torch_grads(s, {t.grad_output.abs(), t.input.abs(), t.weight}, at::kDouble);
    const int64_t terms = s.images * output_size(s, 0) * output_size(s, 1);
    expect_near(got.weight, exact.weight, magnitudes.weight, terms, "weight");
    expect_near(got.bias, exact.bias, magnitudes.bias, terms, "bias");
  }
}

TEST_F(ConvolutionWeightGrad, HasLibTorchsDtypeAndMemoryFormat) {
  for (const Shape& s : weight_grad_shapes()) {
    SCOPED_TRACE(s.what);
    const ConvolutionTensors t = random_tensors(s);
    const auto got = kernel_grads(s, t), expected = torch_grads(s, t, at::kBFloat16);
    for (const auto& [actual, reference] : {std::pair(got.weight, expected.weight), std::pair(got.bias, expected.bias)}) {
      EXPECT_EQ(actual.scalar_type(), reference.scalar_type());
      EXPECT_EQ(actual.sizes(), reference.sizes());
      EXPECT_EQ(actual.strides(), reference.strides());
    }
  }
}

TEST_F(ConvolutionWeightGrad, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const Shape& s : weight_grad_shapes()) {
    SCOPED_TRACE(s.what);
    const ConvolutionTensors t = random_tensors(s);
    const auto on_threads = [&](int count) {
      const Threads use(count);
      return kernel_grads(s, t);
    };
    const auto one = on_threads(1);
    for (const int count : {2, 4, 7}) {
      const auto several = on_threads(count);
      EXPECT_TRUE(same_bits(several.weight, one.weight)) << count << " threads";
      EXPECT_TRUE(same_bits(several.bias, one.bias)) << count << " threads";
    }
  }
}

TEST_F(ConvolutionWeightGrad, AcceptsAnyMemoryFormatIfOneTensorIsChannelsLast) {
  const Shape& s = weight_grad_shapes()[3];
  const ConvolutionTensors t = random_tensors(s);
  const auto expected = kernel_grads(s, t);
  const Tensor wide = at::stack({t.input, t.input}, -1).select(-1, 0);
  const ConvolutionTensors others[] = {{t.grad_output.contiguous(), t.input, t.weight.contiguous()},
                                       {t.grad_output, t.input.contiguous(), t.weight},
                                       {t.grad_output, wide, t.weight}};
  for (const auto& other : others) EXPECT_TRUE(same_bits(kernel_grads(s, other).weight, expected.weight));
  const ConvolutionTensors same_everywhere{t.grad_output.mean({2, 3}, true).expand_as(t.grad_output), t.input, t.weight};
  EXPECT_TRUE(same_bits(kernel_grads(s, same_everywhere).weight,
                        kernel_grads(s, {same_everywhere.grad_output.clone(kChannelsLast), t.input, t.weight}).weight));
}

// A value that is no number reaches the sums that have it as a term, and no others: not those of the other images' or of
// padding.
TEST_F(ConvolutionWeightGrad, InfAndNanAffectOnlyTheirOwnSums) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const Shape& s : {weight_grad_shapes()[2], weight_grad_shapes()[3], weight_grad_shapes()[9]}) {
      SCOPED_TRACE(s.what);
      ConvolutionTensors t = random_tensors(s);
      t.input.index({s.images - 1, 17, 0, 0}).fill_(value);  // the pixel that the fewest taps read
      const auto got = kernel_grads(s, t), exact = torch_grads(s, t, at::kDouble);
      EXPECT_TRUE(at::equal(at::isnan(got.weight), at::isnan(exact.weight)));
      EXPECT_TRUE(at::equal(at::isposinf(got.weight), at::isposinf(exact.weight)));
      EXPECT_TRUE(at::equal(at::isneginf(got.weight), at::isneginf(exact.weight)));
      EXPECT_FALSE(at::isfinite(got.weight).all().item<bool>());
      EXPECT_TRUE(at::isfinite(got.bias).all().item<bool>());
    }
    const Shape& s = weight_grad_shapes()[2];
    ConvolutionTensors t = random_tensors(s);
    t.grad_output.index({s.images - 1, 33, 2, 3}).fill_(value);
    const auto got = kernel_grads(s, t);
    const Tensor is_hit = at::arange(s.output) == 33;
    EXPECT_TRUE(at::equal(at::isfinite(got.bias), ~is_hit));
    EXPECT_TRUE(at::equal(at::isfinite(got.weight).flatten(1).all(1), ~is_hit));
  }
}

TEST_F(ConvolutionWeightGrad, SubnormalValuesCountAsZero) {
  const Shape& s = weight_grad_shapes()[0];
  ConvolutionTensors t = random_tensors(s);
  t.input.fill_(0x1p-130);
  t.grad_output.fill_(1);
  EXPECT_TRUE((kernel_grads(s, t).weight == 0).all().item<bool>());
}

// Groups of images have sums of their own only if these have at most 512 Ki weights together. Here one group has 324 Ki.
TEST_F(ConvolutionWeightGrad, HoldsTheSumsOfManyWeightsOnce) {
  const Threads use(1);  // allocations of other threads are not reported here
  const Shape s{"", 4, 192, 192, {32, 32}, {3, 3}, every_pixel(1)};
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes, at::kBFloat16).contiguous(kChannelsLast); };
  const Tensor images = zeros({4, 192, 32, 32}), weight = zeros({192, 192, 3, 3});
  const auto allocated = std::make_shared<Allocated>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
    kernel_grads(s, {images, images, weight});
  }
  // 1.3 MB of sums, of weights and biases. Beside them are 0.9 MB of packed images, and then 0.7 MB of BFloat16 gradients.
  constexpr int64_t kSums = (3 * 3 * 192 + 1) * 192 * static_cast<int64_t>(sizeof(float));
  EXPECT_GE(allocated->most, kSums);
  EXPECT_LT(allocated->most, 2 * kSums);
}

TEST_F(ConvolutionWeightGrad, LeavesUnsupportedCasesToLibTorch) {
  using apex::kernels::takes_convolution_weight_grad;
  const Shape s{"", 2, 16, 16, {4, 4}, {3, 3}, every_pixel(1)};
  const ConvolutionTensors t = random_tensors(s);
  EXPECT_TRUE(takes_convolution_weight_grad(t.grad_output, t.input, t.weight));
  EXPECT_FALSE(takes_convolution_weight_grad(t.grad_output, t.input.contiguous(), t.weight.contiguous()))
      << "not channels-last";
  EXPECT_FALSE(takes_convolution_weight_grad(t.grad_output.to(at::kHalf), t.input.to(at::kHalf), t.weight.to(at::kHalf)));
  EXPECT_FALSE(takes_convolution_weight_grad(t.grad_output, t.input.to(at::kFloat), t.weight));
  EXPECT_FALSE(takes_convolution_weight_grad(t.grad_output[0], t.input[0], t.weight)) << "without images";
  EXPECT_FALSE(takes_convolution_weight_grad(at::cat({t.grad_output, t.grad_output}), t.input, t.weight)) << "more images";
  EXPECT_FALSE(takes_convolution_weight_grad(at::cat({t.grad_output, t.grad_output}, 1), t.input, t.weight)) << "more outputs";
  EXPECT_FALSE(takes_convolution_weight_grad(t.grad_output, t.input, at::cat({t.weight, t.weight}, 1))) << "more inputs";
  for (const auto& [images, input, output] : {std::tuple{1, 16, 16}, std::tuple{2, 15, 16}, std::tuple{2, 16, 15}}) {
    const ConvolutionTensors few = random_tensors({"", images, input, output, {4, 4}, {3, 3}, every_pixel(1)});
    EXPECT_FALSE(takes_convolution_weight_grad(few.grad_output, few.input, few.weight));
    EXPECT_THROW(kernel_grads(s, few), c10::Error);
  }
}

TEST_F(ConvolutionWeightGrad, NamesMismatchedSizes) {
  const Shape s{"", 2, 16, 16, {4, 4}, {3, 3}, every_pixel(1)};
  const ConvolutionTensors t = random_tensors(s);
  expect_error([&] { apex::kernels::convolution_weight_grad(t.grad_output, t.input, t.weight, every_pixel(0), false); },
               {"[2, 16, 4, 4] does not belong to an input of [2, 16, 4, 4]"});
}

}  // namespace
}  // namespace kernels_test
