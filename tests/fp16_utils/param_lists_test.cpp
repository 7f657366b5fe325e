// FP16U-06..08: masters kept by hand.
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/errors.h"

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

TEST_P(ParamLists, Fp16u07And08CopyGradientsToMastersAndValuesBack) {
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

TEST_P(ParamLists, Fp16u07LaterGradientsReplaceEarlierOnes) {
  for (const double value : {3.0, -5.0}) {
    for (auto& param : params) param.mutable_grad() = torch::full_like(param, value);
    fp16_utils::model_grads_to_master_grads(params, masters, GetParam());
    EXPECT_TRUE(flat_masters(true).eq(value).all().item<bool>()) << value;
  }
}

TEST_P(ParamLists, Fp16u07AMissingGradient) {
  params[0].mutable_grad() = torch::ones({2, 3}, torch::kHalf);
  if (GetParam()) {
    masters[0].mutable_grad() = torch::zeros({8});
    expect_error([&] { fp16_utils::model_grads_to_master_grads(params, masters, true); },
                 {"model_params[1], of shape [2], has no gradient", "flat_master=false"});
    EXPECT_TRUE(torch::equal(flat_masters(true), torch::zeros({8})));
  } else {
    masters[1].mutable_grad() = torch::ones({2});
    fp16_utils::model_grads_to_master_grads(params, masters, false);
    EXPECT_FALSE(masters[1].grad().defined());
    EXPECT_TRUE(masters[0].grad().defined());
  }
}

TEST_P(ParamLists, MismatchedListsAreRejected) {
  std::vector<torch::Tensor> fewer(params.begin(), params.begin() + 1), none;
  EXPECT_THROW(fp16_utils::master_params_to_model_params(params, none, GetParam()), c10::Error);
  EXPECT_THROW(fp16_utils::model_grads_to_master_grads(fewer, masters, GetParam()), c10::Error);
}

// Each master must have its parameter's shape. Otherwise copying would broadcast, or fail after earlier parameters were copied.
TEST_P(ParamLists, MastersOfOtherShapesAreAnErrorAndChangeNothing) {
  std::vector<torch::Tensor> others = masters;
  const auto fill = [](const torch::Tensor& tensor) { return torch::full(tensor.sizes(), 7.0); };
  for (auto& param : params) param.mutable_grad() = torch::ones_like(param);
  std::vector<torch::Tensor> wrong = {fill(torch::zeros({5})), torch::full({1}, 7.0), torch::Tensor()};
  if (GetParam()) wrong.push_back(fill(masters[0]).reshape({2, 4}));
  for (const auto& each : wrong) {
    others[0] = fill(masters[0]);
    others.back() = each;
    const auto before = flat_values();
    EXPECT_THROW(fp16_utils::master_params_to_model_params(params, others, GetParam()), c10::Error);
    EXPECT_TRUE(torch::equal(flat_values(), before));
    EXPECT_THROW(fp16_utils::model_grads_to_master_grads(params, others, GetParam()), c10::Error);
    EXPECT_FALSE(others[0].defined() && others[0].grad().defined());
  }
}

TEST_P(ParamLists, AModelWithoutTrainableParameters) {
  for (auto& param : params) param.set_requires_grad(false);
  const auto [none, no_masters] = fp16_utils::prep_param_lists(*net, GetParam());
  EXPECT_TRUE(none.empty() && no_masters.empty());
  fp16_utils::model_grads_to_master_grads(none, no_masters, GetParam());
  fp16_utils::master_params_to_model_params(none, no_masters, GetParam());
  EXPECT_THROW(fp16_utils::master_params_to_model_params(none, masters, GetParam()), c10::Error);
}

TEST_P(ParamLists, SparseGradientsAreAnErrorAndChangeNothing) {
  params[0].mutable_grad() = torch::ones({2, 3}, torch::kHalf);
  params[1].mutable_grad() = torch::ones({2}, torch::kHalf).to_sparse();
  for (auto& master : masters) master.mutable_grad() = torch::full_like(master, 7.0);
  expect_error([&] { fp16_utils::model_grads_to_master_grads(params, masters, GetParam()); },
               {"model_params[1], of shape [2], has layout Sparse"});
  EXPECT_TRUE(flat_masters(true).eq(7.0).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Forms, ParamLists, ::testing::Bool(), [](const auto& test) { return test.param ? "flat" : "each"; });

TEST(ParamListErrors, Fp16u06AFlatMasterNeedsOneDtype) {
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
  net[0]->to(torch::kHalf);
  EXPECT_THROW((void)fp16_utils::prep_param_lists(*net, true), c10::TypeError);
}

}  // namespace
}  // namespace apex::test
