// FP16U-06..08: masters kept by hand.
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace apex::test {
namespace {

class ParamLists : public ::testing::TestWithParam<bool> {
 protected:
  ParamLists() {
    net->to(torch::kHalf);
    std::tie(params, masters) = fp16_utils::prep_param_lists(*net, GetParam());
  }
  torch::Tensor flat_values() const {
    std::vector<torch::Tensor> pieces;
    for (const auto& param : params) pieces.push_back(param.detach().reshape(-1).to(torch::kFloat));
    return torch::cat(pieces);
  }
  torch::Tensor flat_masters(bool grads) const {
    std::vector<torch::Tensor> pieces;
    for (const auto& master : masters) pieces.push_back((grads ? master.grad() : master.detach()).reshape(-1));
    return torch::cat(pieces);
  }
  torch::nn::Linear net{3, 2};
  std::vector<torch::Tensor> params, masters;
};

TEST_P(ParamLists, Fp16u06MastersAreFloat32CopiesThatRequireGradients) {
  EXPECT_EQ(masters.size(), GetParam() ? 1u : 2u);
  for (const auto& master : masters) {
    EXPECT_EQ(master.scalar_type(), torch::kFloat);
    EXPECT_TRUE(master.requires_grad());
    EXPECT_TRUE(master.is_leaf());
    EXPECT_EQ(master.grad().defined(), GetParam());
  }
  EXPECT_TRUE(torch::equal(flat_masters(false), flat_values()));
}

TEST_P(ParamLists, Fp16u07And08CarryGradientsThereAndValuesBack) {
  params[0].mutable_grad() = torch::arange(6, torch::kHalf).reshape({2, 3});
  params[1].mutable_grad() = torch::full({2}, -4, torch::kHalf);
  fp16_utils::model_grads_to_master_grads(params, masters, GetParam());
  EXPECT_TRUE(torch::equal(flat_masters(true), torch::tensor({0.f, 1.f, 2.f, 3.f, 4.f, 5.f, -4.f, -4.f})));
  {
    torch::NoGradGuard no_grad;
    for (auto& master : masters) master.add_(1.0 / 3);  // not representable in half: rounding is seen
  }
  const auto expected = flat_masters(false).to(torch::kHalf).to(torch::kFloat);
  fp16_utils::master_params_to_model_params(params, masters, GetParam());
  EXPECT_TRUE(torch::equal(flat_values(), expected));
  EXPECT_EQ(net->weight.scalar_type(), torch::kHalf);
}

TEST_P(ParamLists, Fp16u07AMissingGradient) {
  params[0].mutable_grad() = torch::ones({2, 3}, torch::kHalf);
  if (GetParam()) {
    EXPECT_THROW(fp16_utils::model_grads_to_master_grads(params, masters, true), c10::Error);
  } else {
    masters[1].mutable_grad() = torch::ones({2});
    fp16_utils::model_grads_to_master_grads(params, masters, false);
    EXPECT_FALSE(masters[1].grad().defined());
    EXPECT_TRUE(masters[0].grad().defined());
  }
}

TEST_P(ParamLists, ListsThatDoNotBelongTogetherAreRejected) {
  std::vector<torch::Tensor> fewer(params.begin(), params.begin() + 1), none;
  EXPECT_THROW(fp16_utils::master_params_to_model_params(params, none, GetParam()), c10::Error);
  EXPECT_THROW(fp16_utils::model_grads_to_master_grads(fewer, masters, GetParam()), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Forms, ParamLists, ::testing::Bool(), [](const auto& test) { return test.param ? "flat" : "each"; });

TEST(ParamListErrors, Fp16u06AFlatMasterNeedsOneDtype) {
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
  net[0]->to(torch::kHalf);
  EXPECT_THROW((void)fp16_utils::prep_param_lists(*net, true), c10::TypeError);
}

}  // namespace
}  // namespace apex::test
