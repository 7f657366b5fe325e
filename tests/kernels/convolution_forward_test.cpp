// Convolutions and their input gradients against float64, at every boundary of the blocks that are copied and multiplied.
#include <ATen/cpu/Utils.h>

#include <limits>

#include "kernels/convolution/convolution.h"
#include "tests/kernels/convolution_support.h"

namespace kernels_test {
namespace {

using apex::kernels::convolution_forward;
using apex::kernels::convolution_input_grad;
using apex::kernels::takes_convolution_forward;
using apex::kernels::takes_convolution_input_grad;
using at::Tensor;
using Shape = ConvolutionShape;

// clang-format off
const std::vector<Shape>& convolution_shapes() {
  static const std::vector<Shape> all = {
      {"3x3", 4, 32, 64, {8, 8}, {3, 3}, every_pixel(1)},
      {"one image, and chunks of channels", 1, 96, 32, {5, 6}, {3, 3}, every_pixel(1)},
      {"no padding, unlike height and width", 2, 32, 32, {7, 33}, {3, 3}, every_pixel(0)},
      {"1 to 14 pixels at a time", 1, 32, 32, {3, 15}, {3, 3}, every_pixel(1)},
      {"stride 2", 2, 32, 64, {8, 9}, {3, 3}, {{2, 2}, {1, 1}, {1, 1}}},
      {"stride 3, inputs that none reads", 2, 32, 32, {12, 11}, {2, 2}, {{3, 3}, {0, 0}, {1, 1}}},
      {"dilation", 2, 32, 32, {11, 9}, {3, 3}, {{1, 1}, {2, 2}, {2, 3}}},
      {"stride and dilation that share a factor", 2, 32, 32, {13, 14}, {3, 3}, {{2, 4}, {2, 3}, {2, 2}}},
      {"all at once, height and width unlike", 3, 64, 32, {13, 10}, {3, 2}, {{2, 1}, {3, 0}, {2, 4}}},
      {"5x5", 2, 32, 32, {9, 9}, {5, 5}, every_pixel(2)},
      {"7x7, stride 2", 2, 32, 32, {18, 17}, {7, 7}, {{2, 2}, {3, 3}, {1, 1}}},
      {"1x1, stride 2", 2, 32, 64, {9, 8}, {1, 1}, {{2, 2}, {0, 0}, {1, 1}}},
      {"1x1, a stride that leaves all out", 2, 32, 32, {1, 2}, {1, 1}, {{2, 3}, {1, 1}, {1, 1}}},
      {"1x1, stride 3 and padding", 3, 32, 32, {8, 7}, {1, 1}, {{3, 2}, {1, 3}, {1, 1}}},
      {"1x3", 2, 32, 32, {6, 7}, {1, 3}, {{1, 1}, {0, 1}, {1, 1}}},
      {"3x1, stride 2", 2, 32, 32, {6, 7}, {3, 1}, {{2, 2}, {1, 0}, {1, 1}}},
      {"padding as wide as the kernel", 2, 32, 32, {3, 2}, {3, 3}, every_pixel(3)},
      {"taps that read padding alone", 2, 32, 32, {2, 1}, {7, 7}, every_pixel(3)},
      {"one pixel", 7, 32, 32, {1, 1}, {3, 3}, every_pixel(1)},
      {"several groups of rows", 2, 64, 32, {40, 48}, {3, 3}, every_pixel(1)},
      {"a dilation of which rows and columns in between are not read", 2, 64, 32, {30, 29}, {3, 3}, {{1, 1}, {12, 12}, {12, 12}}},
      {"a stride that leaves rows out", 2, 32, 32, {23, 17}, {2, 2}, {{5, 4}, {1, 1}, {1, 1}}},
      {"rows that are longer than a group", 1, 128, 32, {4, 300}, {3, 3}, every_pixel(1)},
  };
  return all;
}
// clang-format on

Tensor convolved(const Shape& s, const ConvolutionTensors& t, const std::optional<Tensor>& bias = std::nullopt) {
  return convolution_forward(t.input, t.weight, bias, s.steps);
}
Tensor input_grad(const Shape& s, const ConvolutionTensors& t) {
  return convolution_input_grad(t.grad_output, t.input, t.weight, s.steps);
}

Tensor torch_convolved(const Shape& s, const ConvolutionTensors& t, const std::optional<Tensor>& bias, at::ScalarType type) {
  return at::conv2d(t.input.to(type), t.weight.to(type), bias ? std::optional<Tensor>(bias->to(type)) : bias, s.steps.stride,
                    s.steps.padding, s.steps.dilation);
}
Tensor torch_input_grad(const Shape& s, const ConvolutionTensors& t, at::ScalarType type) {
  return std::get<0>(at::convolution_backward(t.grad_output.to(type), t.input.to(type), t.weight.to(type), std::nullopt,
                                              s.steps.stride, s.steps.padding, s.steps.dilation, false, {0, 0}, 1,
                                              {true, false, false}));
}

ConvolutionTensors magnitudes(const ConvolutionTensors& t) { return {t.grad_output.abs(), t.input.abs(), t.weight.abs()}; }

// By LibTorch's list of what the processor has. Where this is wrongly false, the tests of amp's convolutions are skipped.
TEST(FastConvolutions, AreThoseOfProcessorsWithoutAmx) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto amx = capabilities.find("amx_bf16");
  const bool has_amx = amx != capabilities.end() && amx->second.toBool();
  EXPECT_EQ(apex::kernels::has_fast_convolutions(), apex::kernels::has_convolutions() && !has_amx);
}

class Convolution : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!apex::kernels::has_convolutions()) GTEST_SKIP() << "needs a processor with AVX512-BF16";
    at::manual_seed(3);
  }
};

