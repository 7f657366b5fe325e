// BFloat16 convolutions and their gradients on CPUs with BFloat16 instructions: apex_cpp's kernels, or LibTorch's with
// cpu_16bit: native.
#include "kernels/convolution/convolution.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct Results {
  Tensor output, input_grad, weight_grad, bias_grad;
};

/// A convolution and its gradients at a level, through the operators that models call.
Results run_at(const char* level, const amp::InitializeOptions& options, const Tensor& x, const Tensor& weight,
               const Tensor& grad_y) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level, options);
  const Tensor input = x.detach().clone().requires_grad_(), of_model = weight.detach().clone().requires_grad_();
  const Tensor bias = torch::ones({weight.size(0)}, weight.options()).requires_grad_();
  const Tensor output = at::conv2d(input, of_model, bias, 1, 1);
  output.backward(grad_y);
  const Results run{output.detach(), input.grad(), of_model.grad(), bias.grad()};
  amp::reset();
  return run;
}

bool computes_in_float32() {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet());
  const Tensor ones = torch::ones({2, 2}, at::kBFloat16);
  const amp::trace trace;
  at::mm(ones, ones);
  return trace.ops()[0].in_float32;
}

// On every processor. Each output is the number of the filter's taps that meet a pixel, which every sum here holds exactly.
TEST_F(AmpTest, ATransposedConvolutionOfChannelsLastImagesIsTransposed) {
  const Tensor image = torch::ones({2, 64, 8, 8}, at::kBFloat16).contiguous(kChannelsLast);
  const Tensor filters = torch::full({64, 64, 3, 3}, 0x1p-6, at::kBFloat16).contiguous(kChannelsLast);
  const Tensor exact = at::conv_transpose2d(image.to(at::kDouble), filters.to(at::kDouble));
  for (const char* way : {"auto", "native", "float32"}) {
    torch::nn::Linear net(2, 2);
    auto handle = amp::initialize(net, "O5", quiet().cpu_16bit(way));
    EXPECT_TRUE(at::equal(at::conv_transpose2d(image, filters).to(at::kDouble), exact)) << way;
    amp::reset();
  }
}

class Bfloat16Convolution : public AmpTest {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    if (!kernels::has_fast_convolutions()) GTEST_SKIP() << "needs a processor with AVX512-BF16, and without AMX-BF16";
    if (computes_in_float32()) GTEST_SKIP() << "BFloat16 products compute in FP32 here: see ONEDNN_MAX_CPU_ISA";
    amp::reset();
  }

  const Tensor x = values({8, 64, 16, 16}), weight = values({64, 64, 3, 3}), grad_y = values({8, 64, 16, 16});

 private:
  static Tensor values(at::IntArrayRef sizes) { return torch::randn(sizes).to(at::kBFloat16).contiguous(kChannelsLast); }
};

TEST_F(Bfloat16Convolution, UsesTheKernelsAtBFloat16Levels) {
  const kernels::ConvolutionSteps steps{{1, 1}, {1, 1}, {1, 1}};
  const Tensor output = kernels::convolution_forward(x, weight, torch::ones({64}, at::kBFloat16), steps);
  const Tensor input_grad = kernels::convolution_input_grad(grad_y, x, weight, steps);
  const auto grads = kernels::convolution_weight_grad(grad_y, x, weight, steps, true);
  for (const char* level : {"O4", "O5"}) {
    const Results run = run_at(level, quiet(), x, weight, grad_y);
    EXPECT_TRUE(at::equal(run.output, output)) << level;
    EXPECT_TRUE(at::equal(run.input_grad, input_grad)) << level;
    EXPECT_TRUE(at::equal(run.weight_grad, grads.weight)) << level;
    EXPECT_TRUE(at::equal(run.bias_grad, grads.bias)) << level;
    for (const Tensor& tensor : {run.output, run.input_grad, run.weight_grad}) {
      EXPECT_TRUE(tensor.is_contiguous(kChannelsLast)) << level;
    }
  }
}

TEST_F(Bfloat16Convolution, UsesLibTorchWithCpu16BitNative) {
  const Results amp_results = run_at("O5", quiet(), x, weight, grad_y),
                native = run_at("O5", quiet().cpu_16bit("native"), x, weight, grad_y);
  const auto [input_grad, weight_grad, bias_grad] = at::convolution_backward(
      grad_y, x, weight, at::IntArrayRef{64}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, {true, true, true});
  EXPECT_TRUE(at::equal(native.output, at::conv2d(x, weight, torch::ones({64}, at::kBFloat16), 1, 1)));
  EXPECT_TRUE(at::equal(native.input_grad, input_grad));
  EXPECT_TRUE(at::equal(native.weight_grad, weight_grad));
  EXPECT_TRUE(at::equal(native.bias_grad, bias_grad));
  // Sums in another order: some of the 36,864 values round to the neighbouring number.
  EXPECT_FALSE(at::equal(amp_results.weight_grad, weight_grad)) << "the comparisons here cannot tell the kernels apart";
}

