// Gradients of BFloat16 convolutions on CPUs that compute them natively: our kernel's for the weights, unless LibTorch's are
// asked for by name.
#include "kernels/convolution/weight_grad.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct Grads {
  Tensor input, weight, bias;
};

/// A convolution's gradients at a level, by the operators that a model calls.
Grads grads_at(const char* level, const amp::InitializeOptions& options, const Tensor& x, const Tensor& weight,
               const Tensor& grad_y) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, level, options);
  Grads leaves{x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_(),
               torch::zeros({weight.size(0)}, weight.options()).requires_grad_()};
  at::conv2d(leaves.input, leaves.weight, leaves.bias, 1, 1).backward(grad_y);
  const Grads grads{leaves.input.grad(), leaves.weight.grad(), leaves.bias.grad()};
  amp::reset();
  return grads;
}

bool computes_in_float32() {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet());
  const amp::trace trace;
  at::mm(torch::ones({2, 2}, at::kBFloat16), torch::ones({2, 2}, at::kBFloat16));
  return trace.ops()[0].in_float32;
}

class ConvolutionBackward : public AmpTest {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    if (!kernels::has_convolution_weight_grad()) GTEST_SKIP() << "needs a processor with AVX512-BF16";
    if (computes_in_float32()) GTEST_SKIP() << "BFloat16 products compute in FP32 here: see ONEDNN_MAX_CPU_ISA";
    amp::reset();
  }

  const Tensor x = values({8, 64, 16, 16}), weight = values({64, 64, 3, 3}), grad_y = values({8, 64, 16, 16});

 private:
  static Tensor values(at::IntArrayRef sizes) { return torch::randn(sizes).to(at::kBFloat16).contiguous(kChannelsLast); }
};

TEST_F(ConvolutionBackward, TakesTheKernelForTheWeightsAtLevelsWithBFloat16) {
  const auto expected = kernels::convolution_weight_grad(grad_y, x, weight, {{1, 1}, {1, 1}, {1, 1}}, true);
  for (const char* level : {"O4", "O5"}) {
    const Grads grads = grads_at(level, quiet(), x, weight, grad_y);
    EXPECT_TRUE(at::equal(grads.weight, expected.weight)) << level;
    EXPECT_TRUE(at::equal(grads.bias, expected.bias)) << level;
    EXPECT_TRUE(grads.weight.is_contiguous(kChannelsLast)) << level;
  }
}

TEST_F(ConvolutionBackward, LeavesTheInputsToLibTorchAndAllOfItWhereNativeIsAskedForByName) {
  const auto [input, of_weight, bias] = at::convolution_backward(grad_y, x, weight, at::IntArrayRef{64}, {1, 1}, {1, 1}, {1, 1},
                                                                 false, {0, 0}, 1, {true, true, true});
  const Grads ours = grads_at("O5", quiet(), x, weight, grad_y),
              native = grads_at("O5", quiet().cpu_16bit("native"), x, weight, grad_y);
  EXPECT_TRUE(at::equal(ours.input, input));
  EXPECT_TRUE(at::equal(native.input, input));
  EXPECT_TRUE(at::equal(native.weight, of_weight));
  EXPECT_TRUE(at::equal(native.bias, bias));
  // Sums in another order: of 36,864, some round to the neighbouring number.
  EXPECT_FALSE(at::equal(ours.weight, of_weight)) << "the comparisons here cannot tell the kernels apart";
}

TEST_F(ConvolutionBackward, ComputesWhatIsAskedFor) {
  torch::nn::Linear net(2, 2);
  auto handle = amp::initialize(net, "O5", quiet());
  const auto backward = [&](std::array<bool, 3> needs) {
    return at::convolution_backward(grad_y, x, weight, at::IntArrayRef{64}, {1}, {1}, {1}, false, {0}, 1, needs);
  };
  const auto [input, of_weight, bias] = backward({true, true, true});
  for (const std::array<bool, 3>& needs : {std::array{false, true, false}, {true, true, false}, {false, true, true}}) {
    const auto [got_input, got_weight, got_bias] = backward(needs);
    EXPECT_EQ(got_input.defined(), needs[0]);
    EXPECT_EQ(got_weight.defined(), needs[1]);
    EXPECT_EQ(got_bias.defined(), needs[2]);
    EXPECT_TRUE(!needs[0] || at::equal(got_input, input));
    EXPECT_TRUE(!needs[1] || at::equal(got_weight, of_weight));
  }
}

// What the kernel is not made for goes the way that it went before.
TEST_F(ConvolutionBackward, GroupsTransposedAndNarrowOnesAreLibTorchs) {
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
    add(weight, [&](const Tensor& w) { return at::conv2d(x.slice(0, 0, 1), w); });
    amp::reset();
    return grads;
  };
  const auto got = run("auto"), expected = run("native");
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

}  // namespace
}  // namespace apex::test
