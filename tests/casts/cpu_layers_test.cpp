// Layers bound by memory on BFloat16 CPU tensors, as programs call them: kernels of ours where amp is on, with LibTorch's results.
#include "kernels/layers/layers.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Batch norm with its parameters, statistics and input, in one type or with FP32 parameters.
struct BatchNormRun {
  Tensor x, weight, bias, mean, variance, y;

  BatchNormRun(const Tensor& input, at::ScalarType params, bool training, const Tensor& grad) {
    const auto channels = at::TensorOptions(params).requires_grad(false);
    const int64_t count = input.size(1);
    x = input.detach().clone().requires_grad_();
    weight = torch::linspace(-1, 2, count, channels).requires_grad_();
    bias = torch::linspace(1, -1, count, channels).requires_grad_();
    mean = torch::linspace(-0.5, 0.5, count, channels);
    variance = torch::linspace(0.5, 2, count, channels);
    // A leaf of its own would pass for a 16-bit weight, which the other arguments follow.
    y = at::batch_norm(x.clone(), weight, bias, mean, variance, training, 0.1, 1e-5, false);
    y.backward(grad.to(y.scalar_type()));
  }
  Tensors results() const { return {y.detach(), x.grad(), weight.grad(), bias.grad(), mean, variance}; }
};

const char* const kNames[] = {"y", "grad_x", "grad_weight", "grad_bias", "running_mean", "running_var"};

class CpuLayers : public AmpTest {
 protected:
  torch::nn::Linear net_{2, 2};
};

Tensor channels_last(const Tensor& x) {
  if (x.dim() == 4) return x.contiguous(at::MemoryFormat::ChannelsLast);
  return x.dim() == 5 ? x.contiguous(at::MemoryFormat::ChannelsLast3d) : x;
}

double error_of(const Tensor& got, const Tensor& exact) { return (got.to(at::kDouble) - exact).norm().item<double>(); }

TEST_F(CpuLayers, BatchNormIsNoLessExactThanLibTorchs) {
  const std::vector<std::vector<int64_t>> shapes = {{64, 20}, {4, 24, 6, 6}, {8, 3, 8, 4}, {2, 32, 3, 4, 2}, {3, 5, 3, 3}};
  for (const bool training : {true, false}) {
    for (const auto& shape : shapes) {
      for (const bool last : {true, false}) {
        const Tensor contiguous = torch::randn(shape).to(at::kBFloat16), grad = torch::randn(shape).to(at::kBFloat16);
        const Tensor input = last ? channels_last(contiguous) : contiguous;
        const Tensors exact = BatchNormRun(input.to(at::kDouble), at::kDouble, training, grad).results();
        const Tensors native = BatchNormRun(input, at::kFloat, training, grad).results();
        auto handle = amp::initialize(net_, "O5", quiet());
        const BatchNormRun run(input, at::kFloat, training, grad);
        amp::reset();
        EXPECT_EQ(run.y.strides(), input.strides());
        const Tensors own = run.results();
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_EQ(own[i].scalar_type(), native[i].scalar_type()) << kNames[i];
          // Both are rounded to their type: of errors as large as that rounding's, either may have the smaller.
          const double rounding = (own[i].scalar_type() == at::kFloat ? 0x1p-22 : 0x1p-10) * exact[i].norm().item<double>();
          EXPECT_LE(error_of(own[i], exact[i]), error_of(native[i], exact[i]) + rounding) << kNames[i] << ' ' << at::IntArrayRef(shape);
        }
      }
    }
  }
}

// With kernels asked for by name LibTorch's are left alone, and so they are without amp.
TEST_F(CpuLayers, BatchNormIsOursUnlessNativeKernelsAreAskedFor) {
  const Tensor x = torch::randn({16, 32, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast).to(at::kBFloat16);
  const Tensor weight = torch::ones({32}), bias = torch::zeros({32});
  const auto mean_of_batch = [&] {
    const at::NoGradGuard no_grad;
    return std::get<1>(at::native_batch_norm(x, weight, bias, {}, {}, true, 0.1, 1e-5));
  };
  const Tensor ours = kernels::batch_statistics({16 * 16 * 16, 32}, x).mean, libtorchs = mean_of_batch();
  ASSERT_FALSE(at::equal(ours, libtorchs)) << "their sums have another order, or nothing is to be seen here";
  for (const char* way : {"auto", "float32", "native"}) {
    auto handle = amp::initialize(net_, "O5", quiet().cpu_16bit(way));
    EXPECT_TRUE(at::equal(mean_of_batch(), way == std::string("native") ? libtorchs : ours)) << way;
    amp::reset();
  }
}

/// What a program does with ReLU and sums, and its gradients.
Tensors relus_and_sums(const Tensor& input, const Tensor& grad) {
  const Tensor x = input.detach().clone().requires_grad_();
  Tensor y = at::relu(x) + x;
  y = y.mul(0.5).relu_().mul(2);
  y.add_(x);
  y = at::add(y, x, 0.25) + 1;
  y.backward(grad);
  return {y.detach(), x.grad()};
}

TEST_F(CpuLayers, ReluAndSumsHaveTheBitsOfLibTorchs) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const Tensor image = torch::randn({4, 8, 16, 16}).to(type), grad = torch::randn({4, 8, 16, 16}).to(type);
    const Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
    const Tensors inputs = {image, last, image.transpose(0, 1), last.narrow(1, 1, 6)};
    for (const Tensor& input : inputs) {
      const Tensor grads = grad.narrow(0, 0, 4).reshape(-1).narrow(0, 0, input.numel()).view(input.sizes());
      const Tensors expected = relus_and_sums(input, grads);
      auto handle = amp::initialize(net_, type == at::kHalf ? "O2" : "O5", quiet());
      const Tensors got = relus_and_sums(input, grads);
      const Tensors expanded = relus_and_sums(input, grads.select(3, 0).unsqueeze(3).expand(input.sizes()));
      amp::reset();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
      const Tensors of_copies = relus_and_sums(input, grads.select(3, 0).unsqueeze(3).expand(input.sizes()).contiguous());
      EXPECT_TRUE(at::equal(expanded[1], of_copies[1]));
    }
  }
}

TEST_F(CpuLayers, AttentionsBackwardIsInFloat32UnlessNativeKernelsAreAskedFor) {
  for (const char* way : {"auto", "native"}) {
    auto handle = amp::initialize(net_, "O5", quiet().cpu_16bit(way));
    const Tensor q = torch::randn({2, 3, 8, 16}).to(at::kBFloat16).requires_grad_();
    const Tensor mixed = at::scaled_dot_product_attention(q, q, q);
    const amp::trace trace;
    mixed.sum().backward();
    size_t in_float32 = 0;
    for (const auto& op : trace.ops()) in_float32 += op.in_float32;
    EXPECT_EQ(in_float32, way == std::string("auto") ? 1u : 0u) << trace;
    amp::reset();
  }
}

}  // namespace
}  // namespace apex::test