TEST_F(Bfloat16Convolution, ComputesOnlyTheRequestedGradients) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet());
  const auto backward = [&](std::array<bool, 3> needs) {
    return at::convolution_backward(grad_y, x, weight, at::IntArrayRef{64}, {1}, {1}, {1}, false, {0}, 1, needs);
  };
  const auto [input, of_weight, bias] = backward({true, true, true});
  for (const std::array<bool, 3>& needs :
       {std::array{false, true, false}, {true, false, false}, {true, true, false}, {false, true, true}, {true, false, true}}) {
    const auto [got_input, got_weight, got_bias] = backward(needs);
    EXPECT_EQ(got_input.defined(), needs[0]);
    EXPECT_TRUE(got_weight.defined() || !needs[1]);  // LibTorch computes it together with the bias gradient
    EXPECT_EQ(got_bias.defined(), needs[2]);
    EXPECT_TRUE(!needs[0] || at::equal(got_input, input));
    EXPECT_TRUE(!needs[1] || at::equal(got_weight, of_weight));
    // Each sums 2048 values of total magnitude 1600 in FP32, in its own order, and rounds once.
    EXPECT_TRUE(!needs[2] || at::allclose(got_bias.to(at::kDouble), bias.to(at::kDouble), 0x1p-7, 1600 * 2048 * 0x1p-24));
  }
}

TEST_F(Bfloat16Convolution, AWrongNumberOfStridesIsLibTorchsError) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet());
  EXPECT_THROW(at::conv2d(x, weight, {}, at::IntArrayRef{1, 2, 3}), c10::Error);
  EXPECT_THROW(at::conv2d(x, weight, {}, {1, 1}, at::IntArrayRef{1, 1, 1}), c10::Error);
}

TEST_F(Bfloat16Convolution, HasASecondDerivative) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet());
  const auto derivative = [&](at::ScalarType type) {
    const Tensor leaf = x.slice(0, 0, 2).detach().to(type, false, true).requires_grad_();
    const Tensor of_model = weight.detach().to(type, false, true).requires_grad_();
    const Tensor y = at::conv2d(leaf, of_model, {}, 1, 1);
    const Tensor grad = torch::autograd::grad({(y * y).sum()}, {leaf}, {}, true, true)[0];
    return torch::autograd::grad({grad.sum()}, {of_model})[0].to(at::kDouble);
  };
  const Tensor bfloat16 = derivative(at::kBFloat16), exact = derivative(at::kDouble);
  // Four operators in a row, each of which rounds to 8 bits.
  EXPECT_LT((bfloat16 - exact).norm().item<double>(), 4 * 0x1p-8 * exact.norm().item<double>());
}

// Convolutions that the kernel does not support are left to LibTorch.
TEST_F(Bfloat16Convolution, GroupedTransposedAndNarrowConvolutionsUseLibTorch) {
  const auto run = [&](const char* way) {
    torch::nn::Linear net(2, 2);
    auto handle = amp::initialize(net, "O5", quiet().cpu_16bit(way));
    std::vector<Tensor> grads;
    const auto add = [&](const Tensor& w, const auto& convolution) {
      const Tensor leaf = w.detach().clone().requires_grad_();
      const Tensor y = convolution(leaf);
      y.backward(torch::ones_like(y));
      grads.push_back(leaf.grad());
    };
    add(weight.slice(1, 0, 32), [&](const Tensor& w) {
      return at::conv2d(x, w, {}, {1, 1}, at::IntArrayRef{1, 1}, {1, 1}, 2);
    });
    add(weight, [&](const Tensor& w) { return at::conv_transpose2d(x, w); });
    add(weight.slice(1, 0, 3), [&](const Tensor& w) { return at::conv2d(x.slice(1, 0, 3), w); });
    add(weight.select(2, 0), [&](const Tensor& w) { return at::conv1d(x.select(2, 0), w); });
    add(weight.slice(2, 0, 1).slice(3, 0, 1), [&](const Tensor& w) { return at::conv2d(x.slice(0, 0, 1), w); });
    amp::reset();
    return grads;
  };
  const auto got = run("auto"), expected = run("native");
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

}  // namespace
}  // namespace apex::test