TEST_F(Convolution, EqualsFloat64RoundedOnce) {
  for (const Shape& s : convolution_shapes()) {
    SCOPED_TRACE(s.what);
    const auto t = random_tensors(s);
    const Tensor bias = at::randn({s.output}).to(at::kBFloat16);
    const int64_t terms = s.input * s.kernel[0] * s.kernel[1] + 1;
    for (const auto& added : {std::optional<Tensor>(), std::optional<Tensor>(bias)}) {
      const auto size = added ? std::optional<Tensor>(added->abs()) : added;
      expect_near(convolved(s, t, added), torch_convolved(s, t, added, at::kDouble),
                  torch_convolved(s, magnitudes(t), size, at::kDouble), terms, added ? "with bias" : "without bias");
    }
  }
}

TEST_F(Convolution, InputGradEqualsFloat64RoundedOnce) {
  for (const Shape& s : convolution_shapes()) {
    SCOPED_TRACE(s.what);
    const auto t = random_tensors(s);
    expect_near(input_grad(s, t), torch_input_grad(s, t, at::kDouble), torch_input_grad(s, magnitudes(t), at::kDouble),
                s.output * s.kernel[0] * s.kernel[1], "gradient of the input");
  }
}

TEST_F(Convolution, HasLibTorchsDtypeAndMemoryFormat) {
  for (const Shape& s : convolution_shapes()) {
    SCOPED_TRACE(s.what);
    const auto t = random_tensors(s);
    for (const auto& [output, torch_output] : {std::pair(convolved(s, t), torch_convolved(s, t, {}, at::kBFloat16)),
                                               std::pair(input_grad(s, t), torch_input_grad(s, t, at::kBFloat16))}) {
      EXPECT_EQ(output.scalar_type(), torch_output.scalar_type());
      EXPECT_EQ(output.sizes(), torch_output.sizes());
      EXPECT_TRUE(output.is_contiguous(kChannelsLast));
      EXPECT_TRUE(torch_output.is_contiguous(kChannelsLast));
    }
  }
}

