// FP16U-01..05: networks in half precision.
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace apex::test {
namespace {

torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3),
                               torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(3).affine(false)));
}

TEST(Fp16Networks, Fp16u01ToFp16CastsDifferentiably) {
  const auto x = torch::ones({2}).requires_grad_();
  fp16_utils::tofp16 cast;
  const auto y = cast(x);
  EXPECT_EQ(y.scalar_type(), torch::kHalf);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), torch::kFloat);
}

TEST(Fp16Networks, Fp16u02OnlyAffineBatchNormGoesBackToFloat) {
  auto net = network();
  fp16_utils::convert_all(*net, torch::kHalf);
  EXPECT_EQ(&fp16_utils::BN_convert_float(*net), net.ptr().get());
  EXPECT_EQ(net[0]->as<torch::nn::Linear>()->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(net[1]->as<torch::nn::BatchNorm1d>()->running_var.scalar_type(), torch::kFloat);
  EXPECT_EQ(net[2]->as<torch::nn::BatchNorm1d>()->running_var.scalar_type(), torch::kHalf);
}

TEST(Fp16Networks, Fp16u03And05TrainOnFloatInput) {
  const auto check = [](auto& half) {
    half.train();
    const auto out = half.forward(torch::ones({5, 4}) * torch::arange(5).reshape({5, 1}));
    EXPECT_EQ(out.scalar_type(), torch::kHalf);
    out.sum().backward();
    for (const auto& item : half.named_parameters()) {
      EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type()) << item.key();
    }
  };
  auto first = network(), second = network();
  auto half = fp16_utils::network_to_half(first);
  check(*half);
  EXPECT_TRUE(half->named_parameters().contains("1.0.weight")) << "named as in Apex's Sequential";
  fp16_utils::FP16Model<torch::nn::Sequential> model(second);
  check(model);
  EXPECT_TRUE(model.named_parameters().contains("network.0.weight"));
}

TEST(Fp16Networks, ASharedPointerIsAccepted) {
  auto module = std::make_shared<torch::nn::LinearImpl>(4, 3);
  EXPECT_EQ(fp16_utils::network_to_half(module)->forward(torch::ones({1, 4})).scalar_type(), torch::kHalf);
}

TEST(Fp16Networks, ANullNetworkIsAnError) {
  using Pointer = std::shared_ptr<torch::nn::LinearImpl>;
  const torch::nn::Linear empty(nullptr);
  EXPECT_THROW(fp16_utils::network_to_half(Pointer()), c10::ValueError);
  EXPECT_THROW(fp16_utils::FP16Model<Pointer>{Pointer()}, c10::ValueError);
  EXPECT_THROW(fp16_utils::network_to_half(empty), c10::ValueError);
}

}  // namespace
}  // namespace apex::test
