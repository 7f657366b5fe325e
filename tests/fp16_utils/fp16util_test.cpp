// Upstream's tests/L0/run_fp16util/test_fp16util.py by behaviour, and FP16U-09.
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace apex::test {
namespace {

// A convolution, a batch norm with affine parameters, one without, and a nested linear layer.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    conv = register_module("conv", torch::nn::Conv2d(3, 4, 3));
    affine = register_module("affine", torch::nn::BatchNorm2d(4));
    plain = register_module("plain", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).affine(false)));
    inner = register_module("inner", torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(4 * 4, 2)));
    register_buffer("scale", torch::ones({1}));
    register_buffer("count", torch::zeros({1}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) { return inner->forward(plain(affine(conv(x)))); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d affine{nullptr}, plain{nullptr};
  torch::nn::Sequential inner{nullptr};
};
TORCH_MODULE(Block);

TEST(Fp16Util, TestParamsAndBuffers) {
  Block block;
  fp16_utils::FP16Model<Block> model(block);
  size_t seen = 0;
  const auto check = [&](const std::string& name, const torch::Tensor& tensor) {
    ++seen;
    const bool counts = !tensor.is_floating_point();
    const bool stays = name.find("network.affine.") == 0;
    EXPECT_EQ(tensor.scalar_type(), counts ? torch::kLong : stays ? torch::kFloat : torch::kHalf) << name;
  };
  for (const auto& item : model.named_parameters()) check(item.key(), item.value());
  for (const auto& item : model.named_buffers()) check(item.key(), item.value());
  EXPECT_EQ(seen, 6u + 8u);
}

TEST(Fp16Util, TestOutputIsHalf) {
  fp16_utils::FP16Model<Block> model{Block()};
  EXPECT_EQ(model.forward(torch::ones({2, 3, 4, 4})).scalar_type(), torch::kHalf);
}

TEST(Fp16Util, Fp16u09FloatsAndClipping) {
  EXPECT_EQ(fp16_utils::to_python_float(torch::full({1}, 2.5, torch::kHalf)), 2.5);
  EXPECT_EQ(fp16_utils::to_python_float(torch::full({}, 7, torch::kLong)), 7.0);
  const auto param = torch::zeros({2}).requires_grad_();
  param.mutable_grad() = torch::tensor({3.0f, 4.0f});
  EXPECT_EQ(fp16_utils::clip_grad_norm({param}, 1.0), 5.0);
  // The 1e-6 in the coefficient's denominator takes 2e-7 of a value; float32 rounds by 6e-8 of it.
  EXPECT_TRUE(torch::allclose(param.grad(), torch::tensor({0.6f, 0.8f}), 1e-6, 0));
  param.mutable_grad() = torch::tensor({3.0f, -4.0f});
  EXPECT_EQ(fp16_utils::clip_grad_norm({param}, 1.0, INFINITY), 4.0);
}

}  // namespace
}  // namespace apex::test