TEST_F(Convolution, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const Shape& s : convolution_shapes()) {
    SCOPED_TRACE(s.what);
    const auto t = random_tensors(s);
    const auto on_threads = [&](int count) {
      const Threads use(count);
      return std::pair(convolved(s, t), input_grad(s, t));
    };
    const auto one = on_threads(1);
    for (const int count : {2, 3, 7}) {
      const auto several = on_threads(count);
      EXPECT_TRUE(same_bits(several.first, one.first)) << count << " threads";
      EXPECT_TRUE(same_bits(several.second, one.second)) << count << " threads";
    }
  }
}

TEST_F(Convolution, AcceptsAnyMemoryFormatIfOneTensorIsChannelsLast) {
  const Shape& s = convolution_shapes()[0];
  const auto t = random_tensors(s);
  const Tensor output = convolved(s, t), grad = input_grad(s, t);
  const Tensor apart = at::stack({t.input, t.input}, -1).select(-1, 0);
  EXPECT_TRUE(same_bits(convolved(s, {{}, t.input.contiguous(), t.weight}), output));
  EXPECT_TRUE(same_bits(convolved(s, {{}, t.input, t.weight.contiguous()}), output));
  EXPECT_TRUE(same_bits(convolved(s, {{}, apart, t.weight}), output));
  EXPECT_TRUE(same_bits(input_grad(s, {t.grad_output.contiguous(), t.input, t.weight.contiguous()}), grad));
  const Tensor same_everywhere = t.grad_output.mean({2, 3}, true).expand_as(t.grad_output);
  EXPECT_TRUE(same_bits(input_grad(s, {same_everywhere, t.input, t.weight}),
                        input_grad(s, {same_everywhere.clone(kChannelsLast), t.input, t.weight})));
  EXPECT_TRUE(same_bits(convolved(s, t, Tensor()), output)) << "an undefined bias";
}

// A value that is no number reaches the results that have it as a term, and no others.
TEST_F(Convolution, InfAndNanAffectOnlyTheirOwnSums) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const Shape& s : {convolution_shapes()[0], convolution_shapes()[4], convolution_shapes()[8]}) {
      SCOPED_TRACE(s.what);
      auto t = random_tensors(s);
      t.input.index({s.images - 1, 17, 1, 1}).fill_(value);
      t.grad_output.index({s.images - 1, 19, 1, 1}).fill_(value);
      for (const auto& [got, exact] : {std::pair(convolved(s, t), torch_convolved(s, t, {}, at::kDouble)),
                                       std::pair(input_grad(s, t), torch_input_grad(s, t, at::kDouble))}) {
        EXPECT_FALSE(at::isfinite(got).all().item<bool>());
        EXPECT_TRUE(at::equal(at::isnan(got), at::isnan(exact)));
        EXPECT_TRUE(at::equal(at::isposinf(got), at::isposinf(exact)));
        EXPECT_TRUE(at::equal(at::isneginf(got), at::isneginf(exact)));
      }
    }
  }
}

TEST_F(Convolution, SubnormalValuesCountAsZero) {
  const Shape& s = convolution_shapes()[0];
  auto t = random_tensors(s);
  t.input.fill_(0x1p-130);
  t.weight.fill_(1);
  EXPECT_TRUE((convolved(s, t) == 0).all().item<bool>());
}

TEST_F(Convolution, LeavesUnsupportedCasesToLibTorch) {
  const Shape s{"", 2, 32, 32, {4, 4}, {3, 3}, every_pixel(1)};
  const auto t = random_tensors(s);
  const auto takes = [&](const ConvolutionTensors& u, const Shape& of) {
    const bool is_taken = takes_convolution_forward(u.input, u.weight, std::nullopt, of.steps);
    EXPECT_EQ(takes_convolution_input_grad(u.grad_output, u.input, u.weight, of.steps), is_taken);
    if (!is_taken) {
      EXPECT_THROW(convolution_forward(u.input, u.weight, std::nullopt, of.steps), c10::Error);
      EXPECT_THROW(convolution_input_grad(u.grad_output, u.input, u.weight, of.steps), c10::Error);
    }
    return is_taken;
  };
  EXPECT_TRUE(takes(t, s));
  EXPECT_FALSE(takes({t.grad_output, t.input.contiguous(), t.weight.contiguous()}, s)) << "not channels-last";
  EXPECT_FALSE(takes({t.grad_output.to(at::kHalf), t.input.to(at::kHalf), t.weight.to(at::kHalf)}, s));
  EXPECT_FALSE(takes({t.grad_output.to(at::kFloat), t.input.to(at::kFloat), t.weight.to(at::kFloat)}, s));
  EXPECT_FALSE(takes({t.grad_output, t.input.to(at::kFloat), t.weight}, s)) << "an input of FP32";
  EXPECT_FALSE(takes({t.grad_output[0], t.input[0], t.weight}, s)) << "without images";
  for (const auto& [input, output, kernel] : {std::tuple{16, 32, 3}, std::tuple{32, 48, 3}, std::tuple{32, 32, 1}}) {
    const Shape other{"", 2, input, output, {4, 4}, {kernel, kernel}, every_pixel(0)};
    EXPECT_FALSE(takes(random_tensors(other), other)) << input << " to " << output << ", " << kernel;
  }
  EXPECT_FALSE(takes({t.grad_output, t.input, at::cat({t.weight, t.weight}, 1)}, s)) << "a weight of more input channels";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, at::zeros({32}), s.steps)) << "a bias of FP32";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, at::zeros({31}, at::kBFloat16), s.steps)) << "a shorter bias";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, std::nullopt, {{0, 1}, {1, 1}, {1, 1}})) << "no stride";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, std::nullopt, {{1, 1}, {1, -1}, {1, 1}})) << "less than no padding";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, std::nullopt, {{1, 1}, {0, 0}, {2, 2}})) << "too small an input";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, std::nullopt, {{1, 1}, {0, 0}, {2, 1}})) << "too low an input";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, std::nullopt, {{1, 1}, {0, 0}, {1, 2}})) << "too narrow an input";
  EXPECT_FALSE(takes_convolution_forward(t.input, t.weight, std::nullopt, {{1, 1}, {0, 0}, {1, 0}})) << "no dilation";
}

// A gradient of another batch or of other channels would be read beyond its end.
TEST_F(Convolution, AnOutputGradientOfOtherSizesIsNotTaken) {
  const Shape s{"", 2, 32, 32, {4, 4}, {3, 3}, every_pixel(1)};
  const auto t = random_tensors(s);
  for (const int64_t dim : {0, 1}) {
    const Tensor other = at::cat({t.grad_output, t.grad_output}, dim);
    EXPECT_FALSE(takes_convolution_input_grad(other, t.input, t.weight, s.steps)) << other.sizes();
    EXPECT_THROW(convolution_input_grad(other, t.input, t.weight, s.steps), c10::Error) << other.sizes();
  }
}

TEST_F(Convolution, InputGradNamesMismatchedSizes) {
  const Shape s{"", 2, 32, 32, {4, 4}, {3, 3}, every_pixel(1)};
  const auto t = random_tensors(s);
  expect_error([&] { convolution_input_grad(t.grad_output, t.input, t.weight, every_pixel(0)); },
               {"[2, 32, 4, 4] does not belong to an input of [2, 32, 4, 4]"});
  expect_error(
      [&] {
        convolution_input_grad(t.grad_output, t.input, t.weight, {{1, 1}, {1, 0}, {1, 1}});
      },
      {"with stride 1, padding 0 and dilation 1 along dimension 3."});
}

}  // namespace
}  // namespace kernels_test
